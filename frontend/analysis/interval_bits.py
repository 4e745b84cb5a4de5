"""Interval rules of operations on bits: and, or, xor and shifts; for bools, of logic.

Bits are those of two's complement, which Python's numbers have too.  What the rules mean is in
`intervals`.
"""

from __future__ import annotations

from flexfa4.frontend.analysis.ends import (
    I64_HI,
    I64_LO,
    End,
    Flag,
    bits_filled,
    choose,
    exact_shift,
    is_bool,
    least,
    most,
    no,
    spread,
)
from flexfa4.frontend.analysis.intervals import Interval, corners, ne, not_


def _known_bits(a: Interval) -> tuple[End, End]:
    """Return the bits that every value has, and those that some value may have.

    Values between two of one sign share the bits above the highest in which these two differ.
    """
    differ = a.lo ^ a.hi
    varies = choose(differ < 0, -1, bits_filled(differ & I64_HI))
    return a.lo & ~varies, a.lo | varies


def _from_bits(must: End, may: End, a: Interval, b: Interval) -> tuple[End, End]:
    """Return the ends of what has at least the bits `must` and at most the bits `may`.

    The width of the operands in two's complement bounds it too, where their signs vary.
    """
    low = must | (may & I64_LO)  # the sign bit counts downwards
    high = (may & I64_HI) | (must & I64_LO)
    _, widest = spread(x ^ (x >> 63) for x in (a.lo, a.hi, b.lo, b.hi))
    filled = bits_filled(widest)
    return most(low, ~filled), least(high, filled)


def and_(a: Interval, b: Interval) -> Interval:
    """a & b."""
    if is_bool(a.lo):
        return Interval(a.lo & b.lo, a.hi & b.hi)
    (a_must, a_may), (b_must, b_may) = _known_bits(a), _known_bits(b)
    lo, hi = _from_bits(a_must & b_must, a_may & b_may, a, b)
    # not above an operand that is not negative, nor, where both are negative, above either
    lesser = least(a.hi, b.hi)
    both = ((a.lo >= 0) & (b.lo >= 0)) | ((a.hi < 0) & (b.hi < 0))
    either = choose(a.lo >= 0, a.hi, choose(b.lo >= 0, b.hi, most(a.hi, b.hi)))
    return Interval(lo, least(hi, choose(both, lesser, either)))


def or_(a: Interval, b: Interval) -> Interval:
    """a | b."""
    if is_bool(a.lo):
        return Interval(a.lo | b.lo, a.hi | b.hi)
    return not_(and_(not_(a), not_(b)))


def xor(a: Interval, b: Interval) -> Interval:
    """a ^ b."""
    if is_bool(a.lo):
        return ne(a, b)
    (a_must, a_may), (b_must, b_may) = _known_bits(a), _known_bits(b)
    varies = (a_must ^ a_may) | (b_must ^ b_may)
    must = (a_must ^ b_must) & ~varies
    return Interval(*_from_bits(must, must | varies, a, b))


def shl(a: Interval, b: Interval) -> Interval:
    """a << b."""
    count, outside = _shift_count(b)
    return corners(exact_shift, a, count, outside)


def shr(a: Interval, b: Interval) -> Interval:
    """a >> b, which keeps the sign."""
    count, outside = _shift_count(b)
    return corners(lambda x, y: (x >> y, False), a, count, outside)


def _shift_count(b: Interval) -> tuple[Interval, Flag]:
    """Return a count from 0 to 63, and where it is another that this only stands for."""
    outside = no(b.within(0, 63))
    if outside is False:
        return b, False
    return Interval(choose(outside, 0, b.lo), choose(outside, 0, b.hi)), outside
