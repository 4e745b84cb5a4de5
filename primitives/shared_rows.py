"""A thread's row of a tile in shared memory: numbers of 2 bytes to where TMA and tensor cores read.

A tile is stored in slabs as wide as its swizzle, each with all rows of the tile one after the other
(`flexfa4.kernels.forward.tiles`).  Writes 16 bytes at a time; the threads of a warp, a row each,
meet no bank twice where a row of a slab is at least 128 bytes.

Does not order its writes before those that read them: that takes a fence of the async proxy and a
barrier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from cutlass import Int32, cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm, vector

_UNIT: Final = 16  # bytes of a store
_ELEMENT: Final = 2  # bytes
_NUMBERS: Final = _UNIT // _ELEMENT
_LINE: Final = 7  # the exclusive-or of a swizzle takes the number of a line of 2**7 bytes
_UNIT_BITS: Final = 4
_OWN, _CLUSTER = "!llvm.ptr<3>", "!llvm.ptr<7>"  # shared memory of the block, and of its cluster


@dataclass(frozen=True)
class SharedRow:
    """A row of a tile.

    Attributes:
        start: address of the tile in shared memory, Int32.
        rows: of the tile.
        swizzle: bytes of a row of a slab: 128, 64 or 32.
        row: which row, Int32.
        block: of the cluster, whose shared memory it is; None for the own one.
    """

    start: Any
    rows: int
    swizzle: int
    row: Any
    block: Any = None

    def put(self, column: Any, values: Any) -> None:
        """Write columns that follow each other.

        Args:
            column: the first one, a multiple of 8; a number or Int32.
            values: in registers, elements of 2 bytes: so many times 8 that they lie in one slab.
        """
        slab = column * _ELEMENT // self.swizzle
        inside = column * _ELEMENT % self.swizzle
        line = self.row * self.swizzle
        turned = ((line >> _LINE) & (self.swizzle // _UNIT - 1)) << _UNIT_BITS
        for unit in range(cute.size(values) // _NUMBERS):
            place = (line + (inside + unit * _UNIT)) ^ turned
            part = cute.make_tensor(values.iterator + unit * _NUMBERS, cute.make_layout(_NUMBERS))
            bits = vector.bitcast(ir.VectorType.get([4], Int32.mlir_type), part.load().ir_value())
            address = self.start + slab * self.rows * self.swizzle + place
            space = _OWN if self.block is None else _CLUSTER
            pointer = llvm.inttoptr(ir.Type.parse(space), Int32(address).ir_value())
            llvm.store(bits, pointer, alignment=_UNIT)

    def of_block(self, block: Any, row: Any) -> SharedRow:
        """Return a row of the tile at the same address in a block of the cluster."""
        start = cute.arch.inline_ptx(
            "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};",
            write_only_types=[Int32],
            read_only_args=[Int32(self.start), Int32(block)],
        )
        return replace(self, start=start, row=row, block=block)
