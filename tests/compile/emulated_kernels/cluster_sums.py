"""Sums of rows whose parts lie with the blocks of a cluster, through distributed shared memory.

Of each row, every block sums its part and sends it to all of them by asynchronous stores; all
blocks add up what they got.  There are two buffers: a block tells the others when it has read one.
In the end the first block reads the other blocks' totals from their shared memory.
"""

from __future__ import annotations

import operator

import cutlass
from cutlass import cute

BLOCKS = 4  # of the cluster
THREADS = 32
BUFFERS = 2


@cute.kernel
def kernel(x: cute.Tensor, sums: cute.Tensor, total: cute.Tensor) -> None:
    lane, _, _ = cute.arch.thread_idx()
    rank = cute.arch.block_idx_in_cluster()
    shared = cutlass.memory.SmemAllocator()
    full = shared.allocate_array(cutlass.Int64, BUFFERS)
    empty = shared.allocate_array(cutlass.Int64, BUFFERS)
    parts = shared.allocate_array(cutlass.Int32, BUFFERS * BLOCKS)
    kept = shared.allocate_array(cutlass.Int32, 1)
    if lane == 0:
        for buffer in cutlass.range_constexpr(BUFFERS):
            cute.arch.mbarrier_init(full + buffer, 1)
            cute.arch.mbarrier_init(empty + buffer, BLOCKS)
        cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()
    cute.arch.cluster_wait()

    mine = cutlass.Int32(0)
    for row in cutlass.range(x.shape[0], unroll=1):
        buffer = row % BUFFERS
        part = cute.arch.warp_reduction(x[row, rank * THREADS + lane], operator.add)
        mine += part
        if lane == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(full + buffer, 4 * BLOCKS)
        cute.arch.mbarrier_wait(empty + buffer, (row // BUFFERS + 1) % 2)
        if lane < BLOCKS:
            cute.arch.store_async_dsmem(parts + buffer * BLOCKS + rank, part, full + buffer, lane)
        cute.arch.mbarrier_wait(full + buffer, row // BUFFERS % 2)
        got = cutlass.Int32(0)
        if lane < BLOCKS:
            got = (parts + buffer * BLOCKS + lane).load()
        got = cute.arch.warp_reduction(got, operator.add)
        cute.arch.sync_warp()
        if lane < BLOCKS:
            cute.arch.mbarrier_arrive(empty + buffer, lane)
        if lane == 0 and row % BLOCKS == rank:
            sums[row] = got

    if lane == 0:
        kept.store(mine)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if rank == 0 and lane < BLOCKS:
        cute.arch.atomic_add(total.iterator.llvm_ptr, cute.arch.map_dsmem_ptr(kept, lane).load())
    # shared memory is there until all have read it
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def cluster_sums(x: cute.Tensor, sums: cute.Tensor, total: cute.Tensor) -> None:
    """Write the sums of the rows of x (rows, 128), and add them all to `total`; int32."""
    kernel(x, sums, total).launch(
        grid=[BLOCKS, 1, 1], block=[THREADS, 1, 1], cluster=[BLOCKS, 1, 1]
    )
