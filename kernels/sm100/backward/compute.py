"""Compute warpgroups of the backward kernel: probabilities, their gradients, dK and dV.

A thread has a key, and the queries of its warpgroup's half of a tile: products come from tensor
memory to its registers, and what they are turned into goes back there, half as wide, as an operand
of the products for dV and dK.  Gradients of scores go to shared memory, too, where they are the
operand for dQ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import cutlass
from cutlass import Float32, Int32, cute

from flexfa4.kernels.backward.parameters import Parameters, anew
from flexfa4.kernels.backward.plan import STATISTICS
from flexfa4.kernels.backward.scores import KeyScores, Statistics, TileScores
from flexfa4.kernels.forward.tiles import TileShape
from flexfa4.kernels.sm100.backward.barriers import Barriers
from flexfa4.kernels.sm100.backward.load import Places, Rings
from flexfa4.kernels.sm100.backward.plan import BackwardPlan
from flexfa4.kernels.sm100.backward.storage import KEYS
from flexfa4.kernels.sm100.backward.tmem import Region
from flexfa4.primitives import tmem
from flexfa4.primitives.clusters import own_rank
from flexfa4.primitives.pipeline import Position
from flexfa4.primitives.shared_rows import SharedRow
from flexfa4.primitives.tile_walk import Visits

_LOADED: Final = 32  # columns of one load
_PART: Final = 8  # columns that are done before others where much is held of each
_FEWER: Final = 16  # columns of one load where registers are needed for a derivative
_STORED: Final = 16  # columns of dK or dV that a warpgroup moves at once
_HAND_OVER: Final = 2  # a named barrier of both warpgroups; 1 is that of those who reduce
_THREADS: Final = 256


@dataclass(frozen=True)
class Compute:
    """The role of a compute warpgroup.

    Attributes:
        plan: of the kernel.
        parameters: of the launch.
        rings: of loaded tiles.
        barriers: of the block.
        dtype: of the tensors.
        statistics: those of the first stage, of the warpgroup's first query, in shared memory.
        shared: address of dynamic shared memory.
        address: of tensor memory, in the lanes of the warp.
        group: which warpgroup: 0 or 1.
        row: the thread's key, in the block's tile.
        written: the mbarriers of the stages of K and V: dK and dV are in their places.
    """

    plan: BackwardPlan
    parameters: Parameters
    rings: Rings
    barriers: Barriers
    dtype: Any
    statistics: cute.Pointer
    shared: Int32
    address: Int32
    group: Int32
    row: Int32
    written: cute.Pointer

    @cute.jit
    def take_in(
        self, scores: KeyScores, tiles: Visits, at: Places, phase: Int32
    ) -> tuple[Places, Int32]:
        """Take in the tiles of queries of a head; return place and phase behind them."""
        for i in cutlass.range(tiles.partial_count, unroll=1):
            self._step(scores.at_tile(tiles.partial(i), True), at, phase)
            at = at.next()
            phase = phase ^ 1
        for i in cutlass.range(tiles.full_count, unroll=1):
            self._step(scores.at_tile(tiles.full(i), False), at, phase)
            at = at.next()
            phase = phase ^ 1
        return at, phase

    @cute.jit
    def _step(self, tile: TileScores, at: Places, phase: Int32) -> None:
        """Take in a tile of queries."""
        memory, columns = self.plan.tensor_memory, self.plan.fragment.columns
        s = cute.make_rmem_tensor(columns, Float32)
        self.rings.statistics.wait(at.statistics)
        self.barriers.wait("scores", phase)
        tmem.behind_barrier()
        self._load(memory.scores, s, 0)
        if cutlass.const_expr(memory.scores_until != "dv"):
            tmem.before_barrier()
            self.barriers.arrive("read")
        if cutlass.const_expr(memory.hands_over):
            self._hand_over()
        if cutlass.const_expr(self.plan.in_parts):
            self._in_parts(tile, s, at, phase)
        else:
            self._in_passes(tile, s, at, phase)
        space = "cta" if self.plan.tiling.blocks == 1 else "cluster"
        cute.arch.fence_proxy("async.shared", space=space)
        self.barriers.arrive("shared")
        with cute.arch.elect_one():
            self.rings.statistics.release(at.statistics)

    @cute.jit
    def _in_passes(self, tile: TileScores, s: Any, at: Places, phase: Int32) -> None:
        """Make all probabilities of a tile from its scores, and then all gradients."""
        memory, columns = self.plan.tensor_memory, self.plan.fragment.columns
        rounded = cute.make_rmem_tensor(columns, self.dtype)
        for first in cutlass.range_constexpr(0, columns, _LOADED):
            own = range(first, first + _LOADED)
            tile.probabilities(s, self._statistics(at.statistics, 0), rounded, own)
            part = cute.make_tensor(rounded.iterator + first, cute.make_layout(_LOADED))
            self._store(memory.probabilities, part, first)
        self._stored("probabilities")
        self.barriers.wait("changes", phase)
        tmem.behind_barrier()
        width = _LOADED if self._shares_late else _FEWER
        for first in cutlass.range_constexpr(0, columns, width):
            dp = cute.make_rmem_tensor(width, Float32)
            self._load(memory.changes, dp, first)
            tile.gradients(s, dp, self._statistics(at.statistics, 1), None, first)
            part = cute.make_tensor(rounded.iterator + first, cute.make_layout(width))
            part.store(dp.load().to(self.dtype))
            self._store(memory.gradients, part, first)
            if cutlass.const_expr(not self._shares_late):
                self._gradients_to_shared(part, first, phase)
        self._stored("gradients")
        if cutlass.const_expr(self._shares_late):
            for first in cutlass.range_constexpr(0, columns, _LOADED):
                part = cute.make_tensor(rounded.iterator + first, cute.make_layout(_LOADED))
                self._gradients_to_shared(part, first, phase)

    @cute.jit
    def _in_parts(self, tile: TileScores, s: Any, at: Places, phase: Int32) -> None:
        """Make probabilities and gradients of few scores, and then those of the next ones.

        What gradients for captured tensors need of each score besides is held for a part only.
        """
        memory, columns = self.plan.tensor_memory, self.plan.fragment.columns
        self.barriers.wait("changes", phase)
        tmem.behind_barrier()
        p = cute.make_rmem_tensor(columns, self.dtype)
        ds = cute.make_rmem_tensor(columns, self.dtype)
        for first in cutlass.range_constexpr(0, columns, _PART):
            lse, delta = (self._statistics(at.statistics, which) for which in range(2))
            tile.probabilities(s, lse, p, range(first, first + _PART))
            dp = cute.make_rmem_tensor(_PART, Float32)
            self._load(memory.changes, dp, first)
            tile.gradients(s, dp, delta, None, first)
            part = cute.make_tensor(ds.iterator + first, cute.make_layout(_PART))
            part.store(dp.load().to(self.dtype))
            self._store(memory.gradients, part, first)
            self._gradients_to_shared(part, first, phase)
            part = cute.make_tensor(p.iterator + first, cute.make_layout(_PART))
            self._store(memory.probabilities, part, first)
        self._stored("probabilities")
        self._stored("gradients")

    @cute.jit
    def _stored(self, name: str) -> None:
        """Arrive on a barrier behind what has been stored to tensor memory."""
        tmem.wait_for_stores()
        tmem.before_barrier()
        self.barriers.arrive(name)

    @cute.jit
    def _hand_over(self) -> None:
        """Let the second warpgroup write to where the first one has read scores."""
        tmem.before_barrier()
        if self.group == 0:
            cute.arch.barrier_arrive(barrier_id=_HAND_OVER, number_of_threads=_THREADS)
        else:
            cute.arch.barrier(barrier_id=_HAND_OVER, number_of_threads=_THREADS)
        tmem.behind_barrier()

    def _load(self, regions: tuple[Region, ...], target: Any, first: int) -> None:
        """Load products of the warpgroup's queries, from one of them on."""
        start = self._own(regions) + first
        width = min(_LOADED, cute.size(target))
        for part in range(0, cute.size(target), width):
            own = cute.make_tensor(target.iterator + part, cute.make_layout(width))
            tmem.load(start + part, own)
        tmem.wait_for_loads()

    def _store(self, regions: tuple[Region, ...], values: Any, first: int) -> None:
        """Store what the warpgroup has rounded, two queries to a column, from one of them on."""
        tmem.store(self._own(regions) + first // 2, values)

    def _own(self, regions: tuple[Region, ...]) -> Int32:
        """Return the address of the warpgroup's region."""
        first, second = (region.first for region in regions)
        # kept from tile to tile, each region's address would take a register
        return self.address + (first + anew(self.group) * (second - first))

    @property
    def _shares_late(self) -> bool:
        """Whether gradients go to shared memory when all of a tile have been computed.

        That gives the last dQ more time to be done; but where computing them takes long anyway,
        they would only take registers.
        """
        return self.plan.score.derivative is None

    def _gradients_to_shared(self, values: Any, first: int, phase: Int32) -> None:
        """Write gradients of scores of the thread's key to where the product for dQ reads them.

        Of two blocks, each reads all keys, with its half of the queries: those of a warpgroup.
        """
        if self.plan.tensor_memory.dq_is_last and first == 0:
            self.barriers.wait("dq", phase ^ 1)
        storage = self.plan.storage
        row = self._row_of(storage.ds, storage.ds_at, 0)
        blocks = self.plan.tiling.blocks
        if blocks == 1:
            row.put(self.group * self.plan.fragment.columns + first, values)
        else:
            row.of_block(self.group, self.row + own_rank(blocks) * KEYS).put(first, values)

    def _statistics(self, at: Position, which: int) -> Statistics:
        """Return one of the statistics of the warpgroup's queries."""
        queries = self.plan.tiling.queries
        place = self.statistics + (at.stage * (STATISTICS * queries) + which * queries)
        return Statistics(place, self.plan.fragment)

    def _row_of(self, tile: TileShape, start: int, stage: Any) -> SharedRow:
        """Return the thread's row of a tile in shared memory."""
        place = self.shared + (start + stage * tile.bytes)
        return SharedRow(place, tile.rows, tile.swizzle, self.row)

    # ---- dK and dV -------------------------------------------------------------------------------

    @cute.jit
    def write(self, some: Any, kv_at: Position, of_items: Int32) -> None:
        """Write dK and dV of an item to the places of K and V, and hand them to the storing warp.

        Args:
            some: the item has met queries; otherwise both are 0.
            kv_at: where K and V are.
            of_items: phase of what happens once for an item.
        """
        self.barriers.wait("sums", of_items)
        tmem.behind_barrier()
        storage, memory = self.plan.storage, self.plan.tensor_memory
        stage: Any = 0 if storage.k.stages == 1 else kv_at.stage
        # addresses that are the same for all items would take registers from the tiles of these
        here = replace(self, row=anew(self.row), group=anew(self.group))
        here._write(memory.dv, here._row_of(storage.v, storage.v_at, stage), None, some)
        scale = self.parameters.scale
        here._write(memory.dk, here._row_of(storage.k, storage.k_at, stage), scale, some)
        tmem.before_barrier()
        self.barriers.arrive("emptied")
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.written + kv_at.stage)

    @cute.jit
    def _write(self, sums: Region, row: SharedRow, factor: Any, some: Any) -> None:
        """Write the warpgroup's columns of dK or dV: every other few."""
        for first in cutlass.range_constexpr(0, sums.columns, 2 * _STORED):
            column = first + self.group * _STORED
            if cutlass.const_expr(first + _STORED < sums.columns):
                self._write_columns(sums, row, factor, some, column)
            else:
                if column < sums.columns:
                    self._write_columns(sums, row, factor, some, column)

    @cute.jit
    def _write_columns(
        self, sums: Region, row: SharedRow, factor: Any, some: Any, column: Int32
    ) -> None:
        part = cute.make_rmem_tensor(_STORED, Float32)
        part.fill(0.0)
        if some:
            tmem.load(self.address + (sums.first + column), part)
            tmem.wait_for_loads()
            if cutlass.const_expr(factor is not None):
                part.store(part.load() * factor)
        rounded = cute.make_rmem_tensor(_STORED, self.dtype)
        rounded.store(part.load().to(self.dtype))
        row.put(column, rounded)
