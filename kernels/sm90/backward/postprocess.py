"""The kernel behind the main one: from the sums of dQ, in the order of accumulators, to dq.

A warpgroup has a part of a tile: it reads the sums as its accumulators, rounds them, and TMA writes
them from shared memory, leaving out what lies beyond the last query.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from flexfa4.kernels.backward import dq
from flexfa4.kernels.backward.plan import PostprocessPlan
from flexfa4.kernels.sm90.backward.plan import WARPGROUP_ROWS
from flexfa4.primitives import tma, wgmma


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
            grid=(1, 1, 1), block=(order.parts * wgmma.THREADS, 1, 1),
            smem=2 * order.parts * order.part,
        )  # fmt: skip

    @cute.kernel
    def kernel(self, carrier: Any, values: tuple[Any, ...]) -> None:
        """The device code."""
        order = self.plan.order
        sums, scale = values
        dtype = {"bf16": cutlass.BFloat16, "f16": cutlass.Float16}[self.plan.element]
        base = cute.recast_ptr(cute.arch.get_dyn_smem(cutlass.Int8, alignment=1024), dtype=dtype)
        thread, _, _ = cute.arch.thread_idx()
        part = cute.arch.make_warp_uniform(thread // wgmma.THREADS)
        tile, head, batch = cute.arch.block_idx()
        tiles, heads, _ = cute.arch.grid_dim()
        place = (Int64(batch) * heads + head) * tiles + tile
        start = cute.recast_ptr(sums, dtype=Float32) + place * (order.parts * order.part)
        own = dq.own_place(order, start, part, thread % wgmma.THREADS)
        product = wgmma.product(dtype, order.columns, b_is_transposed=True, a_in_registers=False)
        found = cute.make_rmem_tensor(
            product.partition_shape_C((wgmma.ROWS, order.columns)), Float32
        )
        dq.read(own, found)
        rounded = cute.make_rmem_tensor_like(found, dtype)
        rounded.store((found.load() * Float32(scale)).to(dtype))
        target = base + cute.assume(part * order.part, divby=order.part)
        shared = wgmma.tile(target, wgmma.ROWS, order.columns, 1, self.plan.swizzle)
        wgmma.to_shared(product, rounded, shared[None, None, 0], thread % wgmma.THREADS)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.barrier(barrier_id=1 + part, number_of_threads=wgmma.THREADS)
        if thread % wgmma.THREADS < wgmma.WARP:
            with cute.arch.elect_one():
                self._store(carrier, target, part, (tile, head, batch))

    def _store(
        self, carrier: Any, source: cute.Pointer, part: Int32, at: tuple[Int32, Int32, Int32]
    ) -> None:
        order, slab = self.plan.order, self.plan.slab
        tile, head, batch = at
        across = order.head_dim // order.columns
        row = tile * order.queries + part // across * WARPGROUP_ROWS
        first = part % across * (order.columns // slab)
        for i in range(order.columns // slab):
            tma.store(
                tma.address(carrier),
                source + i * WARPGROUP_ROWS * slab,
                (0, row, first + i, head, batch),
            )
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)
