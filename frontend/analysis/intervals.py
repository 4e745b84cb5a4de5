"""Interval rules: sound bounds of each op's result from bounds of its operands.

An `Interval` holds every value that a node can take: ``lo <= value <= hi`` for all values that are
not NaN, and `nan` tells whether NaN is possible.  A rule may be loose; it may never be wrong.

The type of the ends is the dtype: Python ints for i32 (within 64 bits), floats for f32 and Python
bools for bool, so that one rule serves all dtypes of an op (``~True`` is False, ``~1`` is -2).

*Rounding.*  f32 results are evaluated in fp32 on some devices and in fp64 on others, and with the
approximate instructions of a GPU, while the ends here are computed in fp64.  So each f32 result is
widened outwards: by 2^-20 of its size (fp32 rounds to 2^-24; exp2 and rsqrt units err by 2^-22), by
the smallest normal fp32 (results may be flushed to zero), and to infinity beyond the largest fp32.
Rounding never changes a result's sign, so widening stops at zero.

*Overflow.*  Where an i32 result could leave 64 bits, it could wrap to anything: the result is
`ANY_I32`.  The same holds where devices differ: division by zero, shifts by less than 0 or more
than 63, a float outside 64 bits (or NaN) made an integer.  The sign of zero is not distinguished,
hence 1/x with x in [0, 1] can also be -inf.

One function for each row of the ops table; `ops` refers to them.  Evaluation of a whole graph is
`bounds.bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

Number: TypeAlias = "int | float"


@dataclass(frozen=True)
class Interval:
    """All values from `lo` to `hi`, both included, and NaN if `nan`.

    Attributes:
        lo: least value: an int for i32, a float (or -inf) for f32, a bool for bool.
        hi: greatest value, of the same type.
        nan: whether NaN is possible; always False for i32 and bool.
    """

    lo: Number
    hi: Number
    nan: bool = False

    def __contains__(self, value: Number) -> bool:
        return self.nan if value != value else self.lo <= value <= self.hi

    @property
    def decided(self) -> bool:
        """Whether only one value is possible."""
        return self.lo == self.hi and not self.nan

    @property
    def finite(self) -> bool:
        """Whether neither NaN nor an infinity is possible."""
        return not self.nan and self.lo > -_INF and self.hi < _INF

    def within(self, lo: Number, hi: Number) -> bool:
        """Return whether every possible value is in ``lo ... hi``."""
        return not self.nan and lo <= self.lo and self.hi <= hi


_INF: Final = math.inf
_I64_LO, _I64_HI = -(2**63), 2**63 - 1
_F32_MAX: Final = 3.4028234663852886e38
_F32_TINY: Final = 1.1754943508222875e-38
_RELATIVE: Final = 2.0**-20
_RELATIVE_POW: Final = 2.0**-14  # exp2(y * log2 x): the error of log2 times up to 128
_RELATIVE_TANH: Final = 2.0**-10  # the hardware's tanh
_ABSOLUTE_LOG: Final = 2.0**-20  # logarithms near 1 and expm1 near 0 err absolutely

ANY_F32: Final = Interval(-_INF, _INF, True)
ANY_I32: Final = Interval(_I64_LO, _I64_HI)
ANY_BOOL: Final = Interval(False, True)
TRUE: Final = Interval(True, True)
FALSE: Final = Interval(False, False)


def point(value: Number) -> Interval:
    """Return the interval of one value; an f32 also covers its rounding to fp32."""
    if isinstance(value, float):
        return ANY_F32 if value != value else _rounded(value, value)
    return Interval(value, value)


def union(a: Interval, b: Interval) -> Interval:
    """Return the least interval that holds both."""
    return Interval(a.lo if a.lo <= b.lo else b.lo, a.hi if a.hi >= b.hi else b.hi, a.nan or b.nan)


# ---- making results ------------------------------------------------------------------------------


def _rounded(
    lo: float,
    hi: float,
    nan: bool = False,
    relative: float = _RELATIVE,
    absolute: float = _F32_TINY,
) -> Interval:
    """Return an f32 result, widened as the module docstring says; NaN ends mean unbounded."""
    if lo != lo:
        lo = -_INF
    elif lo >= 0:
        lo = max(0.0, lo * (1 - relative) - absolute) if lo < _INF else lo
    else:
        lo = lo * (1 + relative) - absolute
    if hi != hi:
        hi = _INF
    elif hi <= 0:
        hi = min(0.0, hi * (1 - relative) + absolute) if hi > -_INF else hi
    else:
        hi = hi * (1 + relative) + absolute
    # lo may stay above the largest fp32: then the value is at least lo in fp64 and inf in fp32
    return Interval(-_INF if lo < -_F32_MAX else lo, _INF if hi > _F32_MAX else hi, nan)


def _whole(lo: Number, hi: Number) -> Interval:
    """Return an i32 result that is exact unless it overflows."""
    return Interval(lo, hi) if lo >= _I64_LO and hi <= _I64_HI else ANY_I32


def _is_float(a: Interval) -> bool:
    return isinstance(a.lo, float)


def _is_bool(a: Interval) -> bool:
    return isinstance(a.lo, bool)


def _infinite(a: Interval) -> bool:
    return a.hi == _INF or a.lo == -_INF


def _clamped(a: Interval, lo: float, hi: float) -> Interval:
    return Interval(max(a.lo, lo), min(a.hi, hi), a.nan)


# ---- arithmetic ----------------------------------------------------------------------------------


def add(a: Interval, b: Interval) -> Interval:
    """a + b; inf - inf is NaN."""
    lo, hi = a.lo + b.lo, a.hi + b.hi
    if not _is_float(a):
        return _whole(lo, hi)
    nan = a.nan or b.nan or (a.hi == _INF and b.lo == -_INF) or (a.lo == -_INF and b.hi == _INF)
    return _rounded(lo, hi, nan)


def sub(a: Interval, b: Interval) -> Interval:
    """a - b; inf - inf is NaN."""
    lo, hi = a.lo - b.hi, a.hi - b.lo
    if not _is_float(a):
        return _whole(lo, hi)
    nan = a.nan or b.nan or (a.hi == _INF and b.hi == _INF) or (a.lo == -_INF and b.lo == -_INF)
    return _rounded(lo, hi, nan)


def mul(a: Interval, b: Interval) -> Interval:
    """a * b; 0 * inf is NaN."""
    corners = [a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi]
    if not _is_float(a):
        return _whole(min(corners), max(corners))
    zero_times_inf = (0 in a and _infinite(b)) or (0 in b and _infinite(a))
    if zero_times_inf:  # every other product with zero is zero
        corners = [0.0 if c != c else c for c in corners]
    return _rounded(min(corners), max(corners), a.nan or b.nan or zero_times_inf)


def div(a: Interval, b: Interval) -> Interval:
    """a / b; 0 / 0 and inf / inf are NaN, and anything can come of a divisor that can be zero."""
    nan = a.nan or b.nan or (_infinite(a) and _infinite(b))
    if 0 in b:
        return Interval(-_INF, _INF, nan or 0 in a)
    quotients = [x / y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    # where inf / inf makes a NaN corner, finite / inf still gives 0
    corners = [0.0 if c != c else c for c in quotients]
    return _rounded(min(corners), max(corners), nan)


def floordiv(a: Interval, b: Interval) -> Interval:
    """The quotient rounded towards minus infinity."""
    if _is_float(a):
        q = floor(div(a, b))
        # a quotient that underflows to zero still rounds down to -1 where the signs differ; and
        # torch computes it through fmod, which has no value for an infinite dividend
        differ = (a.lo < 0 < b.hi) or (b.lo < 0 < a.hi)
        return Interval(min(q.lo, -1.0) if differ else q.lo, q.hi, q.nan or _infinite(a))
    if 0 in b:
        return ANY_I32
    corners = [x // y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return _whole(min(corners), max(corners))


def mod(a: Interval, b: Interval) -> Interval:
    """The remainder of `floordiv`, with the sign of the divisor."""
    whole = not _is_float(a)
    if whole and 0 in b:
        return ANY_I32
    if whole and b.lo == b.hi and a.lo // b.lo == a.hi // b.lo:
        return Interval(a.lo % b.lo, a.hi % b.lo)
    nan = a.nan or b.nan or 0 in b or _infinite(a)
    if a.lo >= 0 and a.hi < b.lo:
        return Interval(a.lo, a.hi, nan)
    # of the divisor's sign and smaller, though rounding can make floats equal; a dividend of that
    # sign is not enlarged
    top, bottom = b.hi - whole, b.lo + whole
    if a.lo >= 0:
        top = min(top, a.hi)
    if a.hi <= 0:
        bottom = max(bottom, a.lo)
    zero = type(a.lo)(0)
    return Interval(min(bottom, zero), max(top, zero), nan)


def neg(a: Interval) -> Interval:
    """-a."""
    if _is_float(a):
        return Interval(-a.hi, -a.lo, a.nan)
    return _whole(-a.hi, -a.lo)


def abs_(a: Interval) -> Interval:
    """The absolute value."""
    if a.lo >= 0:
        return a
    lo, hi = (-a.hi, -a.lo) if a.hi <= 0 else (type(a.lo)(0), max(-a.lo, a.hi))
    return Interval(lo, hi, a.nan) if _is_float(a) else _whole(lo, hi)


def sign(a: Interval) -> Interval:
    """-1, 0 or 1; torch gives 0 for NaN."""
    lo, hi = (a.lo > 0) - (a.lo < 0), (a.hi > 0) - (a.hi < 0)
    if a.nan:
        lo, hi = min(lo, 0), max(hi, 0)
    kind = type(a.lo)
    return Interval(kind(lo), kind(hi), a.nan)


def min_(a: Interval, b: Interval) -> Interval:
    """The smaller one; NaN if either is."""
    return Interval(min(a.lo, b.lo), min(a.hi, b.hi), a.nan or b.nan)


def max_(a: Interval, b: Interval) -> Interval:
    """The larger one; NaN if either is."""
    return Interval(max(a.lo, b.lo), max(a.hi, b.hi), a.nan or b.nan)


def pow_(a: Interval, b: Interval) -> Interval:
    """A to the power b."""
    return _pow_float(a, b) if _is_float(a) else _pow_whole(a, b)


def _pow_whole(a: Interval, b: Interval) -> Interval:
    size = max(abs(a.lo), abs(a.hi))
    if b.lo < 0:
        return _pow_whole_any(size, b.hi)  # torch truncates 1 / a^-b towards zero: -1, 0 or 1
    if size > 1 and b.hi > 63:
        return ANY_I32
    if size <= 1:  # only parity matters
        return Interval(0 if a.lo >= 0 else -1, 1)
    if a.lo >= 0:
        return _whole(a.lo**b.lo if a.lo else 0, max(a.hi**b.hi, 1 if b.lo == 0 else 0))
    if b.lo == b.hi:
        power = b.lo
        if power == 0:
            return Interval(1, 1)
        if power % 2:
            return _whole(a.lo**power, a.hi**power)
        least = 0 if 0 in a else min(abs(a.lo), abs(a.hi))
        return _whole(least**power, size**power)
    return _pow_whole_any(size, b.hi)


def _pow_whole_any(size: Number, power: Number) -> Interval:
    if size > 1 and power > 63:
        return ANY_I32
    largest = max(size**power, 1) if power > 0 and size > 1 else 1
    return _whole(-largest, largest)


def _pow_float(a: Interval, b: Interval) -> Interval:
    nan = a.nan or b.nan
    if a.lo > 0 or (a.lo >= 0 and b.lo >= 0):
        # monotone in each operand while the other is fixed, so extreme at the corners; 0^0 and
        # inf^0 are 1 beside 0 and inf
        corners = [_power(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        if a.nan or b.nan or ((a.lo == 0 or a.hi == _INF) and 0 in b):
            corners.append(1.0)  # NaN^0 and 1^NaN are 1
        return _rounded(min(corners), max(corners), nan, _RELATIVE_POW)
    whole = b.lo == b.hi and b.lo >= 0 and float(b.lo).is_integer()
    if not whole:
        return ANY_F32
    if b.lo % 2:
        return _rounded(_power(a.lo, b.lo), _power(a.hi, b.lo), nan, _RELATIVE_POW)
    r = abs_(a)
    corners = [_power(r.lo, b.lo), _power(r.hi, b.lo)] + [1.0] * a.nan
    return _rounded(min(corners), max(corners), nan, _RELATIVE_POW)


def _power(x: float, y: float) -> float:
    try:
        return math.pow(x, y)
    except OverflowError:
        return -_INF if x < 0 and y % 2 else _INF


# ---- functions of one float ----------------------------------------------------------------------


def _exp(x: float, function: Callable[[float], float] = math.exp) -> float:
    try:
        return function(x)
    except OverflowError:
        return _INF


def _exp2(x: float) -> float:
    return _exp(x, lambda v: math.pow(2.0, v))


def exp(a: Interval) -> Interval:
    """e^a."""
    return _rounded(_exp(a.lo), _exp(a.hi), a.nan)


def exp2(a: Interval) -> Interval:
    """2^a."""
    return _rounded(_exp2(a.lo), _exp2(a.hi), a.nan)


def expm1(a: Interval) -> Interval:
    """e^a - 1."""
    lo, hi = _exp(a.lo, math.expm1), _exp(a.hi, math.expm1)
    return _clamped(_rounded(lo, hi, a.nan, absolute=_ABSOLUTE_LOG), -1.0, _INF)


def _logarithm(function: Callable[[float], float], pole: float) -> Callable[[Interval], Interval]:
    """Return the rule of a logarithm: -inf at its pole, NaN below it."""

    def rule(a: Interval) -> Interval:
        lo = -_INF if a.lo <= pole else function(a.lo)
        hi = -_INF if a.hi <= pole else function(a.hi)
        return _rounded(lo, hi, a.nan or a.lo < pole, absolute=_ABSOLUTE_LOG)

    return rule


log = _logarithm(math.log, 0.0)
log2 = _logarithm(math.log2, 0.0)
log1p = _logarithm(math.log1p, -1.0)


def sqrt(a: Interval) -> Interval:
    """The square root; NaN below zero."""
    return _rounded(math.sqrt(max(a.lo, 0.0)), math.sqrt(max(a.hi, 0.0)), a.nan or a.lo < 0)


def rsqrt(a: Interval) -> Interval:
    """1 / sqrt(a); -inf for the zero with a minus sign."""
    if a.lo <= 0:
        return Interval(-_INF, _INF, a.nan or a.lo < 0)
    return _rounded(1 / math.sqrt(a.hi), 1 / math.sqrt(a.lo), a.nan)


def unit(a: Interval) -> Interval:
    """The sine and cosine: from -1 to 1; NaN of an infinity."""
    return Interval(-1.0, 1.0, a.nan or _infinite(a))


def tanh(a: Interval) -> Interval:
    """The hyperbolic tangent."""
    wide = _rounded(math.tanh(a.lo), math.tanh(a.hi), a.nan, _RELATIVE_TANH)
    return _clamped(wide, -1.0, 1.0)


def sigmoid(a: Interval) -> Interval:
    """1 / (1 + e^-a)."""
    return _clamped(_rounded(1 / (1 + _exp(-a.lo)), 1 / (1 + _exp(-a.hi)), a.nan), 0.0, 1.0)


def erf(a: Interval) -> Interval:
    """The error function."""
    return _clamped(_rounded(math.erf(a.lo), math.erf(a.hi), a.nan), -1.0, 1.0)


def atan(a: Interval) -> Interval:
    """The arc tangent."""
    return _rounded(math.atan(a.lo), math.atan(a.hi), a.nan)


def _step(function: Callable[[float], int]) -> Callable[[Interval], Interval]:
    """Return the rule of a monotone function to whole floats, which is exact."""

    def rule(a: Interval) -> Interval:
        lo = a.lo if abs(a.lo) == _INF else float(function(a.lo))
        hi = a.hi if abs(a.hi) == _INF else float(function(a.hi))
        return Interval(lo, hi, a.nan)

    return rule


floor = _step(math.floor)
ceil = _step(math.ceil)
round_ = _step(round)  # half to even, as torch
trunc = _step(math.trunc)


# ---- comparisons: NaN compares unequal to everything ---------------------------------------------


def _verdict(always: bool, never: bool) -> Interval:
    return TRUE if always else FALSE if never else ANY_BOOL


def lt(a: Interval, b: Interval) -> Interval:
    """Whether a < b."""
    return _verdict(a.hi < b.lo and not (a.nan or b.nan), a.lo >= b.hi)


def le(a: Interval, b: Interval) -> Interval:
    """Whether a <= b."""
    return _verdict(a.hi <= b.lo and not (a.nan or b.nan), a.lo > b.hi)


def gt(a: Interval, b: Interval) -> Interval:
    """Whether a > b."""
    return lt(b, a)


def ge(a: Interval, b: Interval) -> Interval:
    """Whether a >= b."""
    return le(b, a)


def eq(a: Interval, b: Interval) -> Interval:
    """Whether a == b."""
    equal = a.decided and b.decided and a.lo == b.lo
    return _verdict(equal, a.hi < b.lo or b.hi < a.lo)


def ne(a: Interval, b: Interval) -> Interval:
    """Whether a != b."""
    return not_(eq(a, b))


# ---- logic on bools, bits on integers ------------------------------------------------------------


def _bits(a: Interval, b: Interval) -> tuple[int, int]:
    """Return the range of the fewest bits in two's complement that hold both operands."""
    width = max((int(v) if v >= 0 else ~int(v)).bit_length() for v in (a.lo, a.hi, b.lo, b.hi))
    return -(1 << width), (1 << width) - 1


def and_(a: Interval, b: Interval) -> Interval:
    """a & b."""
    if _is_bool(a):
        return Interval(bool(a.lo and b.lo), bool(a.hi and b.hi))
    if a.lo >= 0 or b.lo >= 0:
        return Interval(0, min(x.hi for x in (a, b) if x.lo >= 0))
    lo, hi = _bits(a, b)
    return Interval(lo, min(hi, max(a.hi, b.hi, -1)))


def or_(a: Interval, b: Interval) -> Interval:
    """a | b."""
    if _is_bool(a):
        return Interval(bool(a.lo or b.lo), bool(a.hi or b.hi))
    lo, hi = _bits(a, b)
    return Interval(max(a.lo, b.lo) if a.lo >= 0 and b.lo >= 0 else lo, hi)


def xor(a: Interval, b: Interval) -> Interval:
    """a ^ b."""
    if _is_bool(a):
        return ne(a, b)
    lo, hi = _bits(a, b)
    return Interval(0 if a.lo >= 0 and b.lo >= 0 else lo, hi)


def not_(a: Interval) -> Interval:
    """~a: the logical not of a bool, -1 - a for an integer."""
    if _is_bool(a):
        return Interval(not a.hi, not a.lo)
    return Interval(-1 - a.hi, -1 - a.lo)


def shl(a: Interval, b: Interval) -> Interval:
    """a << b."""
    if not b.within(0, 63):
        return ANY_I32
    corners = [x * 2**y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return _whole(min(corners), max(corners))


def shr(a: Interval, b: Interval) -> Interval:
    """a >> b, which keeps the sign."""
    if not b.within(0, 63):
        return ANY_I32
    corners = [x // 2**y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return Interval(min(corners), max(corners))


# ---- selection, conversion, reductions -----------------------------------------------------------


def where(c: Interval, a: Interval, b: Interval) -> Interval:
    """A where c, else b."""
    return union(a, b) if c.lo != c.hi else a if c.lo else b


def to_f32(a: Interval) -> Interval:
    """The nearest float."""
    if _is_float(a):
        return a
    lo, hi = float(a.lo), float(a.hi)
    exact = lo >= -(2**24) and hi <= 2**24
    return Interval(lo, hi) if exact else _rounded(lo, hi)


def to_i32(a: Interval) -> Interval:
    """The integer part, towards zero."""
    if a.nan or not (a.lo >= _I64_LO and a.hi <= _I64_HI):
        return ANY_I32
    lo, hi = int(a.lo), int(a.hi)
    return _whole(lo, hi)


def to_bool(a: Interval) -> Interval:
    """Whether it is not zero; NaN is not."""
    return _verdict(0 not in a, a.lo == 0 == a.hi and not a.nan)


def sum_(a: Interval, length: int) -> Interval:
    """The sum of a vector."""
    if not _is_float(a):
        return _whole(a.lo * length, a.hi * length)
    if length == 0:
        return Interval(0.0, 0.0)
    # a rounded sum is monotone in each element, so extreme where all are; and in any order, partial
    # sums of both signs that overflow can meet
    sums = _rounded(a.lo * length, a.hi * length, a.nan, relative=_RELATIVE + length * 2.0**-23)
    return Interval(sums.lo, sums.hi, a.nan or (sums.hi == _INF and sums.lo == -_INF))


def same(a: Interval, length: int) -> Interval:
    """The greatest or least element, and any and all: one of the elements if there is one."""
    return ANY_BOOL if length == 0 and _is_bool(a) else a
