"""What the maximum and the sum of a row mean while its keys are taken in; scalars of a kernel.

Shared by the forms of online softmax for GPUs: `row_softmax`, whose rows are spread over four
threads, and `whole_row_softmax`, whose rows have a thread each.  The recurrence is that of
`online_softmax`, in base 2; what is added to it is FlashAttention-4's conditional rescale (arXiv
2603.05451, section 3.1): sums and outputs stay relative to an older maximum until it is exceeded by
more than `tau`, so that most tiles rescale nothing.  Probabilities are then at most ``2^tau``; the
last normalisation makes the result exact.

An exponent is ``factor * score + shift`` less the maximum, by one fused multiply-add: ``factor *
score + offset``.  Without a shift the maximum is kept as a score, with one in base 2.

The product in an exponent is exact, and the maximum is rounded.  So the exponent of the largest
score is not 0, but what rounding took off: up to 64 if the maximum is 10^9, and more than any
exponent if it is 10^30.  All exponents of a row have that in common, and up to `HUGE` it does no
harm.  Beyond, scores that differ at all are so far apart that only the largest counts, and it does
not matter by how much they are stretched: the factor becomes a power of two, of which the product
with the maximum is not rounded (`relation`).  With a shift there is no such way; rounding the
maximum up keeps exponents from being large, and a row whose maximum is far beyond `HUGE` is 0.

A row that has seen nothing has a maximum of `LOWEST`, which is finite, and a sum of 0: no step
makes NaN of it, and none has to tell it from others.  Scores that are infinite, or are so in base
2, are told apart at the end of a row (`normalisation`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import cutlass
from cutlass import Boolean, Float32, Int32, cute
from cutlass._mlir.dialects import arith, llvm
from cutlass.cutlass_dsl import T

from flexfa4.primitives.device_exponentials import exp2
from flexfa4.primitives.exponentials import EmulatedFraction
from flexfa4.primitives.online_softmax import LN2

LOWEST: Final = -3.4028234663852886e38
"""The maximum of a row that has seen nothing: the lowest number of fp32."""

HUGE: Final = 2.0**27
"""Up to here, in base 2, rounding a maximum takes at most 4 off."""

_POWER: Final = 0x7F800000  # the bits of a number of fp32 that are its power of two


@dataclass(frozen=True)
class Ends:
    """What the end of a row needs to know.

    Attributes:
        unit: what makes its maximum a number of base 2; None if it is.
        constant: base 2: what is added to all of its scores besides; None for 0.
        sink: base 2: a logit that joins the sum; None for none.
    """

    unit: Float32 | None = None
    constant: Float32 | None = None
    sink: Float32 | None = None


def maximum_of(score: Float32, factor: Any, shift: Any) -> Float32:
    """Return the maximum that a score makes: itself, or in base 2 and rounded up with a shift."""
    if shift is None:
        return score
    operands = [Float32(x).ir_value() for x in (score, factor, shift)]
    return Float32(_asm("fma.rp.f32 $0, $1, $2, $3;", operands))


def change(maximum: Float32, largest: Float32, unit: Any) -> Float32:
    """Return the exponent, base 2, of what makes sums relative to another maximum.

    Sums are rescaled where it is less than minus `tau`.

    Args:
        maximum: what sums are relative to.
        largest: what they will be relative to: no less.
        unit: what makes both numbers of base 2; None if they are.
    """
    less = maximum - largest
    return less if unit is None else less * unit


def offset_of(shift: Float32, maximum: Float32) -> Float32:
    """Return the offset of exponents in a tile with a shift: rounded down."""
    operands = [Float32(x).ir_value() for x in (shift, maximum)]
    return Float32(_asm("sub.rm.f32 $0, $1, $2;", operands))


def is_huge(offset: Float32) -> Boolean:
    """Return whether a maximum is beyond `HUGE`: offsets are as large."""
    return cute.math.absf(offset) > HUGE


def relation(maximum: Float32, factor: Any) -> tuple[Float32, Float32]:
    """Return the factor and the offset of exponents, where the maximum is a score.

    Args:
        maximum: what exponents are relative to.
        factor: what makes numbers of base 2 of scores: positive.
    """
    offset = -(maximum * factor)
    huge = is_huge(offset)
    bits = arith.bitcast(T.i32(), Float32(factor).ir_value())
    power = arith.bitcast(T.f32(), arith.andi(bits, Int32(_POWER).ir_value()))
    # without an infinity: of `LOWEST` this is, and hidden scores are minus infinity
    exact = cute.arch.fmin(-(maximum * Float32(power)), Float32(-LOWEST))
    return (
        cutlass.select_(huge, Float32(power), Float32(factor)),
        cutlass.select_(huge, exact, offset),
    )


def sum_or_nan(total: Float32, emulated: EmulatedFraction) -> Float32:
    """Return the sum of a row: NaN if one of its scores was, of which emulation makes 2^128."""
    if not emulated.numerator:
        return total
    return cutlass.select_(total > 2.0**100, Float32.nan, total)


def normalisation(total: Float32, maximum: Float32, ends: Ends) -> tuple[Float32, Float32]:
    """Return what normalises a row, and its logarithm of the sum of exponentials.

    A row that saw nothing has 0 and minus infinity, or its sink.  So has one whose maximum is minus
    infinity in base 2; where it is infinity, they are NaN and infinity.

    Args:
        total: sum of its probabilities.
        maximum: what they are relative to.
        ends: of the row.
    """
    kept = Float32(1.0)
    if ends.unit is not None:
        maximum *= ends.unit
    if ends.constant is not None:
        maximum += ends.constant
    infinite, reference = maximum == Float32.inf, maximum
    if ends.sink is not None:
        reference = cute.arch.fmax(cute.arch.fmax(maximum, ends.sink), Float32(LOWEST))
        reference = cute.arch.fmin(reference, Float32(-LOWEST))
        kept = exp2(maximum - reference)
        total = total * kept + exp2(ends.sink - reference)
    lse = (reference + cute.math.log2(total, fastmath=True)) * LN2
    lse = cutlass.select_(infinite, Float32.inf, lse)
    inverse = cutlass.select_(infinite, Float32.nan, kept * cute.arch.rcp_approx(total))
    return cutlass.select_(lse == -Float32.inf, Float32(0.0), inverse), lse


def _asm(text: str, operands: list[Any]) -> Any:
    constraints = "=f" + ",f" * len(operands)
    return llvm.inline_asm(T.f32(), operands, text, constraints, has_side_effects=False)
