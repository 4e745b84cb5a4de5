"""How often each number occurs: atomics in shared memory, and the block that comes last adds up.

Each block writes its counts to global memory; a counter tells it which one it is to come.
"""

from __future__ import annotations

import cutlass
from cutlass import cute

BINS = 64
THREADS = 64


@cute.kernel
def kernel(x: cute.Tensor, counts: cute.Tensor, parts: cute.Tensor, arrived: cute.Tensor) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    shared = cutlass.memory.SmemAllocator()
    bins = shared.allocate_array(cutlass.Int32, BINS)
    before = shared.allocate_array(cutlass.Int32, 1)
    (bins + thread).store(cutlass.Int32(0))
    cute.arch.sync_threads()
    for index in cutlass.range(block * THREADS + thread, cute.size(x), blocks * THREADS, unroll=1):
        cute.arch.atomic_add((bins + x[index]).llvm_ptr, cutlass.Int32(1))
    cute.arch.sync_threads()
    parts[block, thread] = (bins + thread).load()
    cute.arch.sync_threads()
    if thread == 0:
        cute.arch.fence_acq_rel_gpu()
        before.store(cute.arch.atomic_add(arrived.iterator.llvm_ptr, cutlass.Int32(1)))
        cute.arch.fence_acq_rel_gpu()
    cute.arch.sync_threads()
    if before.load() == blocks - 1:
        total = cutlass.Int32(0)
        for other in cutlass.range(blocks, unroll=1):
            total += parts[other, thread]
        counts[thread] = total


@cute.jit
def histogram(
    x: cute.Tensor,
    counts: cute.Tensor,
    parts: cute.Tensor,
    arrived: cute.Tensor,
) -> None:
    """Count the numbers of x, from 0 to 63; int32.

    Args:
        x: numbers.
        counts: (64,), how often each occurs.
        parts: (blocks, 64), the same of each block's share.
        arrived: (1,), zero before.
    """
    kernel(x, counts, parts, arrived).launch(grid=[parts.shape[0], 1, 1], block=[THREADS, 1, 1])
