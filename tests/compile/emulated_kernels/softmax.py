"""Softmax of rows in base 2: warps reduce by shuffles, and the block through shared memory.

Base 2 makes results exact: of whole numbers, powers and their sum are exact, which leaves one
reciprocal and one product to round.
"""

from __future__ import annotations

import operator

import cutlass
from cutlass import cute

WARPS = 4
THREADS = 32 * WARPS
EACH = 4  # elements of a row for each thread


@cute.jit
def of_block(
    value: cutlass.Float32, places: cute.Tensor, combine: cutlass.Constexpr
) -> cutlass.Float32:
    """Return what all threads' values combine to; `places` has a number for each warp."""
    thread, _, _ = cute.arch.thread_idx()
    value = cute.arch.warp_reduction(value, combine)
    if thread % 32 == 0:
        places[thread // 32] = value
    cute.arch.sync_threads()
    total = places[0]
    for other in cutlass.range_constexpr(1, WARPS):
        total = combine(total, places[other])
    return total


@cute.kernel
def kernel(x: cute.Tensor, y: cute.Tensor) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    shared = cutlass.memory.SmemAllocator()
    maxima = shared.allocate_tensor(cutlass.Float32, cute.make_layout(WARPS))
    sums = shared.allocate_tensor(cutlass.Float32, cute.make_layout(WARPS))
    source, target = cute.zipped_divide(x, (1, EACH)), cute.zipped_divide(y, (1, EACH))
    held = cute.make_rmem_tensor(EACH, cutlass.Float32)
    for row in cutlass.range(block, x.shape[0], blocks, unroll=1):
        cute.autovec_copy(source[((0, None), (row, thread))], held)
        numbers = held.load()
        maximum = of_block(
            numbers.reduce(cute.ReductionOp.MAX, -cutlass.Float32.inf, 0), maxima, cute.arch.fmax
        )
        powers = cute.math.exp2(numbers - maximum, fastmath=True)
        total = of_block(
            powers.reduce(cute.ReductionOp.ADD, cutlass.Float32(0), 0), sums, operator.add
        )
        held.store(powers * cute.arch.rcp_approx(total))
        cute.autovec_copy(held, target[((0, None), (row, thread))])


@cute.jit
def softmax(x: cute.Tensor, y: cute.Tensor, blocks: cutlass.Constexpr) -> None:
    """Write the softmax of each row of x (rows, 512) to y, by this many blocks."""
    kernel(x, y).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1])
