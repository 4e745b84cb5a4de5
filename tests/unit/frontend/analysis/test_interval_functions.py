"""Powers in many boxes, and functions whose ends are poles."""

from __future__ import annotations

import math

import pytest
import torch

from flexfa4.frontend.analysis import interval_functions as fn
from flexfa4.frontend.analysis.intervals import ANY_F32, ANY_I32, Interval, point

INF = math.inf


def test_a_power_with_one_exponent_is_bounded_box_by_box() -> None:
    base = Interval(torch.tensor([-3, 2, -(2**32)]), torch.tensor([2, 5, 0]))
    squares = fn.pow_(base, point(2))
    assert squares.lo.tolist() == [0, 4, ANY_I32.lo] and squares.hi.tolist() == [9, 25, ANY_I32.hi]
    cubes = fn.pow_(base, point(3))
    assert cubes.lo.tolist()[:2] == [-27, 8] and cubes.hi.tolist()[:2] == [8, 125]


def test_a_constant_exponent_of_floats_is_known_exactly() -> None:
    found = fn.pow_(Interval(-2.0, 1.0), point(2.0))
    assert found.lo == 0 and 4 < found.hi < 4.001 and not found.nan


def test_exponents_that_differ_are_bounded_together() -> None:
    exponents = Interval(torch.tensor([0, 3]), torch.tensor([1, 4]))
    assert fn.pow_(point(2), exponents) == Interval(1, 16)


@pytest.mark.parametrize(("dtype", "anything"), [(torch.int64, ANY_I32), (torch.float64, ANY_F32)])
def test_no_boxes_at_all_are_no_error(dtype: torch.dtype, anything: Interval) -> None:
    none = torch.empty(0, dtype=dtype)
    assert fn.pow_(Interval(none, none), Interval(none, none)) == anything


def test_poles_are_infinite_in_their_boxes_only() -> None:
    a = Interval(
        torch.tensor([0.0, 4.0, -1.0], dtype=torch.float64),
        torch.tensor([1.0, 9.0, 1.0], dtype=torch.float64),
    )
    roots = fn.rsqrt(a)
    assert roots.lo.tolist()[::2] == [-INF, -INF] and roots.hi.tolist()[::2] == [INF, INF]
    assert roots.lo[1] < 1 / 3 and 0.5 < roots.hi[1] < 0.501
    assert roots.nan.tolist() == [False, False, True]
    logs = fn.log(a)
    assert logs.lo.tolist()[::2] == [-INF, -INF] and math.log(4) - 1e-5 < logs.lo[1] < math.log(4)
    assert logs.nan.tolist() == [False, False, True]
