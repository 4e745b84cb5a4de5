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
_STORED: Final = 16  # columns of dK or dV that a warpgroup moves at once


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
        rounded = cute.make_rmem_tensor(columns, self.dtype)
        self.rings.statistics.wait(at.statistics)
        self.barriers.wait("scores", phase)
        tmem.behind_barrier()
        self._load(memory.scores, s, 0)
        for first in cutlass.range_constexpr(0, columns, _LOADED):
            own = range(first, first + _LOADED)
            tile.probabilities(s, self._statistics(at.statistics, 0), rounded, own)
            part = cute.make_tensor(rounded.iterator + first, cute.make_layout(_LOADED))
            self._store(memory.probabilities, part, first)
        tmem.wait_for_stores()
        tmem.before_barrier()
        self.barriers.arrive("probabilities")
        self.barriers.wait("changes", phase)
        tmem.behind_barrier()
        for first in cutlass.range_constexpr(0, columns, _LOADED):
            dp = cute.make_rmem_tensor(_LOADED, Float32)
            self._load(memory.changes, dp, first)
            tile.gradients(s, dp, self._statistics(at.statistics, 1), None, first)
            part = cute.make_tensor(rounded.iterator + first, cute.make_layout(_LOADED))
            part.store(dp.load().to(self.dtype))
            self._store(memory.gradients, part, first)
            self._gradients_to_shared(part, first)
        tmem.wait_for_stores()
        space = "cta" if self.plan.tiling.blocks == 1 else "cluster"
        cute.arch.fence_proxy("async.shared", space=space)
        tmem.before_barrier()
        self.barriers.arrive("gradients")
        with cute.arch.elect_one():
            self.rings.statistics.release(at.statistics)

    def _load(self, regions: tuple[Region, ...], target: Any, first: int) -> None:
        """Load products of the warpgroup's queries, from one of them on."""
        start = self._own(regions) + first
        for part in range(0, cute.size(target), _LOADED):
            own = cute.make_tensor(target.iterator + part, cute.make_layout(_LOADED))
            tmem.load(start + part, own)
        tmem.wait_for_loads()

    def _store(self, regions: tuple[Region, ...], values: Any, first: int) -> None:
        """Store what the warpgroup has rounded, two queries to a column, from one of them on."""
        tmem.store(self._own(regions) + first // 2, values)

    def _own(self, regions: tuple[Region, ...]) -> Int32:
        """Return the address of the warpgroup's region."""
        first, second = (region.first for region in regions)
        return self.address + (first + self.group * (second - first))

    def _gradients_to_shared(self, values: Any, first: int) -> None:
        """Write gradients of scores of the thread's key to where the product for dQ reads them.

        Of two blocks, each reads all keys, with its half of the queries: those of a warpgroup.
        """
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
