"""The transpose of a matrix: `cp.async` fills one buffer while the other one is read."""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync

ROWS = 16  # of a tile
COLUMNS = 32
EACH = 4  # elements that a thread copies at once
THREADS = ROWS * COLUMNS // EACH
BUFFERS = 2


@cute.kernel
def kernel(x: cute.Tensor, y: cute.Tensor) -> None:
    thread, _, _ = cute.arch.thread_idx()
    shared = cutlass.memory.SmemAllocator()
    buffers = shared.allocate_tensor(
        cutlass.Int32,
        cute.make_layout((ROWS, COLUMNS, BUFFERS), stride=(COLUMNS, 1, ROWS * COLUMNS)),
        16,
    )
    bring = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Int32, num_bits_per_copy=32 * EACH)
    source = cute.zipped_divide(x, (1, EACH))
    target = cute.zipped_divide(buffers, (1, EACH))
    row, piece = thread // (COLUMNS // EACH), thread % (COLUMNS // EACH)
    tiles = x.shape[0] // ROWS
    for tile in cutlass.range(tiles + 1, unroll=1):
        if tile < tiles:
            cute.copy(
                bring,
                source[((0, None), (tile * ROWS + row, piece))],
                target[((0, None), (row, piece, tile % BUFFERS))],
            )
        cute.arch.cp_async_commit_group()
        if tile > 0:
            cute.arch.cp_async_wait_group(1)
            cute.arch.sync_threads()
            for step in cutlass.range_constexpr(EACH):
                column = thread // ROWS + step * (COLUMNS // EACH)
                y[column, (tile - 1) * ROWS + thread % ROWS] = buffers[
                    thread % ROWS, column, (tile - 1) % BUFFERS
                ]
            cute.arch.sync_threads()


@cute.jit
def transpose(x: cute.Tensor, y: cute.Tensor) -> None:
    """Write the transpose of x (rows, 32) to y, by one block; rows are a multiple of 16; int32."""
    kernel(x, y).launch(grid=[1, 1, 1], block=[THREADS, 1, 1])
