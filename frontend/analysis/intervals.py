"""Interval rules: sound bounds of each op's result from bounds of its operands.

An `Interval` holds every value that a node can take: ``lo <= value <= hi`` for all values that are
not NaN, and `nan` tells whether NaN is possible.  A rule may be loose; it may never be wrong.

*Many boxes at once.*  An end is a number, or a tensor with one number for each box: `ends` has what
serves both.  A rule asks a question of all boxes together (a *flag*) and chooses the ends by it.

The type of the ends is the dtype: ints or int64 for i32 (within 64 bits), floats or float64 for
f32, bools for bool, so that one rule serves all dtypes of an op (``~True`` is False, ``~1`` is -2).

*Rounding.*  f32 results are evaluated in fp32 on some devices and in fp64 on others, and with the
approximate instructions of a GPU, while the ends here are computed in fp64.  So each f32 result is
widened outwards: by 2^-20 of its size (fp32 rounds to 2^-24; exp2 and rsqrt units err by 2^-22), by
the smallest normal fp32 (results may be flushed to zero), and to infinity beyond the largest fp32.
Rounding never changes a result's sign, so widening stops at zero.

*Overflow.*  Where an i32 result could leave 64 bits, it could wrap to anything: the result is
`ANY_I32`.  The same holds where devices differ: division by zero, shifts by less than 0 or more
than 63, a float outside 64 bits (or NaN) made an integer.  The sign of zero is not distinguished,
hence 1/x with x in [0, 1] can also be -inf.

One function for each row of the ops table, those of bits in `interval_bits` and those of functions
of floats in `interval_functions`; `ops` refers to them.  Evaluation of a whole graph is
`bounds.bound`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from flexfa4.frontend.analysis.ends import (
    I64_HI,
    I64_LO,
    End,
    Flag,
    as_float,
    as_whole,
    by_kind,
    choose,
    exact_difference,
    exact_power,
    exact_product,
    exact_quotient,
    exact_sum,
    is_bool,
    is_float,
    least,
    most,
    no,
    signum,
    spread,
)

INF: Final = math.inf


class Interval(NamedTuple):
    """All values from `lo` to `hi`, both included, and NaN if `nan`; of one box or of many.

    Attributes:
        lo: least value: an int for i32, a float (or -inf) for f32, a bool for bool; or a tensor of
            int64, float64 or bool with one for each box.  Tensors broadcast, with each other too.
        hi: greatest value, of the same type; one of the two can be a number where that is the same
            for all boxes.
        nan: whether NaN is possible: a bool, or a bool tensor; always False for i32 and bool.

    Intervals compare equal only where all is numbers; questions about tensors are answered by a
    flag for each box.
    """

    lo: End
    hi: End
    nan: Flag = False

    def __contains__(self, value: Any) -> bool:
        """Whether every box holds the number."""
        held = self.holds(value)
        return bool(held.all()) if isinstance(held, torch.Tensor) else held

    def holds(self, value: float) -> Flag:
        """Return whether the number is one of the possible values."""
        return self.nan if value != value else (self.lo <= value) & (value <= self.hi)

    @property
    def decided(self) -> Flag:
        """Whether only one value is possible."""
        return (self.lo == self.hi) & no(self.nan)

    @property
    def finite(self) -> Flag:
        """Whether neither NaN nor an infinity is possible."""
        return (self.lo > -INF) & (self.hi < INF) & no(self.nan)

    @property
    def infinite(self) -> Flag:
        """Whether an infinity is possible."""
        return (self.lo == -INF) | (self.hi == INF)

    def within(self, lo: float, hi: float) -> Flag:
        """Return whether every possible value is in ``lo ... hi``."""
        return (lo <= self.lo) & (self.hi <= hi) & no(self.nan)


_F32_MAX: Final = 3.4028234663852886e38
TINY: Final = 1.1754943508222875e-38
RELATIVE: Final = 2.0**-20

ANY_F32: Final = Interval(-INF, INF, True)
ANY_I32: Final = Interval(I64_LO, I64_HI)
ANY_BOOL: Final = Interval(False, True)
TRUE: Final = Interval(True, True)
FALSE: Final = Interval(False, False)


def point(value: float) -> Interval:
    """Return the interval of one value; an f32 also covers its rounding to fp32."""
    if isinstance(value, float):
        if value != value:
            return ANY_F32
        return Interval(value, value) if _is_fp32(value) else rounded(value, value)
    return Interval(value, value)


def _is_fp32(value: float) -> bool:
    """Whether fp32 has the value, and no device makes it zero."""
    if not TINY <= abs(value) <= _F32_MAX:
        return value == 0 or abs(value) == INF
    return bool(struct.unpack("f", struct.pack("f", value))[0] == value)


def hull(a: Interval) -> Interval:
    """Return the least interval of numbers that holds those of all boxes; waits for the device."""
    if not all(x.numel() for x in (a.lo, a.hi, a.nan) if isinstance(x, torch.Tensor)):
        return ANY_BOOL if is_bool(a.lo) else ANY_F32 if is_float(a.lo) else ANY_I32
    lo = a.lo.min().item() if isinstance(a.lo, torch.Tensor) else a.lo
    hi = a.hi.max().item() if isinstance(a.hi, torch.Tensor) else a.hi
    return Interval(lo, hi, bool(a.nan.any()) if isinstance(a.nan, torch.Tensor) else a.nan)


# ---- making results ------------------------------------------------------------------------------


def rounded(
    lo: End, hi: End, nan: Flag = False, relative: float = RELATIVE, absolute: float = TINY
) -> Interval:
    """Return an f32 result, widened as the module docstring says; NaN ends mean unbounded."""
    return Interval(_down(lo, relative, absolute), -_down(-hi, relative, absolute), nan)


def _down(x: End, relative: float, absolute: float) -> End:
    # x may stay above the largest fp32: then the value is at least x in fp64 and inf in fp32
    if isinstance(x, torch.Tensor):
        towards = (x * (1 - relative) - absolute).clamp(min=0.0)
        low = torch.where(x >= 0, towards, x * (1 + relative) - absolute)
        return torch.where(low >= -_F32_MAX, low, -INF)  # which is so for NaN too
    if x >= 0:
        return max(0.0, x * (1 - relative) - absolute)
    low = x * (1 + relative) - absolute
    return low if low >= -_F32_MAX else -INF


def integer(lo: End, hi: End, unknown: Flag) -> Interval:
    """Return an i32 result, which can be anything where `unknown` holds."""
    if unknown is False:
        return Interval(lo, hi)
    if unknown is True:
        return ANY_I32
    return Interval(choose(unknown, I64_LO, lo), choose(unknown, I64_HI, hi))


def clamped(a: Interval, lo: float, hi: float) -> Interval:
    """Return what is known of a value that is also in ``lo ... hi`` or NaN."""
    return Interval(most(a.lo, lo), least(a.hi, hi), a.nan)


def _ends(a: Interval) -> tuple[End, ...]:
    """Return both ends, or the one that stands for both."""
    return (a.lo,) if a.lo is a.hi else (a.lo, a.hi)


def corners(
    exact: Callable[[End, End], tuple[End, Flag]], a: Interval, b: Interval, unknown: Flag = False
) -> Interval:
    """Return the i32 result of an op that is extreme where both operands are."""
    found = []
    for x in _ends(a):
        for y in _ends(b):
            value, wraps = exact(x, y)
            found.append(value)
            unknown = unknown | wraps
    return integer(*spread(found), unknown)


# ---- arithmetic ----------------------------------------------------------------------------------


def add(a: Interval, b: Interval) -> Interval:
    """a + b; inf - inf is NaN."""
    if not is_float(a.lo):
        lo, low_wraps = exact_sum(a.lo, b.lo)
        hi, high_wraps = exact_sum(a.hi, b.hi)
        return integer(lo, hi, low_wraps | high_wraps)
    meet = ((a.hi == INF) & (b.lo == -INF)) | ((a.lo == -INF) & (b.hi == INF))
    return rounded(a.lo + b.lo, a.hi + b.hi, a.nan | b.nan | meet)


def sub(a: Interval, b: Interval) -> Interval:
    """a - b; inf - inf is NaN."""
    if is_float(a.lo):
        return add(a, neg(b))
    lo, low_wraps = exact_difference(a.lo, b.hi)
    hi, high_wraps = exact_difference(a.hi, b.lo)
    return integer(lo, hi, low_wraps | high_wraps)


def mul(a: Interval, b: Interval) -> Interval:
    """a * b; 0 * inf is NaN."""
    if not is_float(a.lo):
        return corners(exact_product, a, b)
    zero_times_inf = (a.holds(0) & b.infinite) | (b.holds(0) & a.infinite)
    products = [x * y for x in _ends(a) for y in _ends(b)]
    # every other product with zero is zero
    extremes = [choose(c != c, 0.0, c) for c in products]
    return rounded(*spread(extremes), a.nan | b.nan | zero_times_inf)


def square(a: Interval) -> Interval:
    """a * a of one operand, which is not negative."""
    r = abs_(a)
    if is_float(r.lo):
        return rounded(r.lo * r.lo, r.hi * r.hi, a.nan)
    lo, low_wraps = exact_power(r.lo, 2)
    hi, high_wraps = exact_power(r.hi, 2)
    return integer(lo, hi, low_wraps | high_wraps)


def div(a: Interval, b: Interval) -> Interval:
    """a / b; 0 / 0 and inf / inf are NaN, and anything can come of a divisor that can be zero."""
    zero = b.holds(0)
    nan = a.nan | b.nan | (a.infinite & b.infinite) | (zero & a.holds(0))
    if zero is True:
        return Interval(-INF, INF, nan)
    quotients = [x / choose(zero, 1.0, y) for x in _ends(a) for y in _ends(b)]
    # where inf / inf makes a NaN corner, finite / inf still gives 0
    extremes = [choose(c != c, 0.0, c) for c in quotients]
    found = rounded(*spread(extremes), nan)
    return Interval(choose(zero, -INF, found.lo), choose(zero, INF, found.hi), nan)


def floordiv(a: Interval, b: Interval) -> Interval:
    """The quotient rounded towards minus infinity."""
    if not is_float(a.lo):
        return corners(exact_quotient, a, b, b.holds(0))
    q = floor(div(a, b))
    # a quotient that underflows to zero still rounds down to -1 where the signs differ; and
    # torch computes it through fmod, which has no value where the quotient overflows
    differ = ((a.lo < 0) & (b.hi > 0)) | ((b.lo < 0) & (a.hi > 0))
    return Interval(choose(differ, least(q.lo, -1.0), q.lo), q.hi, q.nan | q.infinite)


def mod(a: Interval, b: Interval) -> Interval:
    """The remainder of `floordiv`, with the sign of the divisor."""
    whole = not is_float(a.lo)
    zero = b.holds(0)
    # of the divisor's sign and smaller, though rounding can make floats equal; a dividend of that
    # sign is not enlarged
    unit = 1 if whole else 0.0
    top, bottom = most(b.hi, unit) - unit, least(b.lo, -unit) + unit
    positive = a.lo >= 0
    lo = choose(a.hi <= 0, most(bottom, a.lo), bottom)
    lo = choose(positive & (a.hi < b.lo), a.lo, lo)
    hi = choose(positive, least(top, a.hi), top)
    if not whole:  # torch has no value where the quotient overflows
        quotient = div(a, b)
        return Interval(lo, hi, quotient.nan | quotient.infinite)
    one_divisor = b.lo == b.hi
    if one_divisor is not False:  # exact where all dividends have one quotient
        first, first_wraps = exact_quotient(a.lo, b.lo)
        last, last_wraps = exact_quotient(a.hi, b.lo)
        one_quotient = (first == last) & one_divisor & no(first_wraps | last_wraps)
        lo = choose(one_quotient, a.lo - first * b.lo, lo)
        hi = choose(one_quotient, a.hi - last * b.lo, hi)
    return integer(lo, hi, zero)


def neg(a: Interval) -> Interval:
    """-a."""
    if is_float(a.lo):
        return Interval(-a.hi, -a.lo, a.nan)
    return sub(Interval(0, 0), a)


def abs_(a: Interval) -> Interval:
    """The absolute value."""
    if (a.lo >= 0) is True:
        return a
    if is_float(a.lo):
        return Interval(most(most(a.lo, -a.hi), 0.0), most(a.hi, -a.lo), a.nan)
    opposite_lo, _ = exact_difference(0, a.hi)
    opposite_hi, wraps = exact_difference(0, a.lo)
    return integer(most(most(a.lo, opposite_lo), 0), most(a.hi, opposite_hi), wraps)


def sign(a: Interval) -> Interval:
    """-1, 0 or 1; torch gives 0 for NaN."""
    lo, hi = signum(a.lo), signum(a.hi)
    if a.nan is not False:
        lo, hi = choose(a.nan, least(lo, 0.0), lo), choose(a.nan, most(hi, 0.0), hi)
    return Interval(lo, hi, a.nan)


def min_(a: Interval, b: Interval) -> Interval:
    """The smaller one; NaN if either is."""
    return Interval(least(a.lo, b.lo), least(a.hi, b.hi), a.nan | b.nan)


def max_(a: Interval, b: Interval) -> Interval:
    """The larger one; NaN if either is."""
    return Interval(most(a.lo, b.lo), most(a.hi, b.hi), a.nan | b.nan)


# ---- whole floats --------------------------------------------------------------------------------


def _step(
    number: Callable[[float], int], tensor: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[Interval], Interval]:
    """Return the rule of a monotone function to whole floats, which is exact."""
    step = by_kind(lambda x: x if abs(x) == INF else float(number(x)), tensor)
    return lambda a: Interval(step(a.lo), step(a.hi), a.nan)


floor = _step(math.floor, torch.floor)
ceil = _step(math.ceil, torch.ceil)
round_ = _step(round, torch.round)  # both half to even
trunc = _step(math.trunc, torch.trunc)


# ---- comparisons: NaN compares unequal to everything ---------------------------------------------


def _verdict(always: Flag, never: Flag, nan: Flag) -> Interval:
    return Interval(always if nan is False else always & no(nan), no(never))


def lt(a: Interval, b: Interval) -> Interval:
    """Whether a < b."""
    return _verdict(a.hi < b.lo, a.lo >= b.hi, a.nan | b.nan)


def le(a: Interval, b: Interval) -> Interval:
    """Whether a <= b."""
    return _verdict(a.hi <= b.lo, a.lo > b.hi, a.nan | b.nan)


def gt(a: Interval, b: Interval) -> Interval:
    """Whether a > b."""
    return lt(b, a)


def ge(a: Interval, b: Interval) -> Interval:
    """Whether a >= b."""
    return le(b, a)


def eq(a: Interval, b: Interval) -> Interval:
    """Whether a == b."""
    always = (a.hi <= b.lo) & (b.hi <= a.lo)
    return _verdict(always, (a.hi < b.lo) | (b.hi < a.lo), a.nan | b.nan)


def ne(a: Interval, b: Interval) -> Interval:
    """Whether a != b."""
    return not_(eq(a, b))


def not_(a: Interval) -> Interval:
    """~a: the logical not of a bool, -1 - a for an integer."""
    if is_bool(a.lo):
        return Interval(no(a.hi), no(a.lo))
    return Interval(~a.hi, ~a.lo)


# ---- selection, conversion, reductions -----------------------------------------------------------


def where(c: Interval, a: Interval, b: Interval) -> Interval:
    """A where c, else b."""
    lo = choose(c.lo, a.lo, choose(c.hi, least(a.lo, b.lo), b.lo))
    hi = choose(c.lo, a.hi, choose(c.hi, most(a.hi, b.hi), b.hi))
    nan = a.nan | b.nan
    if nan is not False:
        nan = (c.hi & a.nan) | (no(c.lo) & b.nan)
    return Interval(lo, hi, nan)


def to_f32(a: Interval) -> Interval:
    """The nearest float."""
    if is_float(a.lo):
        return a
    lo, hi = as_float(a.lo), as_float(a.hi)
    exact = (lo >= -(2**24)) & (hi <= 2**24)
    if exact is True:
        return Interval(lo, hi)
    wide = rounded(lo, hi)
    return Interval(choose(exact, lo, wide.lo), choose(exact, hi, wide.hi))


def to_i32(a: Interval) -> Interval:
    """The integer part, towards zero."""
    if not is_float(a.lo):
        return Interval(as_whole(a.lo), as_whole(a.hi))
    outside = no(no(a.nan) & (a.lo >= -(2.0**63)) & (a.hi < 2.0**63))
    lo, hi = (as_whole(choose(outside, 0.0, x)) for x in (a.lo, a.hi))
    return integer(lo, hi, outside)


def to_bool(a: Interval) -> Interval:
    """Whether it is not zero; NaN is not."""
    return Interval(no(a.holds(0)), no((a.lo == 0) & (a.hi == 0) & no(a.nan)))


def sum_(a: Interval, length: int) -> Interval:
    """The sum of a vector."""
    if not is_float(a.lo):
        return corners(exact_product, a, Interval(length, length))
    if length == 0:
        return Interval(0.0, 0.0)
    # a rounded sum is monotone in each element, so extreme where all are; and in any order, partial
    # sums of both signs that overflow can meet
    sums = rounded(a.lo * length, a.hi * length, a.nan, relative=RELATIVE + length * 2.0**-23)
    return Interval(sums.lo, sums.hi, a.nan | ((sums.hi == INF) & (sums.lo == -INF)))


def same(a: Interval, length: int) -> Interval:
    """The greatest or least element, and any and all: one of the elements if there is one."""
    return ANY_BOOL if length == 0 and is_bool(a.lo) else a
