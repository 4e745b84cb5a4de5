"""Hopper's warpgroup matrix products: operands in shared memory or registers, issued in groups.

A warpgroup owns 64 rows.  Its accumulator of a product with N columns is, in each thread, 2 rows by
N/4 columns (PTX ISA, "Register fragments and shared memory layouts" of wgmma): thread ``t`` of a
warp holds rows ``t // 4`` and ``t // 4 + 8`` of the warp's 16, and of each 8 columns the two at
``2 * (t % 4)``.  `Rows` shows an accumulator in that form.

Issues products and shows fragments; does not wait, nor know what the products mean.
"""

from __future__ import annotations

from typing import Any, Final

from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode, warp, warpgroup

from flexfa4.primitives.registers import Numbers, Value

ROWS: Final = 64
"""Rows of a warpgroup's product."""

THREADS: Final = 128
"""Threads of a warpgroup."""

WARP: Final = 32
"""Threads of a warp."""

_SWIZZLES: Final = {
    128: warpgroup.SmemLayoutAtomKind.K_SW128,
    64: warpgroup.SmemLayoutAtomKind.K_SW64,
    32: warpgroup.SmemLayoutAtomKind.K_SW32,
}


def product(
    dtype: Any,
    columns: int,
    *,
    b_is_transposed: bool,
    a_in_registers: bool,
    a_is_transposed: bool = False,
) -> Any:
    """Return the tiled product of 64 rows by `columns`, accumulated in fp32.

    Args:
        dtype: of both operands, bf16 or fp16.
        columns: a multiple of 8, at most 256.
        b_is_transposed: B lies in memory with its columns side by side, rather than its depth.
        a_in_registers: A is a fragment rather than a tile in shared memory.
        a_is_transposed: A lies in memory with its rows side by side, rather than its depth.
    """
    operation = warpgroup.MmaF16BF16Op(
        dtype,
        Float32,
        (ROWS, columns, 16),
        warpgroup.OperandSource.RMEM if a_in_registers else warpgroup.OperandSource.SMEM,
        OperandMajorMode.MN if a_is_transposed else OperandMajorMode.K,
        OperandMajorMode.MN if b_is_transposed else OperandMajorMode.K,
    )
    return cute.make_tiled_mma(cute.make_mma_atom(operation))


def tile(pointer: cute.Pointer, rows: int, columns: int, stages: int, swizzle: int) -> Any:
    """Return the tensor ``(rows, columns, stages)`` of swizzled tiles that start at `pointer`."""
    atom = warpgroup.make_smem_layout_atom(_SWIZZLES[swizzle], pointer.dtype)
    layout = cute.tile_to_shape(atom, (rows, columns, stages), order=(0, 1, 2))
    swizzled = cute.recast_ptr(pointer, layout.inner, dtype=pointer.dtype)
    return cute.make_tensor(swizzled, layout.outer)


def transposed(tiles: Any) -> Any:
    """Return the view ``(columns, rows, stages)`` of tiles."""
    return cute.make_tensor(tiles.iterator, cute.select(tiles.layout, mode=[1, 0, 2]))


def issue(product: Any, accumulator: Any, a: Any, b: Any, *, accumulate: bool) -> None:
    """Issue ``accumulator (+)= a b`` over the depth of the operands, as one group."""
    # An atom is a value of the trace, so each group has its own: one that was set within a loop
    # must not be met behind it.
    atom = cute.make_mma_atom(product.op)
    atom.set(warpgroup.Field.ACCUMULATE, accumulate)
    warpgroup.fence()
    for k in range(cute.size(a, mode=[2])):
        cute.gemm(atom, accumulator, a[None, None, k], b[None, None, k], accumulator)
        atom.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


def wait(groups_in_flight: int) -> None:
    """Wait until at most so many of the groups issued last are not complete."""
    warpgroup.wait_group(groups_in_flight)


class Rows:
    """A thread's part of an accumulator, ``(2, N/4)``: its numbers by row and column.

    Attributes:
        columns: of a thread: N/4.
        numbers: all of them, as the accumulator has them.
    """

    def __init__(self, accumulator: Any) -> None:
        self.numbers = Numbers(accumulator)
        self.columns = len(self.numbers) // 2

    def place(self, row: int, column: int) -> int:
        """Return where a number is among `numbers`."""
        return column // 2 * 4 + 2 * row + column % 2

    def value(self, row: int, column: int) -> Value:
        """Return a number as a value of MLIR."""
        return self.numbers.value(self.place(row, column))

    def set(self, row: int, column: int, value: Value) -> None:
        """Set a number to a value of MLIR."""
        self.numbers.set(self.place(row, column), value)

    # see `Numbers`

    def __extract_mlir_values__(self) -> list[Any]:
        return []

    def __new_from_mlir_values__(self, values: list[Any]) -> Any:
        return self


def operand_of(accumulator: Any, dtype: Any) -> Any:
    """Return registers for the values of an accumulator as A of the next product.

    A depth of 16 takes two neighbouring groups of 8 columns: ``((2, 2, 2), 1, N/16)``.
    """
    depth = cute.size(accumulator) // 8
    layout = cute.make_layout(((2, 2, 2), 1, depth), stride=((1, 2, 4), 0, 8))
    return cute.make_rmem_tensor(layout, dtype)


def round_to(operand: Any, accumulator: Any) -> None:
    """Set the operand of the next product to the values of an accumulator, rounded.

    A depth at a time: vectors whose lengths are powers of two stay packed in registers, others are
    packed anew behind the fence of the product, and ptxas then runs products one by one.
    """
    for k in range(cute.size(operand, mode=[2])):
        values = cute.make_tensor(accumulator.iterator + 8 * k, cute.make_layout(8))
        rounded = cute.make_tensor(operand.iterator + 8 * k, cute.make_layout(8))
        rounded.store(values.load().to(operand.element_type))


def settle(operand: Any) -> None:
    """Have an operand in registers computed here, and not once more where it is used.

    A compiler that finds another use of the values before may convert them again for a product
    behind its fence, where registers of A must not be written.
    """
    words = cute.recast_tensor(operand, Int32)
    for i in range(cute.size(words)):
        words[i] = cute.arch.inline_ptx(
            "mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[words[i]]
        )


def to_shared(
    product: Any, values: Any, tile: Any, thread: Int32, *, transposed: bool = False
) -> None:
    """Write a warpgroup's accumulator, rounded, to a tile in shared memory.

    Args:
        product: the tiled product that it was accumulated by.
        values: in registers, in the order of the accumulator, and of the tile's dtype.
        tile: ``(64, columns)``; its columns lie side by side.
        thread: in the warpgroup.
        transposed: the rows of the tile lie side by side instead.
    """
    matrices = 4 if cute.size(values) % 8 == 0 else 2
    atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transposed, matrices), tile.element_type)
    copy = cute.make_tiled_copy_C(atom, product).get_slice(thread)
    cute.copy(atom, copy.retile(values), copy.partition_D(tile))


def column_of(index: int) -> int:
    """Return the column of element `index` of a thread's row, left of what the lane adds."""
    return index // 2 * 8 + index % 2
