"""2^x in kernels: on the exponential unit, or emulated on pairs of numbers (`exponentials`)."""

from __future__ import annotations

from typing import Any, Final

from cutlass import Float32, cute
from cutlass._mlir.dialects import arith, llvm
from cutlass.cutlass_dsl import T

from flexfa4.primitives import packed
from flexfa4.primitives.exponentials import LEAST, MANTISSA_BITS, POLYNOMIALS, SHIFT
from flexfa4.primitives.packed import Pair

_MAX_OR_NAN: Final = "max.NaN.f32 $0, $1, $2;"


def exp2(x: Float32) -> Float32:
    """Return 2^x by the exponential unit, within 2 ulp; less than 2^-126 is 0."""
    return cute.math.exp2(x, fastmath=True)


def exp2_of_pair(x: Pair) -> Pair:
    """Return 2^x of two numbers by the exponential unit."""
    first, second = packed.lanes(x)
    return packed.pair(exp2(first), exp2(second))


def emulated_exp2_of_pair(x: Pair, degree: int) -> Pair:
    """Return 2^x of two numbers without the exponential unit.

    Args:
        x: less than 128; minus infinity gives 0.
        degree: of the polynomial, one of `POLYNOMIALS`.
    """
    x = packed.pair(*(_at_least(number, LEAST) for number in packed.lanes(x)))
    shift = packed.both(SHIFT)
    shifted = packed.add_down(x, shift)
    fraction = packed.sub(x, packed.sub(shifted, shift))
    *rest, last = POLYNOMIALS[degree]
    power = packed.both(last)
    for coefficient in reversed(rest):
        power = packed.fma(power, fraction, packed.both(coefficient))
    pairs = zip(packed.lanes(power), packed.lanes(shifted), strict=True)
    return packed.pair(*(_scaled(number, exponent) for number, exponent in pairs))


def _at_least(x: Float32, least: float) -> Any:
    """Return the larger number; NaN stays."""
    operands = [x.ir_value(), Float32(least).ir_value()]
    return llvm.inline_asm(T.f32(), operands, _MAX_OR_NAN, "=f,f,f", has_side_effects=False)


def _scaled(number: Float32, shifted: Float32) -> Any:
    """Return a number times 2 to the power of the integer in the last bits of `shifted`."""
    bits, exponent = (arith.bitcast(T.i32(), value.ir_value()) for value in (number, shifted))
    places = arith.constant(T.i32(), MANTISSA_BITS)
    return arith.bitcast(T.f32(), arith.addi(bits, arith.shli(exponent, places)))
