"""Small CuTe-DSL kernels as ours are: launched with tensor maps, pointers and numbers only.

CuTe-DSL reads a kernel's source, so they stand in a module of their own, without what tests add.
They are imported where cutlass is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync

from flexfa4.kernels.compile.signature import Float32, Int32, Pointer, TensorMap

THREADS = 128


class Scale:
    """Multiply a float32 matrix by a number: a block copies a tile to shared memory, and stores it.

    Attributes:
        signature: of the kernel.
    """

    def __init__(
        self,
        tile: tuple[int, int] = (16, 32),
        *,
        cluster: int = 1,
        shared_memory: int | None = None,
        change: Callable[[Any], Any] | None = None,
    ) -> None:
        """Describe a kernel.

        Args:
            tile: rows and columns that a block copies.
            cluster: blocks of a cluster.
            shared_memory: bytes; what is needed, where it is not said.
            change: of each number before it is stored, while the kernel is traced.
        """
        self.tile = tile
        self.cluster = cluster
        self.shared_memory = shared_memory
        self.change = change
        self.signature = (
            TensorMap("source", "f32", box=(tile[1], tile[0])),
            Pointer("target"),
            Int32("rows"),
            Int32("columns"),
            Float32("factor"),
        )

    @cute.jit
    def __call__(
        self,
        source: cute.Pointer,
        target: cute.Pointer,
        rows: cutlass.Int32,
        columns: cutlass.Int32,
        factor: cutlass.Float32,
    ) -> None:
        """Launch it."""
        tensor = cute.make_tensor(source, cute.make_layout((rows, columns), stride=(columns, 1)))
        layout = cute.make_layout(self.tile, stride=(self.tile[1], 1))
        copy, _ = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), tensor, layout, self.tile
        )
        self.kernel(copy, target, rows, columns, factor).launch(
            grid=[1, 1, 1],
            block=[THREADS, 1, 1],
            cluster=[self.cluster, 1, 1],
            smem=self.shared_memory,
        )

    @cute.kernel
    def kernel(
        self,
        copy: cute.CopyAtom,
        target: cute.Pointer,
        rows: cutlass.Int32,
        columns: cutlass.Int32,
        factor: cutlass.Float32,
    ) -> None:
        """Copy, multiply and store a tile."""
        block_row, block_column, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        shared = cutlass.memory.SmemAllocator()
        barrier = shared.allocate_array(cutlass.Int64, 1)
        layout = cute.make_layout(self.tile, stride=(self.tile[1], 1))
        tile = shared.allocate_tensor(cutlass.Float32, layout, 1024)
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(barrier, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.barrier()

        # coordinates of a map have its axes in order, the contiguous one first
        places = cute.make_identity_tensor((columns, rows))
        places = cute.make_tensor(places.iterator, cute.select(places.layout, mode=[1, 0]))
        to, at = cpasync.tma_partition(
            copy,
            0,
            cute.make_layout(1),
            cute.group_modes(tile, 0, 2),
            cute.group_modes(cute.local_tile(places, self.tile, (None, None)), 0, 2),
        )
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(
                    barrier, cute.size_in_bytes(cutlass.Float32, layout)
                )
            cute.copy(copy, at[(None, block_row, block_column)], to, tma_bar_ptr=barrier)
        cute.arch.mbarrier_wait(barrier, 0)

        numbers = cute.recast_ptr(target, dtype=cutlass.Float32)
        out = cute.make_tensor(numbers, cute.make_layout((rows, columns), stride=(columns, 1)))
        for index in cutlass.range(thread, cute.size(layout), THREADS):
            inside = (index // self.tile[1], index % self.tile[1])
            row = block_row * self.tile[0] + inside[0]
            column = block_column * self.tile[1] + inside[1]
            if row < rows and column < columns:
                number = tile[inside] * factor
                if cutlass.const_expr(self.change is not None):
                    number = self.change(number)
                out[row, column] = number


@dataclass(frozen=True)
class Mapped:
    """A kernel with one tensor map, and what CuTe-DSL is told of its tile in shared memory.

    Attributes:
        tile: rows and columns.
        swizzle: bytes, 0 for none.
        rank: axes of the tensor.
        rows_first: rows are contiguous in memory, and not columns.
        stores: it stores to the tensor, and does not load from it.
    """

    tile: tuple[int, int]
    swizzle: int
    rank: int = 2
    rows_first: bool = False
    stores: bool = False

    @cute.jit
    def __call__(
        self,
        tensor: cute.Pointer,
        sizes: tuple[cutlass.Int32, ...],
        strides: tuple[cutlass.Int64, ...],
    ) -> None:
        """Launch it; sizes and strides begin with the contiguous axis, whose stride is left out."""
        first = (0, 1) if self.rows_first else (1, 0)
        order = (*first, 2, 3, 4)[: self.rank]
        steps = (1, *strides)
        layout = cute.make_layout(
            tuple(sizes[axis] for axis in order), stride=tuple(steps[axis] for axis in order)
        )
        operation = cpasync.CopyBulkTensorTileG2SOp()
        if cutlass.const_expr(self.stores):
            operation = cpasync.CopyBulkTensorTileS2GOp()
        copy, _ = cpasync.make_tiled_tma_atom(
            operation,
            cute.make_tensor(tensor, layout),
            self.shared_layout(tensor.dtype.width // 8),
            self.tile,
        )
        self.kernel(copy).launch(grid=[1, 1, 1], block=[32, 1, 1])

    def shared_layout(self, nbytes: int) -> Any:
        """Return the layout of the tile in shared memory."""
        rows, columns = self.tile
        if not self.swizzle:
            stride = (1, rows) if self.rows_first else (columns, 1)
            return cute.make_layout(self.tile, stride=stride)
        width = self.swizzle // nbytes
        inner = (
            cute.make_layout((width, 8), stride=(1, width))
            if self.rows_first
            else cute.make_layout((8, width), stride=(width, 1))
        )
        bits = (16, 32, 64, 128).index(self.swizzle)
        swizzled = cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, inner)
        return cute.tile_to_shape(swizzled, self.tile, (0, 1))

    @cute.kernel
    def kernel(self, copy: cute.CopyAtom) -> None:
        """Touch the map."""
        cpasync.prefetch_descriptor(copy)


Scale.kernel.set_name_prefix("scale", remove_cutlass_symbol=True, keep_mangled_name=False)
Mapped.kernel.set_name_prefix("mapped", remove_cutlass_symbol=True, keep_mangled_name=False)
