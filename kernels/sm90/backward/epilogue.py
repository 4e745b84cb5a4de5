"""Epilogue of the backward kernel: dK and dV to shared memory.

They take the places of K and V, from where the storing warp has them written
(`flexfa4.kernels.backward.store`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Float32, cute

from flexfa4.kernels.forward.tiles import ELEMENT, TileShape
from flexfa4.kernels.sm90.backward.consume import Consumer
from flexfa4.primitives import wgmma
from flexfa4.primitives.pipeline import Position


@dataclass(frozen=True)
class Epilogue:
    """What a warpgroup writes its part to shared memory with.

    Attributes:
        consumer: the warpgroup.
        base: start of shared memory, of the tensors' dtype.
        written: the mbarriers of the stages of K and V, on which the consuming warps arrive.
    """

    consumer: Consumer
    base: cute.Pointer
    written: cute.Pointer

    @cute.jit
    def write(self, kv_at: Position) -> None:
        """Write the part of dK and dV of an item, and hand it to the storing warp."""
        consumer, operands = self.consumer, self.consumer.operands
        storage = consumer.storage
        consumer.sync()  # all products that read K and V are complete
        self._to_shared(operands.dv, operands.sum_v, storage.v, storage.v_at, Float32(1.0))
        scale = consumer.parameters.scale
        self._to_shared(operands.dk, operands.sum_k, storage.k, storage.k_at, scale)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        if consumer.thread % wgmma.WARP == 0:
            cute.arch.mbarrier_arrive(self.written + kv_at.stage)

    def _to_shared(
        self, product: Any, sums: Any, tile: TileShape, at: int, factor: Float32
    ) -> None:
        consumer = self.consumer
        tiling, warpgroup = consumer.parameters.plan.tiling, consumer.warpgroup
        dtype, columns = self.base.dtype, tiling.gradient_columns(tile.columns)
        start = self.base + at // ELEMENT
        whole = wgmma.tile(start, tile.rows, tile.columns, tile.stages, tile.swizzle)
        number = (warpgroup, 0) if tiling.by_keys else (0, warpgroup)
        own = cute.local_tile(whole[None, None, consumer.kv_stage], (wgmma.ROWS, columns), number)
        rounded = cute.make_rmem_tensor_like(sums, dtype)
        rounded.store((sums.load() * factor).to(dtype))
        wgmma.to_shared(product, rounded, own, consumer.thread)
