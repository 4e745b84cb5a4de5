"""Sums of the gradients of captured tensors, as the warps that compute scores make them.

*Of keys.*  Each thread has the sums of its keys in registers, from the first tile of queries of
a head to the last: what the load of a share reads for a key, or for all of them.  Behind the tiles
the threads of a row join theirs, and write them: no two blocks write the same number, so
nothing has to be cleared, and results do not depend on who comes first.

*Of queries*: summed over the keys of a warp for each tile, and added in global memory by an atomic
addition for each query, in no particular order.

*Of distances*, from a key to a query: what a relative bias reads.  Far from the diagonal most of
them read one and the same element, and then a warp adds one number for a tile: for that, before the
products of the tile are there, its lanes look at what all of its distances read.  Otherwise each
thread adds the sums of its distances.  Both ways are taken without a branch, which would part the
products on either side of it.

*Of elements*: what is read in any other way gets an atomic addition for each score, at the place in
the sums that the element has in its tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass._mlir.dialects import arith, llvm

from flexfa4.frontend.ir import Node
from flexfa4.kernels.backward.fragment import LANES
from flexfa4.kernels.backward.parameters import Parameters
from flexfa4.kernels.emit import builders as make
from flexfa4.kernels.emit.evaluator import Frame, TraceTime
from flexfa4.kernels.emit.places import Columns, Row
from flexfa4.primitives.device_arithmetic import DEVICE


class CapturedSums(TraceTime):
    """The sums of the shares of a score mod, for the keys of a thread and the queries of a head.

    Args:
        parameters: of the launch.
        batch, head: of the queries.
        first_key: of the thread.
        part: which of the warpgroups that have the same keys this is.
    """

    def __init__(
        self,
        parameters: Parameters,
        batch: Int32,
        head: Int32,
        first_key: Int32,
        part: Int32 | int,
    ) -> None:
        self._parameters = parameters
        self._fragment = parameters.plan.fragment
        self._shares = parameters.plan.score.shares
        self._batch, self._head, self._part = batch, head, part
        self._first_key = first_key
        self._of_keys = cute.make_rmem_tensor((self._fragment.rows, len(self._shares)), Float32)
        self._of_keys.fill(0.0)
        self._of_tile: dict[int, dict[int, Float32]] = {}
        self._alike: dict[int, Boolean] = {}

    def begin_tile(self, origin: Int32) -> None:
        """Look at what the distances of a tile read.

        Args:
            origin: position of the thread's first column.
        """
        self._of_tile = {i: {} for i, s in enumerate(self._shares) if s.over in _OF_TILE}
        for i, share in enumerate(self._shares):
            if share.over == "distance":
                self._alike[i] = self._reads_one(share.load, origin)

    def add(self, share: int, row: int, column: int, value: Float32) -> None:
        """Take what a score contributes; see `flexfa4.kernels.emit.gradient_sites.Sink`."""
        over = self._shares[share].over
        if over in _OF_KEYS:
            self._of_keys[row, share] = self._of_keys[row, share] + value
            return
        place = column
        if over == "distance":
            place = self._fragment.column_of(column) - self._fragment.row_step * row
        sums = self._of_tile[share]
        sums[place] = sums[place] + value if place in sums else value

    def add_to_element(self, share: int, place: Any, value: Float32) -> None:
        """Take what it contributes to an element; see there, too."""
        target = make.unwrap(self._start(share).toint(), "i64")
        element = Int64(arith.addi(target, place))
        _add_where(Boolean(value != 0.0), element, value)  # what is hidden adds nothing

    def finish_tile(self, origin: Int32) -> None:
        """Add the sums of a tile, or of a part of it, to those in global memory.

        Args:
            origin: as before.
        """
        for share, sums in self._of_tile.items():
            if self._shares[share].over == "query":
                self._add_queries(share, sums, origin)
            else:
                self._add_distances(share, sums, origin)
            sums.clear()

    def _add_queries(self, share: int, sums: dict[int, Float32], origin: Int32) -> None:
        length = self._parameters["q_len"]
        columns = sorted(sums)
        values = [sums[column] for column in columns]
        own, first = _over_rows(values, self._fragment.sharing)
        start = self._start(share) + self._pair * length
        for i, total in enumerate(own):
            place = first + (columns[0] + i)
            query = origin + self._fragment.column_of(place)
            _add_where(query < length, (start + query).toint(), total)

    def _add_distances(self, share: int, sums: dict[int, Float32], origin: Int32) -> None:
        p, alike = self._parameters, self._alike[share]
        tiling = p.plan.tiling
        keys, queries = _padded(p["kv_len"], tiling.keys), _padded(p["q_len"], tiling.queries)
        start = self._start(share) + self._pair * (keys + queries) + keys
        distance = origin - self._first_key
        whole = cute.arch.warp_reduction_sum(_sum(list(sums.values())))
        first = cute.arch.lane_idx() == 0
        _add_where(Boolean(alike & first), (start + distance).toint(), whole)
        for offset, total in sums.items():
            # what is 0 may be of a key or a query that does not exist
            _add_where(Boolean((alike == Boolean(False)) & (total != 0.0)),
                       (start + (distance + offset)).toint(), total)  # fmt: skip

    def _reads_one(self, load: Node, origin: Int32) -> Boolean:
        """Return whether all distances of the warp's part of a tile read the same element."""
        p, lane, fragment = self._parameters, cute.arch.lane_idx(), self._fragment
        query = origin - fragment.first_column(lane)
        key = self._first_key - lane // fragment.sharing
        before = fragment.warp_rows - 1
        distances = before + fragment.columns * fragment.sharing
        frame = Frame(p.score_fixed(self._batch, self._head, Columns((0,))))
        alike = Boolean(True)
        found: list[list[Int32]] = [[] for _ in load.args]
        for start in range(0, distances, LANES):
            place = cutlass.min(lane + start, Int32(distances - 1)) - before
            row = Row(key + cutlass.max(-place, Int32(0)))
            tile = frame.with_rows([row]).at_tile(query + cutlass.max(place, Int32(0)), True)
            for values, index in zip(found, load.args, strict=True):
                if index.depends & {"q", "kv"}:
                    values.append(Int32(make.resized(tile.evaluate(index, 0, 0), "i32")))
        for values in filter(None, found):
            least, most = values[0], values[0]
            for value in values[1:]:
                least, most = cutlass.min(least, value), cutlass.max(most, value)
            reduce = cute.arch.warp_redux_sync
            alike = Boolean(alike & (reduce(least, "min") == reduce(most, "max")))
        return alike

    @cute.jit
    def write(self) -> None:
        """Write the sums of the thread's keys."""
        length = self._parameters["kv_len"]
        parts, fragment = self._parameters.plan.parts, self._fragment
        for share in cutlass.range_constexpr(len(self._shares)):
            if cutlass.const_expr(self._shares[share].over in _OF_KEYS):
                for row in cutlass.range_constexpr(fragment.rows):
                    total = self._of_keys[row, share]
                    for distance in cutlass.range_constexpr(fragment.sharing.bit_length() - 1):
                        total += cute.arch.shuffle_sync_bfly(total, offset=1 << distance)
                    key = self._first_key + fragment.row_step * row
                    if (cute.arch.lane_idx() % fragment.sharing == 0) & (key < length):
                        place = (self._pair * parts + self._part) * length + key
                        (self._start(share) + place).store(total)

    def _start(self, share: int) -> cute.Pointer:
        return cute.recast_ptr(self._parameters[f"share{share}"], dtype=Float32)

    @property
    def _pair(self) -> Int64:
        """The number of the pair of batch and head."""
        return Int64(self._batch) * self._parameters["heads"] + self._head


_OF_KEYS: Final = ("pair", "key")
"""Sums of a thread's keys, from the first tile to the last."""
_OF_TILE: Final = ("query", "distance")
"""Sums that are added up tile by tile."""


def _padded(length: Int32, tile: int) -> Int32:
    """Return a length rounded up to whole tiles."""
    return Int32(DEVICE.quotient(length + (tile - 1), tile)) * tile


def _sum(values: Sequence[Float32]) -> Float32:
    """Return a sum, in pairs: the longest chain of additions is short."""
    while len(values) > 1:
        pairs = [a + b for a, b in zip(values[::2], values[1::2], strict=False)]
        values = [*pairs, *values[len(pairs) * 2 :]]
    return values[0]


def _over_rows(values: list[Float32], sharing: int) -> tuple[list[Float32], Int32]:
    """Return sums over the rows of a warp: each lane those of some columns that follow each other.

    Lanes of different rows share the columns out between them, halving what each has to add.

    Args:
        values: of the lane's columns, at least as many as lanes have different rows.
        sharing: lanes that have the same rows.

    Returns:
        The sums, and the index of the first one's column.
    """
    lane, first, distance = cute.arch.lane_idx(), Int32(0), LANES // 2
    while distance >= sharing:
        half = len(values) // 2
        upper = (lane & distance) != 0
        kept = [cutlass.select_(upper, values[half + i], values[i]) for i in range(half)]
        given = [cutlass.select_(upper, values[i], values[half + i]) for i in range(half)]
        values = [
            Float32(k) + cute.arch.shuffle_sync_bfly(Float32(g), offset=distance)
            for k, g in zip(kept, given, strict=True)
        ]
        first += cutlass.select_(upper, Int32(half), Int32(0))
        distance //= 2
    return values, first


def _add_where(holds: Boolean, address: Int64, value: Float32) -> None:
    """Add to a number in global memory where a condition holds, without a branch."""
    llvm.inline_asm(
        None,
        [Int32(holds).ir_value(), address.ir_value(), value.ir_value()],
        "{ .reg .pred p; setp.ne.s32 p, $0, 0; @p red.relaxed.gpu.global.add.f32 [$1], $2; }",
        "r,l,f",
        has_side_effects=True,
    )
