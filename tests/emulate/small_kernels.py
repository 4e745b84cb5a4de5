"""Small CuTe-DSL kernels that the tests of this folder run; imported where cutlass is installed.

CuTe-DSL reads a kernel's source, so they stand in a module of their own.
"""

from __future__ import annotations

import cutlass
from cutlass import cute


@cute.kernel
def scale_kernel(source: cute.Tensor, target: cute.Tensor, factor: cutlass.Float32) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * 64 + thread
    target[index] = source[index] * factor


@cute.jit
def scale(
    source: cute.Tensor, target: cute.Tensor, factor: cutlass.Float32, blocks: cutlass.Int32
) -> None:
    """Multiply a vector by a number, a block for each 64 elements, in bounds or not."""
    scale_kernel(source, target, factor).launch(grid=[blocks, 1, 1], block=[64, 1, 1])


@cute.kernel
def greet_kernel(target: cute.Tensor) -> None:
    thread, _, _ = cute.arch.thread_idx()
    if thread == 1:
        cute.printf("thread %d says %d", thread, target[thread])


@cute.jit
def greet(target: cute.Tensor) -> None:
    """Print an element."""
    greet_kernel(target).launch(grid=[1, 1, 1], block=[32, 1, 1])
