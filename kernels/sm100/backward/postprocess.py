"""The kernel behind the main one: from the sums of dQ, in the order of accumulators, to dq.

A thread reads its sums, of a query, or where two blocks have computed together of half of the
columns of one in each part.  It rounds them, and TMA writes them from shared memory, leaving out
what lies beyond the last query.
"""

from __future__ import annotations

from typing import Any, Final

import cutlass
from cutlass import Float32, Int32, Int64, cute

from flexfa4.kernels.backward import dq
from flexfa4.kernels.backward.plan import PostprocessPlan
from flexfa4.primitives import tcgen05, tma
from flexfa4.primitives.shared_rows import SharedRow

_THREADS: Final = 128
_WARP: Final = 32
_COLUMNS: Final = 16  # that are read at once


class PostprocessKernel:
    """The kernel of a plan, to be traced by CuTe-DSL; its parameters are ``plan.signature``."""

    def __init__(self, plan: PostprocessPlan) -> None:
        self.plan = plan

    @cute.jit
    def __call__(self, pointers: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        """Launch; takes a pointer for the tensor map, and the other parameters."""
        (spec,) = self.plan.maps
        carrier = tma.parameter(pointers[0], spec.box, spec.swizzle)
        order = self.plan.order
        self.kernel(carrier, values).launch(
            grid=(1, 1, 1), block=(_THREADS, 1, 1), smem=2 * order.part * order.parts
        )

    @cute.kernel
    def kernel(self, carrier: Any, values: tuple[Any, ...]) -> None:
        """The device code."""
        order, plan = self.plan.order, self.plan
        sums, scale = values
        dtype = {"bf16": cutlass.BFloat16, "f16": cutlass.Float16}[plan.element]
        base = cute.recast_ptr(cute.arch.get_dyn_smem(cutlass.Int8, alignment=1024), dtype=dtype)
        thread, _, _ = cute.arch.thread_idx()
        tile, head, batch = cute.arch.block_idx()
        tiles, heads, _ = cute.arch.grid_dim()
        place = (Int64(batch) * heads + head) * tiles + tile
        start = cute.recast_ptr(sums, dtype=Float32) + place * (order.parts * order.part)
        shared, columns = tcgen05.address_of(base), order.part // _THREADS
        for part in cutlass.range_constexpr(order.parts):
            at = shared + 2 * part * order.part
            row = SharedRow(at, order.rows, plan.swizzle, thread % order.rows)
            for first in cutlass.range_constexpr(0, columns, _COLUMNS):
                found = cute.make_rmem_tensor(_COLUMNS, Float32)
                dq.read(dq.own_place(order, start + first * _THREADS, part, thread), found)
                rounded = cute.make_rmem_tensor(_COLUMNS, dtype)
                rounded.store((found.load() * Float32(scale)).to(dtype))
                row.put(thread // order.rows * columns + first, rounded)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        if thread < _WARP:
            with cute.arch.elect_one():
                self._store(carrier, base, (tile, head, batch))

    def _store(self, carrier: Any, base: cute.Pointer, at: tuple[Int32, Int32, Int32]) -> None:
        order, slab = self.plan.order, self.plan.slab
        tile, head, batch = at
        for part in range(order.parts):
            query = tile * order.queries + part * order.rows
            for i in range(order.columns // slab):
                source = base + (part * order.part + i * order.rows * slab)
                tma.store(tma.address(carrier), source, (0, query, i, head, batch))
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)
