"""Hiding the columns of a row outside of limits, where a thread has the whole row.

A word of 32 bits says which of 32 columns are visible.  For limits, two shifts make one, whatever
the limits are, and the machine takes predicates from its bits several at a time; what is left for
each score is the selection.  Comparisons would be one or two more instructions for each.
"""

from __future__ import annotations

from typing import Final

import cutlass
from cutlass import Float32, Int32
from cutlass._mlir.dialects import arith, llvm
from cutlass.cutlass_dsl import T

from flexfa4.primitives.registers import Numbers

WORD: Final = 32
"""Columns of a word of bits."""


def visible_word(begin: Int32 | None, end: Int32 | None, first: int) -> Int32:
    """Return a bit for each of 32 columns: whether it is within limits.

    Args:
        begin: the first visible column, None for no limit; it may lie anywhere.
        end: the column behind the last visible one, likewise.
        first: the column of the lowest bit.
    """
    bits = Int32(-1)
    if begin is not None:
        bits = _from(begin - first)
    if end is not None:
        bits = bits & ~_from(end - first)
    return bits


def hide_outside(scores: Numbers, begin: Int32 | None, end: Int32 | None) -> None:
    """Set the scores outside of limits to minus infinity.

    Args:
        scores: of a row.
        begin: see `visible_word`; of the first score the column is 0.
        end: likewise.
    """
    for first in range(0, len(scores), WORD):
        hide(scores, visible_word(begin, end, first), first)


def hide(scores: Numbers, bits: Int32, first: int) -> None:
    """Set the scores whose bits are 0 to minus infinity.

    Args:
        scores: of a row.
        bits: a bit for each of 32 columns.
        first: the column of the lowest bit.
    """
    word, none = bits.ir_value(), Int32(0).ir_value()
    hidden = Float32(-Float32.inf).ir_value()
    for column in range(first, min(first + WORD, len(scores))):
        bit = arith.andi(word, Int32(1 << (column - first)).ir_value())
        visible = arith.cmpi(arith.CmpIPredicate.ne, bit, none)
        scores.set(column, arith.select(visible, scores.value(column), hidden))


def _from(column: Int32) -> Int32:
    """Return the bits from a column on: all for negative ones, none from 32 on.

    The shift of PTX gives 0 where it is by 32 or more.
    """
    least = cutlass.max(column, 0)
    operands = [Int32(-1).ir_value(), Int32(least).ir_value()]
    asm = "shl.b32 $0, $1, $2;"
    return Int32(llvm.inline_asm(T.i32(), operands, asm, "=r,r,r", has_side_effects=False))
