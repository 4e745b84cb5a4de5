"""Blocks of a cluster: which one a thread is of."""

from __future__ import annotations

from cutlass import Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T


def own_rank(blocks: int) -> Int32 | int:
    """Return the rank of the thread's block in its cluster of so many blocks.

    It is read where it is asked for: kept, it would take a register from loops that have none left.
    """
    if blocks == 1:
        return 0
    return Int32(
        llvm.inline_asm(T.i32(), [], "mov.u32 $0, %cluster_ctarank;", "=r", has_side_effects=True)
    )
