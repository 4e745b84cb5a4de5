"""Small CuTe-DSL kernels whose launches the tests look at; imported where cutlass is installed.

CuTe-DSL reads a kernel's source, so they stand in a module of their own, without what tests add.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync

THREADS = 128


@cute.kernel
def add_kernel(
    left: cute.Tensor, right: cute.Tensor, total: cute.Tensor, count: cutlass.Int32
) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * THREADS + thread
    if index < count:
        total[index] = left[index] + right[index]


@cute.jit
def add(left: cute.Tensor, right: cute.Tensor, total: cute.Tensor, count: cutlass.Int32) -> None:
    """Add vectors, a thread for each element."""
    blocks = (count + THREADS - 1) // THREADS
    add_kernel(left, right, total, count).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1])


@cute.kernel
def ranks_kernel(ranks: cute.Tensor) -> None:
    block, _, _ = cute.arch.block_idx()
    thread, row, _ = cute.arch.thread_idx()
    if thread == 0 and row == 0:
        ranks[block] = cute.arch.block_idx_in_cluster()


@cute.jit
def ranks(
    out: cute.Tensor,
    blocks: cutlass.Constexpr,
    cluster: cutlass.Constexpr,
    shared_memory: cutlass.Constexpr,
    dependent: cutlass.Constexpr,
) -> None:
    """Write the rank of each block in its cluster."""
    ranks_kernel(out).launch(
        grid=[blocks, 1, 1],
        block=[32, 2, 1],
        cluster=[cluster, 1, 1],
        smem=shared_memory,
        use_pdl=dependent,
    )


@cute.kernel
def copy_kernel(
    load: cute.CopyAtom,
    source: cute.Tensor,
    store: cute.CopyAtom,
    target: cute.Tensor,
    layout: Any,
    tile: cutlass.Constexpr,
    element: cutlass.Constexpr,
) -> None:
    row, column, _ = cute.arch.block_idx()
    shared = cutlass.memory.SmemAllocator()
    barrier = shared.allocate_array(cutlass.Int64, 1)
    buffer = shared.allocate_tensor(element, layout, 1024)
    nbytes = cute.size_in_bytes(element, layout)
    with cute.arch.elect_one():
        cute.arch.mbarrier_init(barrier, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.barrier()
    flat = cute.group_modes(buffer, 0, 2)
    tiles = [
        cpasync.tma_partition(
            atom,
            0,
            cute.make_layout(1),
            flat,
            cute.group_modes(cute.local_tile(tensor, tile, (None, None)), 0, 2),
        )
        for atom, tensor in ((load, source), (store, target))
    ]
    (inside, loaded), (_, stored) = tiles
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, nbytes)
    cute.copy(load, loaded[(None, row, column)], inside, tma_bar_ptr=barrier)
    cute.arch.mbarrier_wait(barrier, 0)
    with cute.arch.elect_one():
        cute.copy(store, inside, stored[(None, row, column)])


@cute.jit
def copy(
    source: cute.Tensor,
    target: cute.Tensor,
    tile: cutlass.Constexpr,
    swizzle: cutlass.Constexpr,
) -> None:
    """Copy a matrix by tensor copies, a block for each tile.

    Args:
        source: the matrix to copy.
        target: where to; of the same shape and type.
        tile: rows and columns of a block's part.
        swizzle: None, or the three numbers of cute.make_swizzle.
    """
    plain = cute.make_layout(tile, stride=(tile[1], 1))
    layout = plain
    if cutlass.const_expr(swizzle is not None):
        layout = cute.make_composed_layout(cute.make_swizzle(*swizzle), 0, plain)
    load, seen = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), source, layout, tile
    )
    store, written = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileS2GOp(), target, layout, tile
    )
    copy_kernel(load, seen, store, written, layout, tile, source.element_type).launch(
        grid=cute.ceil_div((*source.layout.shape, 1), tile), block=[32, 1, 1], cluster=[1, 1, 1]
    )


@cute.jit
def with_fallback(out: cute.Tensor) -> None:
    """Launch with a cluster that the device may halve."""
    ranks_kernel(out).launch(
        grid=[8, 1, 1], block=[32, 1, 1], cluster=[4, 1, 1], fallback_cluster=[2, 1, 1]
    )


@cute.jit
def cooperating(out: cute.Tensor) -> None:
    """Launch blocks that all run at once, two on a multiprocessor."""
    ranks_kernel(out).launch(
        grid=[8, 1, 1], block=[32, 1, 1], smem=64, cooperative=True, min_blocks_per_mp=2
    )


@cute.jit
def host_only(number: cutlass.Int32) -> None:
    """Do nothing on the device."""
    number * 2
