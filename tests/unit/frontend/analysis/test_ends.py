"""Ends of intervals: numbers and tensors give the same, and 64-bit overflow is always seen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexfa4.frontend.analysis import ends
from flexfa4.frontend.analysis.ends import I64_HI, I64_LO

_ROOT = math.isqrt(2**63)  # the greatest number whose square is in 64 bits
_POSITIVE = (0, 1, 2, 7, 2**31, _ROOT, _ROOT + 1, 2**62 - 1, 2**62, I64_HI - 1, I64_HI)
NUMBERS = sorted({I64_LO, *_POSITIVE, *(-v for v in _POSITIVE)})

# result for numbers, and whether a tensor may be given up although it fits
EXACT: dict[str, tuple[Callable[[int, int], int], bool]] = {
    "exact_sum": (lambda x, y: x + y, False),
    "exact_difference": (lambda x, y: x - y, False),
    "exact_product": (lambda x, y: x * y, True),
    "exact_quotient": (lambda x, y: x // y if y else 2**64, False),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_result_is_exact_or_known_to_leave_64_bits(name: str) -> None:
    function = getattr(ends, name)
    result, may_give_up = EXACT[name]
    pairs = list(itertools.product(NUMBERS, NUMBERS))
    x, y = torch.tensor(pairs).T
    values, wraps = function(x, y)
    for (a, b), value, gone in zip(pairs, values.tolist(), wraps.tolist(), strict=True):
        expected = result(a, b)
        fits = I64_LO <= expected <= I64_HI
        assert function(a, b) == ((expected, False) if fits else (function(a, b)[0], True))
        assert value == expected if not gone else not fits or (may_give_up and near(expected))


def near(value: int) -> bool:
    """Whether a product is too near the ends of 64 bits for fp64 to tell."""
    return abs(value) > I64_HI - 2**14


@pytest.mark.parametrize("power", [0, 1, 2, 3, 62, 63, 64, 65, 10**9 + 1])
def test_a_power_is_exact_or_known_to_leave_64_bits(power: int) -> None:
    values, wraps = ends.exact_power(torch.tensor(NUMBERS), power)
    for x, value, gone in zip(NUMBERS, values.tolist(), wraps.tolist(), strict=True):
        alone, alone_gone = ends.exact_power(x, power)
        assert gone >= alone_gone and (gone or value == alone)
        if power < 100:
            assert alone_gone == (not I64_LO <= x**power <= I64_HI)
            assert alone_gone or alone == x**power


def test_a_shift_is_exact_or_known_to_leave_64_bits() -> None:
    pairs = list(itertools.product(NUMBERS, (0, 1, 31, 62, 63)))
    x, count = torch.tensor(pairs).T
    values, wraps = ends.exact_shift(x, count)
    for (a, n), value, gone in zip(pairs, values.tolist(), wraps.tolist(), strict=True):
        assert ends.exact_shift(a, n)[1] == gone == (not I64_LO <= a << n <= I64_HI)
        assert gone or value == a << n


def test_a_number_that_leaves_64_bits_can_stand_beside_a_tensor() -> None:
    value, wraps = ends.exact_sum(I64_HI, I64_HI)
    assert ends.choose(torch.tensor([True, False]) | wraps, 3, value).tolist() == [3, 3]


def test_chosen_floats_keep_the_precision_of_fp64() -> None:
    chosen = ends.choose(torch.tensor([True, False]), 0.1, 0.2)
    assert chosen.dtype is torch.float64 and chosen.tolist() == [0.1, 0.2]


@pytest.mark.parametrize(
    ("x", "y"), [(3, 5), (0.5, -0.25), (True, False), (I64_LO, I64_HI), (math.inf, 1.0)]
)
def test_extremes_of_numbers_and_tensors_are_the_same(x: Any, y: Any) -> None:
    dtype = torch.float64 if isinstance(x, float) else None
    many = [torch.tensor([end] * 2, dtype=dtype) for end in (x, y)]
    for a, b in itertools.product((x, many[0]), (y, many[1])):
        found = ends.spread((a, b))
        tensors = isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor)
        expected = min(x, y), max(x, y)
        assert tuple(end[1].item() if tensors else end for end in found) == expected
        assert type(ends.least(x, y)) is type(x)


def test_bits_are_filled_below_the_highest() -> None:
    numbers = [0, 1, 2, 5, 64, 2**40 + 3, I64_HI]
    expected = [0, 1, 3, 7, 127, 2**41 - 1, I64_HI]
    assert [ends.bits_filled(x) for x in numbers] == expected
    assert ends.bits_filled(torch.tensor(numbers)).tolist() == expected
