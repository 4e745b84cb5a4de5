"""Epilogue of the forward kernel: a warpgroup's output and lse to global memory.

The output goes through shared memory, from where TMA writes whole rows and leaves out what lies
beyond the last query.  Each warpgroup has its own part, so none waits for another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute

from flexfa4.kernels.forward.parameters import Parameters
from flexfa4.kernels.forward.tiles import ELEMENT
from flexfa4.kernels.sm90.forward.scores import ROWS, ItemScores
from flexfa4.kernels.sm90.forward.storage import Storage
from flexfa4.primitives import tma, wgmma
from flexfa4.primitives.pipeline import Position, Ring
from flexfa4.primitives.scheduler import Item


@dataclass(frozen=True)
class Epilogue:
    """What a warpgroup needs to write.

    Attributes:
        barrier: number of the first of the warpgroups' own named barriers.
    """

    storage: Storage
    base: cute.Pointer
    parameters: Parameters
    barrier: int
    warpgroup: Int32
    thread: Int32

    @cute.jit
    def write(self, item: Item, product: Any, out: Any, q_at: Position) -> None:
        """Write the rows of `out`, the normalised accumulator of `product`.

        Args:
            item: the item.
            product: the tiled product that it was accumulated by.
            out: fp32, 64 by Dv, in registers.
            q_at: position of the item's Q, whose place it may take.
        """
        start = self._start(q_at)
        self._wait_for_the_last_store()
        self._to_shared(product, out, start)
        cute.arch.fence_proxy("async.shared", space="cta")
        self._sync()
        if self.thread < wgmma.WARP:
            with cute.arch.elect_one():
                self._store(item, start)

    def _start(self, q_at: Position) -> cute.Pointer:
        start = self.base + self.storage.out_at // ELEMENT
        if not self.storage.out_takes_place_of_q:
            return start
        q = self.storage.q
        return start + cute.assume(q_at.stage * q.elements, divby=q.elements)

    def _store(self, item: Item, start: cute.Pointer) -> None:
        shape, tile = self.storage.out, self.parameters.plan.walk.shape
        box = wgmma.ROWS // tile.group
        first = item.q_tile * tile.queries + self.warpgroup * box
        query, last = self.parameters.place("q", first, box, item.batch)
        for slab in range(shape.slabs):
            rows_before = slab * shape.rows + self.warpgroup * wgmma.ROWS
            source = start + rows_before * shape.slab
            at = (slab * shape.slab, 0, query, item.head, last)
            tma.store(tma.address(self.parameters.maps.out), source, at)
        cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def release_q(self, ring: Ring, at: Position) -> None:
        """Give the place of Q back, where the output took it, once the output has left it."""
        if self.thread < wgmma.WARP:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        if self.thread % wgmma.WARP == 0:
            ring.release(at)

    @cute.jit
    def finish(self) -> None:
        """Wait until the last output has been read from shared memory; before the block ends."""
        if self.thread < wgmma.WARP:
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def _wait_for_the_last_store(self) -> None:
        if self.thread < wgmma.WARP:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        self._sync()

    def _sync(self) -> None:
        cute.arch.barrier(barrier_id=self.barrier + self.warpgroup, number_of_threads=wgmma.THREADS)

    def _to_shared(self, product: Any, out: Any, start: cute.Pointer) -> None:
        shape = self.storage.out
        dtype = self.base.dtype
        tiles = wgmma.tile(start, shape.rows, shape.columns, 1, shape.swizzle)
        tile = cute.local_tile(
            tiles[None, None, 0], (wgmma.ROWS, shape.columns), (self.warpgroup, 0)
        )
        rounded = cute.make_rmem_tensor_like(out, dtype)
        rounded.store(out.load().to(dtype))
        wgmma.to_shared(product, rounded, tile, self.thread)

    @cute.jit
    def write_lse(self, scores: ItemScores, lse: Any) -> None:
        """Write the logarithms of the sums of exponentials of the thread's rows."""
        if self.thread % 4 == 0:
            for row in cutlass.range_constexpr(ROWS):
                query = scores.queries[row]
                if query < self.parameters["q_len"]:
                    place = self.parameters.lse_of(scores.batch, scores.heads[row], query)
                    place.store(lse[row])
