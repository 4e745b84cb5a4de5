"""Epilogue of the backward kernel: dK and dV to global memory.

They take the places of K and V in shared memory.  A warp of its own, the storing warp, has TMA
write them from there, leaving out what lies beyond the last key, and gives the places back: so
consumers go on with the next tile of keys at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Float32, Int32, cute

from flexfa4.kernels.forward.tiles import ELEMENT, TileShape
from flexfa4.kernels.sm90.backward.consume import Consumer
from flexfa4.kernels.sm90.backward.load import Rings
from flexfa4.kernels.sm90.backward.parameters import Parameters
from flexfa4.kernels.sm90.backward.storage import Storage
from flexfa4.primitives import tma, wgmma
from flexfa4.primitives.pipeline import Position
from flexfa4.primitives.scheduler import Item


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


@dataclass(frozen=True)
class Storer:
    """The role of the storing warp.

    Attributes:
        storage: what lies where in shared memory.
        base, written: see `Epilogue`.
        parameters: of the launch.
        rings: those of K and V get their places back.
    """

    storage: Storage
    base: cute.Pointer
    parameters: Parameters
    rings: Rings
    written: cute.Pointer

    @cute.jit
    def store(self, item: Item, kv_at: Position) -> None:
        """Have dK and dV of an item written, and give the places of K and V back."""
        storage, maps = self.storage, self.parameters.maps
        cute.arch.mbarrier_wait(self.written + kv_at.stage, kv_at.parity)
        with cute.arch.elect_one():
            self._store(maps.dv, storage.v, storage.v_at, item, kv_at)
            self._store(maps.dk, storage.k, storage.k_at, item, kv_at)
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            self.rings.k.release(kv_at)
            self.rings.v.release(kv_at)

    def _store(self, tensor: Any, tile: TileShape, start: int, item: Item, kv_at: Position) -> None:
        place = cute.assume(kv_at.stage * tile.elements, divby=tile.elements)
        source = self.base + start // ELEMENT + place
        key: Int32 = item.q_tile * tile.rows
        tma.store(tma.address(tensor), source, (0, key, 0, item.head, item.batch))
