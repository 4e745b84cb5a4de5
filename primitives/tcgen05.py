"""Blackwell's matrix products: operands in shared or tensor memory, accumulators in tensor memory.

One thread issues a product; the tensor core takes products of a block in the order in which they
were issued, and a *commit* arrives on an mbarrier when all that were issued before it are done.
Operands in shared memory are described by 64 bits (PTX ISA, "Shared memory descriptor" of tcgen05):
the address, how far the next piece is along either axis, and the swizzle.

Issues and commits; does not wait, nor know what the products mean.  Tensor memory is `tmem`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cutlass import Boolean, Int16, Int32, Uint32, cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm, nvvm, vector
from cutlass.cutlass_dsl import T

from flexfa4.primitives import tmem

DEPTH: Final = 16
"""Elements of bf16 or fp16 along the depth of one product."""

_GROUPS: Final = {1: nvvm.CTAGroupKind.CTA_1, 2: nvvm.CTAGroupKind.CTA_2}
_NBYTES: Final = 2  # of an element
_UNIT: Final = 4  # addresses and distances count 16 bytes
_GROUP: Final = 8  # lines of the canonical layouts
_SWIZZLES: Final = {128: 2, 64: 4, 32: 6}
_BF16: Final = 1
_F32: Final = 1


def instruction(
    element: str,
    rows: int,
    columns: int,
    *,
    b_is_transposed: bool,
    a_is_transposed: bool = False,
) -> int:
    """Return the instruction descriptor of products of bf16 or fp16, accumulated in fp32.

    Args:
        element: of both operands: ``bf16`` or ``f16``.
        rows: 64 or 128; of both blocks of a pair together, 256.
        columns: a multiple of 16, at most 256.
        b_is_transposed: B lies in memory with its columns side by side, rather than its depth.
        a_is_transposed: A lies in shared memory with its rows side by side, rather than its depth.
    """
    kind = _BF16 if element == "bf16" else 0
    return (
        _F32 << 4
        | kind << 7
        | kind << 10
        | int(a_is_transposed) << 15
        | int(b_is_transposed) << 16
        | columns // 8 << 17
        | rows // 16 << 24
    )


@dataclass(frozen=True)
class SharedTile:
    """A tile in shared memory as an operand, in slabs of `swizzle` bytes with `rows` rows each.

    Attributes:
        start: its address in shared memory, Int32; a multiple of 8 times the swizzle.
        rows: of the tile, and of each of its slabs.
        swizzle: bytes of a row of a slab: 128, 64 or 32.
        transposed: the depth of products runs along the rows, rather than along the columns.
    """

    start: Any
    rows: int
    swizzle: int
    transposed: bool = False

    def step(self, index: int) -> Any:
        """Return the descriptor of the operand of product `index`, a depth of 16 each."""
        slab = self.rows * self.swizzle
        if self.transposed:
            offset, leading = index * DEPTH * self.swizzle, slab
        else:
            slabs, inside = divmod(index * DEPTH * _NBYTES, self.swizzle)
            offset, leading = slabs * slab + inside, 0
        low = (Int32(self.start) >> _UNIT) + (offset >> _UNIT | leading >> _UNIT << 16)
        high = (
            _GROUP * self.swizzle >> _UNIT  # from 8 lines to the next 8
            | 1 << 14  # the version of the descriptor
            | _SWIZZLES[self.swizzle] << 29
        )
        halves = [low.ir_value(), Uint32(high).ir_value()]
        return llvm.bitcast(T.i64(), vector.from_elements(ir.VectorType.get([2], T.i32()), halves))


@dataclass(frozen=True)
class TensorTile:
    """A tile in tensor memory as an operand A: a row to a lane, two elements to a column.

    Attributes:
        start: address of its first column.
    """

    start: Any

    def step(self, index: int) -> Any:
        """Return the operand of product `index`, a depth of 16 each."""
        return tmem.pointer(self.start + index * DEPTH // 2)


def issue(
    descriptor: int,
    accumulator: Any,
    a: SharedTile | TensorTile,
    b: SharedTile,
    steps: range,
    accumulate: Boolean | bool,
    blocks: int = 1,
) -> None:
    """Issue ``accumulator (+)= a b`` over a part of the depth; one thread.

    Args:
        descriptor: see `instruction`.
        accumulator: address of its first column in tensor memory.
        a: rows by depth.
        b: depth by columns.
        steps: which products, each over a depth of 16.
        accumulate: the first one adds to the accumulator, rather than overwriting it.
        blocks: that compute together: of two, each has its own rows of A and of the accumulator,
            and half of the columns of B; addresses are the same in both.
    """
    target = tmem.pointer(accumulator)
    for step in steps:
        nvvm.tcgen05_mma(
            nvvm.Tcgen05MMAKind.F16,
            _GROUPS[blocks],
            target,
            a.step(step),
            b.step(step),
            Int32(descriptor).ir_value(),
            Boolean(accumulate if step == steps[0] else True).ir_value(),
        )


def commit(barrier: cute.Pointer, blocks: int = 1) -> None:
    """Arrive on an mbarrier once all products that this thread has issued are done.

    Args:
        barrier: of this block.
        blocks: that compute together: of two, on that mbarrier of each.
    """
    everyone = None if blocks == 1 else Int16((1 << blocks) - 1).ir_value()
    nvvm.tcgen05_commit(barrier.to_llvm_ptr(), multicast_mask=everyone, group=_GROUPS[blocks])


def address_of(pointer: cute.Pointer) -> Int32:
    """Return the address in shared memory that a pointer holds."""
    return Int32(llvm.ptrtoint(Int32.mlir_type, pointer.to_llvm_ptr()))
