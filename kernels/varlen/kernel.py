"""The kernel that makes the table of work items from cumulative lengths: one block.

It counts the tiles of queries of each sequence, finds for every tile how many tiles of keys it
visits, as the kernel of attention will, and sorts them by counting: no step depends on the number
of scores.  Lengths are taken as they are, but cut off at the totals, so that no content of the
tensors makes a kernel touch what it must not.

Entries of equal work come in any order, so two runs may give different tables; what attention
computes from them is the same to the last bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import cutlass
from cutlass import Int32, Int64, Uint64, cute

from flexfa4.kernels.blocks.emitted import EmittedEnds
from flexfa4.kernels.emit.evaluator import Leaves, TraceTime
from flexfa4.kernels.varlen.plan import TablePlan
from flexfa4.kernels.varlen.table import ENTRY, HEADER, ITEMS, LEVELS_LOG2, SECTION
from flexfa4.primitives.device_arithmetic import DEVICE
from flexfa4.primitives.tile_walk import Lengths

THREADS: Final = 1024
_WARP: Final = 32
_LENGTHS_LOG2: Final = 10  # levels by which sequences are sorted: one for each thread
_COUNTS: Final = 1 << LEVELS_LOG2
# in shared memory: counts of levels, keys of each level of lengths, a number for each warp, and
# the length of the longest sequence
_LENGTHS_AT: Final = _COUNTS
_SUMS_AT: Final = _LENGTHS_AT + (1 << _LENGTHS_LOG2)
_LONGEST_AT: Final = _SUMS_AT + _WARP
_SHARED: Final = 4 * (_LONGEST_AT + 4)


class TableKernel:
    """The kernel of a plan, to be traced by CuTe-DSL; its parameters are ``plan.signature``."""

    def __init__(self, plan: TablePlan) -> None:
        self.plan = plan

    @cute.jit
    def __call__(self, values: tuple[Any, ...]) -> None:
        """Launch."""
        self.kernel(values).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), smem=_SHARED)

    @cute.kernel
    def kernel(self, values: tuple[Any, ...]) -> None:
        """The device code."""
        thread, _, _ = cute.arch.thread_idx()
        shared = cute.recast_ptr(cute.arch.get_dyn_smem(cutlass.Int8, alignment=16), dtype=Int32)
        block = _Block(self.plan, values, shared, thread)
        block.clear()
        entries = block.count_tiles()
        block.group_sequences()
        block.sort(entries)
        block.finish(entries)


class _Block(TraceTime):
    """The threads of the block, as one of them sees it."""

    def __init__(
        self, plan: TablePlan, values: tuple[Any, ...], shared: cute.Pointer, thread: Int32
    ) -> None:
        names = [parameter.name for parameter in plan.scalars]
        self._plan = plan
        self._given = dict(zip(names, values, strict=False))
        self._captured = [
            value.toint() if parameter.format == "Q" else value
            for parameter, value in zip(plan.signature, values, strict=True)
        ][len(names) :]
        self._counts = shared
        self._lengths = shared + _LENGTHS_AT
        self._sums = shared + _SUMS_AT
        self._longest = shared + _LONGEST_AT
        self._thread = thread
        table = cute.recast_ptr(self._given["table"], dtype=Int32)
        self._table = table
        self._firsts = table + (HEADER + ENTRY * self._given["most"])
        self._groups = self._firsts + (self._given["sequences"] + 1)

    # ---- steps -----------------------------------------------------------------------------------

    @cute.jit
    def clear(self) -> None:
        """Clear what is counted in shared memory."""
        for i in cutlass.range(self._thread, _LONGEST_AT + 1, THREADS, unroll=1):
            (self._counts + i).store(Int32(0))
        cute.arch.sync_threads()

    @cute.jit
    def count_tiles(self) -> Int32:
        """Find the first entry of each sequence, and the longest one; return how many there are."""
        sequences = self._given["sequences"]
        total = Int32(0)
        for start in cutlass.range(0, sequences, THREADS, unroll=1):
            sequence = start + self._thread
            tiles = Int32(0)
            if sequence < sequences:
                _, q_len, _, kv_len = self._sequence(sequence)
                tiles = self._tiles(q_len)
                cute.arch.atomic_max(self._longest, kv_len)
            before, found = self._sum_before(tiles)
            if sequence < sequences:
                (self._firsts + sequence).store(total + before)
            total += found
        if self._thread == 0:
            (self._firsts + sequences).store(total)
        cute.arch.sync_threads()
        return cutlass.min(total, self._given["most"])

    @cute.jit
    def group_sequences(self) -> None:
        """Divide sequences into groups, longer ones first."""
        if self._given["levels_log2"] < LEVELS_LOG2:
            sequences, group_keys = self._given["sequences"], self._given["group_keys"]
            for i in cutlass.range(self._thread, sequences, THREADS, unroll=1):
                _, _, _, kv_len = self._sequence(i)
                cute.arch.atomic_add(self._lengths + self._level_of_length(kv_len), kv_len)
            cute.arch.sync_threads()
            own = self._lengths + self._thread
            before, _ = self._sum_before(own.load())
            own.store(before)
            cute.arch.sync_threads()
            last = (Int32(1) << (LEVELS_LOG2 - self._given["levels_log2"])) - 1
            for i in cutlass.range(self._thread, sequences, THREADS, unroll=1):
                _, _, _, kv_len = self._sequence(i)
                level = self._level_of_length(kv_len)
                keys = Int32(cute.arch.atomic_add(self._lengths + level, kv_len))
                (self._groups + i).store(cutlass.min(keys // group_keys, last))
            cute.arch.sync_threads()

    @cute.jit
    def sort(self, entries: Int32) -> None:
        """Write the entries in order."""
        for i in cutlass.range(self._thread, entries, THREADS, unroll=1):
            cute.arch.atomic_add(self._counts + self._level(*self._located(i)), Int32(1))
        cute.arch.sync_threads()
        self._sum_counts()
        for i in cutlass.range(self._thread, entries, THREADS, unroll=1):
            sequence, tile = self._located(i)
            level = self._level(sequence, tile)
            place = Int32(cute.arch.atomic_add(self._counts + level, Int32(1)))
            self._write(place, (tile, sequence, *self._sequence(sequence)))

    @cute.jit
    def finish(self, entries: Int32) -> None:
        """Write the header, and entries of no sequence up to the least number of them.

        There are fewer only if lengths do not add up to the totals.
        """
        wanted = cutlass.max(entries, self._given["least"])
        for i in cutlass.range(entries + self._thread, wanted, THREADS, unroll=1):
            # the tile behind the only query of a sequence without keys
            self._write(i, (Int32(1), Int32(0), Int32(0), Int32(1), Int32(0), Int32(0)))
        if self._thread == 0:
            (self._table + ITEMS).store(wanted * self._given["item_heads"])
            for i, number in enumerate(_divisor(wanted * self._given["section_heads"])):
                (self._table + (SECTION + i)).store(number)

    # ---- parts -----------------------------------------------------------------------------------

    def _sequence(self, sequence: Int32) -> tuple[Int32, Int32, Int32, Int32]:
        """Return where the queries of a sequence begin, their number, and likewise of its keys."""
        q_begin, q_len = self._span("q", sequence)
        kv_begin, kv_len = self._span("kv", sequence)
        return q_begin, q_len, kv_begin, kv_len

    def _span(self, what: str, sequence: Int32) -> tuple[Int32, Int32]:
        total = self._given[f"{what}_total"]
        dtype = Int64 if self._plan.wide[what == "kv"] else Int32
        at = cute.recast_ptr(self._given[f"{what}_ends"], dtype=dtype) + sequence
        begin = DEVICE.clamped(at.load(), 0, total)
        return begin, DEVICE.clamped((at + 1).load(), begin, total) - begin

    def _tiles(self, q_len: Int32) -> Int32:
        queries = self._plan.walk.shape.queries
        return DEVICE.quotient(q_len + (queries - 1), queries)

    @cute.jit
    def _located(self, entry: Int32) -> tuple[Int32, Int32]:
        """Return the sequence and the tile of an entry, as they lie."""
        low, high = Int32(0), Int32(self._given["sequences"])
        while low + 1 < high:
            middle = (low + high) // 2
            at_most = (self._firsts + middle).load() <= entry
            low = DEVICE.select(at_most, middle, low)
            high = DEVICE.select(at_most, high, middle)
        return low, entry - (self._firsts + low).load()

    @cute.jit
    def _level(self, sequence: Int32, tile: Int32) -> Int32:
        """Return the level of an entry: its group first, and then by falling work."""
        levels_log2 = self._given["levels_log2"]
        most = DEVICE.quotient(self._longest.load(), self._plan.walk.shape.keys) + 1
        work = _shifted(self._visits(sequence, tile), most, levels_log2)
        level = (Int32(1) << levels_log2) - 1 - work
        if levels_log2 < LEVELS_LOG2:
            level += (self._groups + sequence).load() << levels_log2
        return level

    def _visits(self, sequence: Int32, tile: Int32) -> Int32:
        """Return how many tiles of keys a tile of queries visits, of its first head.

        Where a kernel looks at all queries, the first and the last must do here: it is the order
        that depends on it, and no result.
        """
        _, q_len, _, kv_len = self._sequence(sequence)
        walk = replace(self._plan.walk, sampling="edges")
        ends = None
        if walk.interval is not None:
            lengths = (cutlass.max(q_len, 1), cutlass.max(kv_len, 1))
            heads = (self._given["heads"], self._given["kv_heads"])
            leaves = Leaves(None, None, *lengths, *heads, self._captured)
            ends = EmittedEnds(walk.interval, self._plan.captures, leaves)
        limits = walk.limits_of(DEVICE, Lengths(q_len, kv_len), ends)
        visits = walk.source_of((), limits).row(sequence, Int32(0), tile)
        return Int32(visits.partial_count + visits.full_count)

    def _level_of_length(self, kv_len: Int32) -> Int32:
        level = _shifted(kv_len, self._longest.load(), Int32(_LENGTHS_LOG2))
        return (1 << _LENGTHS_LOG2) - 1 - level

    def _write(self, place: Int32, numbers: tuple[Int32, ...]) -> None:
        at = self._table + (HEADER + ENTRY * place)
        for i, number in enumerate(numbers):
            (at + i).store(number)

    @cute.jit
    def _sum_counts(self) -> None:
        """Replace each count by the sum of those before it."""
        each = _COUNTS // THREADS
        own = self._counts + each * self._thread
        values = [(own + i).load() for i in range(each)]
        before, _ = self._sum_before(sum(values[1:], values[0]))
        for i in cutlass.range_constexpr(each):
            (own + i).store(before)
            before += values[i]
        cute.arch.sync_threads()

    @cute.jit
    def _sum_before(self, value: Int32) -> tuple[Int32, Int32]:
        """Return the sum of the values of the threads before this one, and of all of them."""
        lane = cute.arch.lane_idx()
        warp = self._thread // _WARP
        inclusive = _warp_sums(value, lane)
        if lane == _WARP - 1:
            (self._sums + warp).store(inclusive)
        cute.arch.sync_threads()
        of_warp = (self._sums + lane).load()
        up_to = _warp_sums(of_warp, lane)
        before = cute.arch.shuffle_sync(up_to - of_warp, warp)
        total = cute.arch.shuffle_sync(up_to, _WARP - 1)
        cute.arch.sync_threads()
        return before + inclusive - value, total


def _warp_sums(value: Int32, lane: Int32) -> Int32:
    """Return the sum of the values of the lanes up to this one."""
    for distance in (1, 2, 4, 8, 16):
        other = cute.arch.shuffle_sync_up(value, distance)
        value = value + DEVICE.select(lane >= distance, other, 0)
    return value


def _bits(number: Int32) -> Int32:
    """Return the length of a number in bits; 0 for 0."""
    return 32 - Int32(cute.arch.clz(number))


def _shifted(value: Int32, most: Int32, bits: Int32) -> Int32:
    """Return a number from 0 to `most` without as many low bits as `most` has beyond `bits`."""
    return value >> cutlass.max(_bits(most) - bits, 0)


def _divisor(size: Int32) -> tuple[Int32, Int32, Int32]:
    """Return what `flexfa4.primitives.fast_division.Divisor.of` does."""
    shift = _bits(size - 1)
    wide = Uint64(size)
    multiplier = ((Uint64(1) << Uint64(shift + 31)) + wide - 1) // wide
    return size, Int32(multiplier), shift
