"""Ends of intervals: a number, or a tensor of numbers with one for each box.

An interval rule must serve two callers: one asks about a single call, with Python numbers, and one
asks about many boxes at once, with tensors on any device.  The functions here do what Python's
operators do not do alike for both, so that each rule is written once: choosing, least and greatest,
and whole arithmetic that says where the result leaves 64 bits.

*Ends* are ints, floats or bools, or tensors of int64, float64 or bool.  *Flags* are bools or bool
tensors, and combine with ``&`` and ``|``.  Numbers and tensors mix, and tensors broadcast: what is
the same for all boxes stays a number and costs nothing.  Where all ends are numbers, the result is
one.  No function here waits for a device.

What the ends mean, and every rule, is in `intervals`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import torch

End: TypeAlias = Any  # int, float, bool, or a tensor of int64, float64 or bool
Flag: TypeAlias = Any  # bool or a tensor of bool

I64_LO: Final = -(2**63)
I64_HI: Final = 2**63 - 1
# A product is compared in fp64, where it errs by less than 2^-51 of its size.
_PRODUCT_LIMIT: Final = 2.0**63 * (1 - 2.0**-50)
_Tensor: Final = torch.Tensor


def no(flag: Flag) -> Flag:
    """Return the opposite of a flag."""
    return ~flag if isinstance(flag, _Tensor) else not flag


def choose(flag: Flag, x: End, y: End) -> End:
    """Return `x` where the flag holds, else `y`."""
    if not isinstance(flag, _Tensor):
        return x if flag else y
    if isinstance(x, float) and isinstance(y, float):  # torch would make them fp32
        x = torch.full((), x, dtype=torch.float64, device=flag.device)
    return torch.where(flag, x, y)


def least(x: End, y: End) -> End:
    """Return the lesser of two ends."""
    if not isinstance(x, _Tensor):
        if not isinstance(y, _Tensor):
            return x if x <= y else y
        x, y = y, x
    if x.dtype is torch.bool:
        return x & y
    return torch.minimum(x, y) if isinstance(y, _Tensor) else x.clamp(max=y)


def most(x: End, y: End) -> End:
    """Return the greater of two ends."""
    if not isinstance(x, _Tensor):
        if not isinstance(y, _Tensor):
            return x if x >= y else y
        x, y = y, x
    if x.dtype is torch.bool:
        return x | y
    return torch.maximum(x, y) if isinstance(y, _Tensor) else x.clamp(min=y)


def spread(ends: Iterable[End]) -> tuple[End, End]:
    """Return the least and the greatest of some ends."""
    first, *others = ends
    lo = hi = first
    for end in others:
        lo, hi = least(lo, end), most(hi, end)
    return lo, hi


def by_kind(
    number: Callable[[Any], End], tensor: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[End], End]:
    """Return a function of an end from one of numbers and the same of tensors."""

    def function(x: End) -> End:
        return tensor(x) if isinstance(x, _Tensor) else number(x)

    return function


# ---- whole arithmetic: the result, and where it leaves 64 bits (where it then means nothing) -----


def exact_sum(x: End, y: End) -> tuple[End, Flag]:
    """Return x + y, and where it leaves 64 bits."""
    total = x + y
    if isinstance(total, _Tensor):  # wrapped: of the sign that neither operand has
        return total, ((x ^ total) & (y ^ total)) < 0
    return _inside(total)


def exact_difference(x: End, y: End) -> tuple[End, Flag]:
    """Return x - y, and where it leaves 64 bits."""
    difference = x - y
    if isinstance(difference, _Tensor):
        return difference, ((x ^ y) & (x ^ difference)) < 0
    return _inside(difference)


def exact_product(x: End, y: End) -> tuple[End, Flag]:
    """Return x * y, and where it may leave 64 bits (for tensors, where it comes near)."""
    product = x * y
    if isinstance(product, _Tensor):
        return product, (as_float(x) * as_float(y)).abs() >= _PRODUCT_LIMIT
    return _inside(product)


def exact_power(x: End, power: int) -> tuple[End, Flag]:
    """Return x to a power that is not negative, and where it may leave 64 bits."""
    if isinstance(x, _Tensor):
        # in fp64 the error is below 2^-45 of the size, for powers that fit
        return x**power, x.double().abs() ** power >= 2.0**63 * (1 - 2.0**-40)
    if power > 63 and not -1 <= x <= 1:
        return 0, True
    return _inside(x ** (power if power <= 63 else 62 + power % 2))


def exact_quotient(x: End, y: End) -> tuple[End, Flag]:
    """Return x // y, and where it leaves 64 bits or y is zero."""
    wraps = y == -1
    if wraps is not False:
        wraps = wraps & (x == I64_LO)
    wraps = wraps | (y == 0)
    if wraps is not False:
        y = choose(wraps, 1, y)  # processors trap
    return x // y, wraps


def exact_shift(x: End, count: End) -> tuple[End, Flag]:
    """Return x << count for a count from 0 to 63, and where it leaves 64 bits."""
    shifted = x << count
    if isinstance(shifted, _Tensor):
        return shifted, (shifted >> count) != x
    return _inside(shifted)


def _inside(value: int) -> tuple[int, bool]:
    # what leaves 64 bits must not meet a tensor, not even where it is not chosen
    return (value, False) if I64_LO <= value <= I64_HI else (0, True)


def _filled_tensor(x: torch.Tensor) -> torch.Tensor:
    for distance in (1, 2, 4, 8, 16, 32):
        x = x | (x >> distance)
    return x


# every bit up to the highest that is set, of a number that is not negative
bits_filled = by_kind(lambda x: (1 << x.bit_length()) - 1, _filled_tensor)
signum = by_kind(lambda x: type(x)((x > 0) - (x < 0)), torch.sign)
as_float = by_kind(float, torch.Tensor.double)
as_bool = by_kind(bool, torch.Tensor.bool)
as_whole = by_kind(int, torch.Tensor.long)


def is_float(x: End) -> bool:
    """Whether an end is a float, or a tensor of them."""
    return x.is_floating_point() if isinstance(x, _Tensor) else isinstance(x, float)


def is_bool(x: End) -> bool:
    """Whether an end is a bool, or a tensor of them."""
    return x.dtype is torch.bool if isinstance(x, _Tensor) else isinstance(x, bool)
