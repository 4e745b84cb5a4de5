"""Checks of the variants' parameters, when a variant is made rather than when it runs.

Only what every variant needs to say in the same words; a check that one variant alone needs stays
beside it.
"""

from __future__ import annotations

import math
import numbers
import operator
from typing import SupportsFloat, SupportsIndex, cast

import torch

from flexfa4.errors import ArgumentError


def require_whole(name: str, value: object, *, at_least: int) -> None:
    """Refuse what is not an int of at least `at_least` (True and False are not numbers here).

    Raises:
        ArgumentError: it is not.
    """
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or operator.index(cast(SupportsIndex, value)) < at_least:
        raise ArgumentError(
            name=name,
            found_value=repr(value),
            expected=f"an int, at least {at_least}",
            rewrite=f"pass a whole number such as {max(at_least, 1)}",
        )


def require_positive(name: str, value: object) -> None:
    """Refuse what is not a finite number above zero.

    Raises:
        ArgumentError: it is not.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        number = float(cast(SupportsFloat, value)) if is_number else math.nan
    except OverflowError:  # an int beyond every float
        number = math.inf
    if not 0 < number < math.inf:
        raise ArgumentError(
            name=name,
            found_value=repr(value),
            expected="a finite number above 0",
            rewrite="pass a number such as 50.0",
        )


def require_index_tensor(name: str, value: object, *, dims: tuple[int, ...]) -> None:
    """Refuse what is not an integer tensor with one of these numbers of dimensions.

    Raises:
        ArgumentError: it is not.
    """
    ranks = " or ".join(map(str, dims))
    expected = f"an integer tensor with {ranks} dimension{'s' if dims != (1,) else ''}"
    if not isinstance(value, torch.Tensor):
        found, rewrite = repr(value), "wrap it: torch.tensor(...)"
    elif value.is_floating_point() or value.is_complex() or value.dtype is torch.bool:
        found, rewrite = f"a tensor of {value.dtype}", "convert it: .long()"
    elif value.dim() not in dims:
        found, rewrite = f"a tensor of shape {tuple(value.shape)}", "reshape it"
    else:
        return
    raise ArgumentError(name=name, found_value=found, expected=expected, rewrite=rewrite)
