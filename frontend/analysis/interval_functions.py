"""Interval rules of powers and of functions of one float, for one box or for many.

Each function is given twice, for numbers and for tensors: the widening of `intervals.rounded`
covers what two libraries differ by.  What the rules mean is in `intervals`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

import torch

from flexfa4.frontend.analysis.ends import by_kind, choose, exact_power, is_float
from flexfa4.frontend.analysis.intervals import (
    ANY_F32,
    INF,
    RELATIVE,
    TINY,
    Interval,
    abs_,
    clamped,
    hull,
    integer,
    rounded,
)

NumberFunction: TypeAlias = Callable[[float], float]
TensorFunction: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
Rule: TypeAlias = Callable[[Interval], Interval]

_RELATIVE_POW: Final = 2.0**-14  # exp2(y * log2 x): the error of log2 times up to 128
_RELATIVE_TANH: Final = 2.0**-10  # the hardware's tanh
_ABSOLUTE_LOG: Final = 2.0**-20  # logarithms near 1 and expm1 near 0 err absolutely


# ---- powers --------------------------------------------------------------------------------------


def pow_(a: Interval, b: Interval) -> Interval:
    """A to the power b; where b differs from box to box, what holds for all boxes."""
    if b.decided is True and b.lo >= 0 and b.lo % 1 == 0:
        return _pow_fixed(a, int(b.lo))
    return (_pow_float if is_float(a.lo) else _pow_whole)(hull(a), hull(b))


def _pow_fixed(a: Interval, power: int) -> Interval:
    """Return a power that is whole and not negative: monotone in the operand or in its size."""
    base = a if power % 2 else abs_(a)
    if is_float(base.lo):
        function = by_kind(lambda x: _power(x, power), lambda x: x**power)
        return rounded(function(base.lo), function(base.hi), a.nan, _RELATIVE_POW)
    lo, low_wraps = exact_power(base.lo, power)
    hi, high_wraps = exact_power(base.hi, power)
    return integer(lo, hi, low_wraps | high_wraps)


def _pow_whole(a: Interval, b: Interval) -> Interval:
    largest, wraps = exact_power(max(abs(a.lo), abs(a.hi)), max(b.hi, 0))
    largest = max(largest, 1)  # a power of zero
    if a.lo < 0 or b.lo < 0:  # torch truncates 1 / a^-b towards zero: -1, 0 or 1
        return integer(-largest, largest, wraps)
    lo, _ = exact_power(a.lo, b.lo if a.lo else 1)
    return integer(lo, largest, wraps)


def _pow_float(a: Interval, b: Interval) -> Interval:
    if a.lo < 0 or (a.lo == 0 and b.lo < 0):
        return ANY_F32
    # monotone in each operand while the other is fixed, so extreme at the corners; 0^0 and
    # inf^0 are 1 beside 0 and inf
    corners = [_power(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    if a.nan or b.nan or ((a.lo == 0 or a.hi == INF) and 0 in b):
        corners.append(1.0)  # NaN^0 and 1^NaN are 1
    return rounded(min(corners), max(corners), a.nan or b.nan, _RELATIVE_POW)


def _power(x: float, y: float) -> float:
    try:
        return math.pow(x, y)
    except OverflowError:
        return -INF if x < 0 and y % 2 else INF


# ---- functions of one float ----------------------------------------------------------------------


def _saturating(function: NumberFunction) -> NumberFunction:
    def saturated(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return INF

    return saturated


def _increasing(
    number: NumberFunction,
    tensor: TensorFunction,
    *,
    relative: float = RELATIVE,
    absolute: float = TINY,
    image: tuple[float, float] = (-INF, INF),
) -> Rule:
    """Return the rule of an increasing function with values in `image`."""
    function = by_kind(number, tensor)

    def rule(a: Interval) -> Interval:
        wide = rounded(function(a.lo), function(a.hi), a.nan, relative, absolute)
        return clamped(wide, *image)

    return rule


_exp: Final = _saturating(math.exp)
exp = _increasing(_exp, torch.exp)
exp2 = _increasing(_saturating(lambda x: math.pow(2.0, x)), torch.exp2)
expm1 = _increasing(_saturating(math.expm1), torch.expm1, absolute=_ABSOLUTE_LOG, image=(-1.0, INF))
tanh = _increasing(math.tanh, torch.tanh, relative=_RELATIVE_TANH, image=(-1.0, 1.0))
sigmoid = _increasing(lambda x: 1 / (1 + _exp(-x)), torch.sigmoid, image=(0.0, 1.0))
erf = _increasing(math.erf, torch.erf, image=(-1.0, 1.0))
atan = _increasing(math.atan, torch.atan)


def _logarithm(number: NumberFunction, tensor: TensorFunction, pole: float) -> Rule:
    """Return the rule of a logarithm: -inf at its pole, NaN below it."""
    function = by_kind(
        lambda x: -INF if x <= pole else number(x), lambda x: tensor(x.clamp(min=pole))
    )

    def rule(a: Interval) -> Interval:
        nan = a.nan | (a.lo < pole)
        return rounded(function(a.lo), function(a.hi), nan, absolute=_ABSOLUTE_LOG)

    return rule


log = _logarithm(math.log, torch.log, 0.0)
log2 = _logarithm(math.log2, torch.log2, 0.0)
log1p = _logarithm(math.log1p, torch.log1p, -1.0)

_root = by_kind(lambda x: math.sqrt(max(x, 0.0)), lambda x: x.clamp(min=0.0).sqrt())


def sqrt(a: Interval) -> Interval:
    """The square root; NaN below zero."""
    return rounded(_root(a.lo), _root(a.hi), a.nan | (a.lo < 0))


def rsqrt(a: Interval) -> Interval:
    """1 / sqrt(a); -inf for the zero with a minus sign."""
    pole = a.lo <= 0
    lo, hi = (1 / _root(choose(pole, 1.0, x)) for x in (a.hi, a.lo))
    found = rounded(lo, hi)
    nan = a.nan | (a.lo < 0)
    return Interval(choose(pole, -INF, found.lo), choose(pole, INF, found.hi), nan)


def unit(a: Interval) -> Interval:
    """The sine and cosine: from -1 to 1; NaN of an infinity."""
    return Interval(-1.0, 1.0, a.nan | a.infinite)
