"""2^x in kernels: on the exponential unit, or emulated (`exponentials`).

Emulation is of single numbers, or of pairs where there are instructions for these (`packed`): the
same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from cutlass import Float32
from cutlass._mlir.dialects import arith, llvm, math, nvvm
from cutlass.cutlass_dsl import T

from flexfa4.primitives import packed
from flexfa4.primitives.exponentials import (
    LEAST,
    MANTISSA_BITS,
    POLYNOMIALS,
    SHIFT,
    EmulatedFraction,
)
from flexfa4.primitives.packed import Pair
from flexfa4.primitives.registers import Value

_MAX_OR_NAN: Final = "max.NaN.f32 $0, $1, $2;"


def exp2(x: Float32) -> Float32:
    """Return 2^x by the exponential unit, within 2 ulp; less than 2^-126 is 0."""
    return Float32(_exp2(x.ir_value()))


def exp2_of_pair(x: Pair) -> Pair:
    """Return 2^x of two numbers by the exponential unit."""
    return packed.pair(*map(_exp2, packed.values(x)))


def _exp2(x: Value) -> Value:
    return math.exp2(x, fastmath=arith.FastMathFlags.fast)


def exp2_or_emulated(x: Float32, emulated: EmulatedFraction, index: int) -> Float32:
    """Return 2^x, emulated if that is the lot of the index-th number of a row."""
    return emulated_exp2(x, emulated.degree) if emulated.emulates(index) else exp2(x)


def emulated_exp2(x: Float32, degree: int) -> Float32:
    """Return 2^x without the exponential unit.

    Args:
        x: less than 128; minus infinity gives 0.
        degree: of the polynomial, one of `POLYNOMIALS`.
    """
    power, shifted = _power(_at_least(x, LEAST), degree, _OF_NUMBERS)
    return Float32(_scaled(power, shifted))


def emulated_exp2_of_pair(x: Pair, degree: int) -> Pair:
    """Return 2^x of two numbers without the exponential unit; takes what `emulated_exp2` does."""
    x = packed.pair(*(_at_least(number, LEAST) for number in packed.lanes(x)))
    power, shifted = _power(x, degree, _OF_PAIRS)
    pairs = zip(packed.lanes(power), packed.lanes(shifted), strict=True)
    return packed.pair(*(_scaled(number.ir_value(), e.ir_value()) for number, e in pairs))


class _Arithmetic(NamedTuple):
    """Instructions on numbers, or on pairs; other ones are the same for both."""

    constant: Callable[[float], Any]
    fma: Callable[[Any, Any, Any], Any]
    add_down: Callable[[Any, Any], Any]


def _number(x: float) -> Any:
    return Float32(x).ir_value()


def _add_down(a: Any, b: Any) -> Any:
    return nvvm.addf(a, b, rnd=nvvm.FPRoundingMode.RM)


_OF_NUMBERS: Final = _Arithmetic(_number, math.fma, _add_down)
_OF_PAIRS: Final = _Arithmetic(packed.both, packed.fma, packed.add_down)


def _power(x: Any, degree: int, on: _Arithmetic) -> tuple[Any, Any]:
    """Return 2 to the power of what x is above its floor, and a number with that in its last bits.

    Args:
        x: at least `LEAST`.
        degree: as before.
        on: what x is.
    """
    shift = on.constant(SHIFT)
    shifted = on.add_down(x, shift)
    fraction = arith.subf(x, arith.subf(shifted, shift))
    *rest, last = POLYNOMIALS[degree]
    power = on.constant(last)
    for coefficient in reversed(rest):
        power = on.fma(power, fraction, on.constant(coefficient))
    return power, shifted


def _at_least(x: Float32, least: float) -> Any:
    """Return the larger number; NaN stays."""
    operands = [x.ir_value(), Float32(least).ir_value()]
    return llvm.inline_asm(T.f32(), operands, _MAX_OR_NAN, "=f,f,f", has_side_effects=False)


def _scaled(number: Any, shifted: Any) -> Any:
    """Return a number times 2 to the power of the integer in the last bits of `shifted`."""
    bits, exponent = (arith.bitcast(T.i32(), value) for value in (number, shifted))
    places = arith.constant(T.i32(), MANTISSA_BITS)
    return arith.bitcast(T.f32(), arith.addi(bits, arith.shli(exponent, places)))
