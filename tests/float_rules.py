"""Floating-point arithmetic as the PTX ISA and IEEE 754 define it, with exact fractions.

    encode(F32, Fraction(1, 3), "rm")                     # the bits of 1/3 rounded down
    rounded(F16, "fma", (a, b, c), ftz=True, sat=True)    # operands and result are bits

An operand is read as the number that it stands for, the result is computed without error, and then
rounded once.  Slow and obvious: the reference that the execution core is held to.

What this module deliberately does not do: tell which NaN an operation gives; `NAN` stands for any.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

NAN = -1
"""What `encode` returns for NaN."""


@dataclass(frozen=True)
class Format:
    """A floating-point format.

    Attributes:
        name: as PTX spells it.
        exponent: bits of the exponent.
        mantissa: bits of the mantissa.
        bias: of the exponent.
        infinite: whether the greatest exponent means infinity and NaN.
        greatest: bits of the greatest number.
    """

    name: str
    exponent: int
    mantissa: int
    bias: int
    infinite: bool
    greatest: int

    @property
    def sign(self) -> int:
        """The bit of the sign."""
        return 1 << (self.exponent + self.mantissa)

    @property
    def infinity(self) -> int:
        """Bits of infinity."""
        return self.greatest + 1

    @property
    def least(self) -> int:
        """Exponent of the least normal number."""
        return 1 - self.bias


F64 = Format("f64", 11, 52, 1023, True, (0x7FF << 52) - 1)
F32 = Format("f32", 8, 23, 127, True, 0x7F7FFFFF)
F16 = Format("f16", 5, 10, 15, True, 0x7BFF)
BF16 = Format("bf16", 8, 7, 127, True, 0x7F7F)
TF32 = Format("tf32", 8, 10, 127, True, 0x3FBFF)
E4M3 = Format("e4m3", 4, 3, 7, False, 0x7E)
E5M2 = Format("e5m2", 5, 2, 15, True, 0x7B)
E2M3 = Format("e2m3", 2, 3, 1, False, 0x1F)
E3M2 = Format("e3m2", 3, 2, 3, False, 0x1F)
E2M1 = Format("e2m1", 2, 1, 1, False, 0x7)


def decode(of: Format, bits: int) -> float:
    """Return the number that bits stand for; every format fits into f64."""
    magnitude = bits & (of.sign - 1)
    sign = -1.0 if bits & of.sign else 1.0
    if magnitude > of.greatest:
        return sign * math.inf if of.infinite and magnitude == of.infinity else math.nan
    exponent, fraction = divmod(magnitude, 1 << of.mantissa)
    if exponent == 0:
        return sign * math.ldexp(fraction, of.least - of.mantissa)
    significand = fraction + (1 << of.mantissa)
    return sign * math.ldexp(significand, exponent - of.bias - of.mantissa)


def _count_units(units: Fraction, mode: str, negative: bool, random_bits: Fraction) -> int:
    """Round a number of units in the last place, given without its sign."""
    whole = math.floor(units)
    rest = units - whole
    away = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
        "rna": rest >= Fraction(1, 2),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
        "rs": rest + random_bits >= 1,
    }[mode]
    return whole + away


def _unit(of: Format, magnitude: Fraction, *, unbounded: bool = False) -> Fraction:
    """Return the unit in the last place of a number."""
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    return Fraction(2) ** ((exponent if unbounded else max(exponent, of.least)) - of.mantissa)


def encode(
    to: Format,
    number: Fraction | float,
    mode: str = "rn",
    *,
    negative_zero: bool = False,
    finite: bool = False,
    random_bits: Fraction = Fraction(0),
) -> int:
    """Round a number to a format.

    Args:
        to: the format.
        number: exact; a float stands for infinity and NaN, and for numbers that are floats.
        mode: rn, rz, rm, rp, rna, or rs with `random_bits`.
        negative_zero: the sign of zero.
        finite: as .satfinite: the greatest number instead of infinity.
        random_bits: a fraction of the unit in the last place.

    Returns:
        The bits, or `NAN`.
    """
    if isinstance(number, float):
        if math.isnan(number):
            return NAN
        if math.isinf(number):
            limit = to.greatest if finite else to.infinity
            return limit | (to.sign if number < 0 else 0)
        return encode(
            to,
            Fraction(number),
            mode,
            negative_zero=math.copysign(1, number) < 0,
            finite=finite,
            random_bits=random_bits,
        )
    if number == 0:
        return to.sign if negative_zero else 0
    negative, magnitude = number < 0, abs(number)
    sign = to.sign if negative else 0
    unit = _unit(to, magnitude)
    units = _count_units(magnitude / unit, mode, negative, random_bits)
    # exponent fields count from the least normal number, and a carry goes into them by itself
    steps = (unit / (Fraction(2) ** (to.least - to.mantissa))).numerator.bit_length() - 1
    bits = units + (steps << to.mantissa)
    if bits <= to.greatest:
        return sign | bits
    towards_zero = mode == "rz" or mode == ("rp" if negative else "rm")
    return sign | (to.greatest if finite or towards_zero else to.infinity)


def is_tiny(to: Format, number: Fraction, mode: str) -> bool:
    """Whether .ftz makes zero of a result: it is subnormal when exponents have no end."""
    magnitude = abs(number)
    unit = _unit(to, magnitude, unbounded=True)
    units = _count_units(magnitude / unit, mode, number < 0, Fraction(0))
    return units * unit < Fraction(2) ** to.least


def flushed(of: Format, number: float) -> float:
    """Make zero of a subnormal number."""
    return math.copysign(0.0, number) if abs(number) < 2.0**of.least else number


# ---- operations ---------------------------------------------------------------------------------


def _product(a: float, b: float) -> float:
    return math.nan if (a == 0 and math.isinf(b)) or (b == 0 and math.isinf(a)) else a * b


def _quotient(a: float, b: float) -> float:
    sign = math.copysign(1, a) * math.copysign(1, b)
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else sign * math.inf
    return a / b


def _special_root(a: float) -> float:
    return math.nan if a < 0 else math.sqrt(a) if a < math.inf else a


# what each operation makes of numbers that are not finite, and of those that are
_SPECIAL: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": _product,
    "fma": lambda a, b, c: _product(a, b) + c,
    "div": _quotient,
    "rcp": lambda a: _quotient(1.0, a),
    "sqrt": _special_root,
}
_EXACT: dict[str, Callable[..., Fraction]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
    "div": lambda a, b: a / b,
    "rcp": lambda a: 1 / a,
}
# the addends whose exact sum may be zero
_ADDENDS: dict[str, Callable[..., tuple[float, float]]] = {
    "add": lambda a, b: (a, b),
    "sub": lambda a, b: (a, -b),
    "fma": lambda a, b, c: (math.copysign(1, a) * math.copysign(1, b), c),
}


def _root(a: Fraction) -> Fraction:
    """Return a root, with so many bits that rounding it is rounding the exact one."""
    shift = 160 + (a.denominator.bit_length() - a.numerator.bit_length()) // 2
    scaled = a * Fraction(4) ** shift
    whole = math.isqrt(math.floor(scaled))
    return (whole + Fraction(whole * whole != scaled, 2)) / Fraction(2) ** shift


def _zero_is_negative(op: str, operands: Sequence[float], mode: str) -> bool:
    """The sign of an exact zero."""
    if op not in _ADDENDS:
        signs = [math.copysign(1, operand) for operand in operands]
        return math.prod(signs) < 0
    first, second = (math.copysign(1, addend) for addend in _ADDENDS[op](*operands))
    return first < 0 if first == second else mode == "rm"


def computed(
    to: Format, op: str, operands: Sequence[float], mode: str = "rn", *, ftz: bool = False
) -> int:
    """Return the bits of an operation on numbers, or `NAN`."""
    defined = op not in ("div", "rcp") or operands[-1] != 0
    if not all(map(math.isfinite, operands)) or not defined:
        return encode(to, _SPECIAL[op](*operands))
    if op == "sqrt":
        (a,) = operands
        if a <= 0:
            return encode(to, a if a == 0 else math.nan)
        exact = _root(Fraction(a))
    else:
        exact = _EXACT[op](*map(Fraction, operands))
    negative_zero = _zero_is_negative(op, operands, mode)
    if ftz and exact != 0 and is_tiny(to, exact, mode):
        return to.sign if exact < 0 else 0
    return encode(to, exact, mode, negative_zero=negative_zero)


def clamped(of: Format, bits: int, *, sat: bool = False, relu: bool = False) -> int:
    """Apply .sat or .relu to a result."""
    number = math.nan if bits == NAN else decode(of, bits)
    if sat:
        return encode(of, min(number, 1.0)) if number > 0 else 0
    return 0 if relu and number <= 0 else bits


# ---- operands -----------------------------------------------------------------------------------


def operands(of: Format, seed: str) -> Iterator[int]:
    """Yield bits without end: special numbers, and random ones whose exponents are often near."""
    generator = random.Random(f"{of.name} {seed}")
    low, high = 1 << of.mantissa, of.greatest
    special = [0, 1, low - 1, low, low + 1, high, high - 1, encode(of, 1.0), encode(of, 1.0) + 1]
    special += [of.infinity, of.infinity + 1, of.sign - 1] if of.infinite else []
    middle = encode(of, 1.0) >> of.mantissa
    near = min(12, middle - 1)
    while True:
        sign = of.sign * generator.getrandbits(1)
        kind = generator.randrange(4)
        if kind == 0:
            yield sign | generator.choice(special)
        elif kind == 1:
            yield sign | generator.randrange(high + 1)
        else:
            exponent = middle + generator.randint(-near, near)
            if kind == 3 and of.exponent > 5:  # where products underflow
                exponent = middle // 2 + generator.randint(-near, near)
            yield sign | exponent << of.mantissa | generator.randrange(low)
