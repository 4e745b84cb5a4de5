"""Interval rules hold every value that the eager meaning of their op gives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.analysis import intervals as iv
from flexfa4.frontend.analysis.intervals import ANY_BOOL, ANY_I32, FALSE, TRUE, Interval
from flexfa4.frontend.ir import BOOL, F32, I32, DType
from flexfa4.frontend.ops import OPS, Op

INF = math.inf
SAMPLES = 12

_edge_ints = [-(2**63), 2**63 - 1, -(2**31), 2**31, -(2**24) - 1, 2**24 + 1]
INTS = st.one_of(
    st.integers(-70, 70), st.sampled_from(_edge_ints), st.integers(-(2**63), 2**63 - 1)
)
FLOATS = st.one_of(
    st.integers(-9, 9).map(float),
    st.floats(-8, 8, width=32),
    st.floats(allow_nan=False, width=32),
)
ENDS: dict[DType, st.SearchStrategy[Any]] = {F32: FLOATS, I32: INTS, BOOL: st.booleans()}
TORCH = {F32: torch.float32, I32: torch.int64, BOOL: torch.bool}


@st.composite
def boxes(draw: st.DrawFn, dtype: DType) -> tuple[Interval, torch.Tensor]:
    """Draw an interval and values inside it, its ends among them."""
    lo, hi = sorted((draw(ENDS[dtype]), draw(ENDS[dtype])))
    random = draw(st.randoms(use_true_random=False))
    values = [lo, hi, *(v for v in (0, 1, -1) if lo <= v <= hi)]
    while len(values) < SAMPLES:
        if dtype is F32:
            a, b = max(lo, -3e38), min(hi, 3e38)
            inside = a + (b - a) * random.random() if a < b else lo
            values.append(min(max(inside, lo), hi))
        else:
            values.append(random.randint(lo, hi) if dtype is I32 else random.choice([lo, hi]))
    nan = dtype is F32 and draw(st.booleans())
    if nan:
        values[random.randrange(SAMPLES)] = math.nan
    random.shuffle(values)
    return Interval(lo, hi, nan), torch.tensor(values, dtype=TORCH[dtype])


def operand_dtypes(row: Op) -> list[DType]:
    return sorted(row.dtypes.operands, key=lambda d: d.value)


def assert_holds(interval: Interval, values: torch.Tensor, what: object) -> None:
    for value in values.flatten().tolist():
        assert value in interval, f"{what}: {value} is not in {interval}"


CASES = [(name, dtype) for name, row in OPS.items() for dtype in operand_dtypes(row)]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=[f"{n}-{d.value}" for n, d in CASES])
@given(data=st.data())
def test_result_lies_in_the_interval(name: str, dtype: DType, data: st.DataObject) -> None:
    row = OPS[name]
    kinds = [dtype] * row.dtypes.arity
    if row.dtypes.first is not None:
        kinds[0] = row.dtypes.first
    drawn = [data.draw(boxes(kind)) for kind in kinds]
    intervals, values = [i for i, _ in drawn], [v for _, v in drawn]
    if dtype is I32 and name in ("floordiv", "mod"):  # torch raises, or the machine traps
        values[1][(values[1] == 0) | (values[1] == -1)] = 0
        keep = values[1] != 0
        values = [v[keep] for v in values]
    if row.reduces:
        result = row.interval(intervals[0], SAMPLES)
        values = [values[0].reshape(1, -1)]
    else:
        result = row.interval(*intervals)
    assert_holds(result, row.eager(*values), (name, intervals))
    if dtype is F32 and name != "to_i32":
        doubles = [v.double() if v.dtype is torch.float32 else v for v in values]
        assert_holds(result, row.eager(*doubles), (name, intervals, "fp64"))


@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        ("add", [(1, 2), (10, 20)], Interval(11, 22)),
        ("add", [(2**63 - 1, 2**63 - 1), (1, 1)], ANY_I32),
        ("neg", [(-(2**63), 0)], ANY_I32),
        ("abs", [(-5, 3)], Interval(0, 5)),
        ("mul", [(-3, 2), (-5, 7)], Interval(-21, 15)),
        ("floordiv", [(-7, 7), (2, 3)], Interval(-4, 3)),
        ("floordiv", [(7, 9), (-2, -1)], Interval(-9, -4)),
        ("mod", [(0, 1000), (128, 128)], Interval(0, 127)),
        ("mod", [(128, 130), (128, 128)], Interval(0, 2)),
        ("mod", [(5, 9), (-4, -4)], Interval(-3, 0)),
        ("mod", [(3, 5), (10, 20)], Interval(3, 5)),
        ("mod", [(0, 3), (-1, 1)], ANY_I32),
        ("pow", [(-3, 2), (2, 2)], Interval(0, 9)),
        ("shl", [(1, 3), (2, 4)], Interval(4, 48)),
        ("shl", [(1, 3), (2, 64)], ANY_I32),
        ("shr", [(-5, 9), (1, 1)], Interval(-3, 4)),
        ("and", [(0, 1000), (127, 127)], Interval(0, 127)),
        ("and", [(-4, 3), (-9, 8)], Interval(-16, 8)),
        ("or", [(1, 4), (2, 9)], Interval(2, 15)),
        ("not", [(0, 5)], Interval(-6, -1)),
        ("not", [(False, False)], TRUE),
        ("xor", [(True, True), (False, True)], ANY_BOOL),
        ("lt", [(0, 4), (5, 9)], TRUE),
        ("lt", [(5, 9), (0, 5)], FALSE),
        ("le", [(0, 5), (5, 9)], TRUE),
        ("eq", [(3, 3), (3, 3)], TRUE),
        ("ne", [(0, 2), (3, 4)], TRUE),
        ("where", [(True, True), (1, 2), (5, 6)], Interval(1, 2)),
        ("to_f32", [(0, 2**24)], Interval(0.0, 2.0**24)),
        ("to_i32", [(-1.5, 2.5)], Interval(-1, 2)),
        ("tanh", [(-INF, INF)], Interval(-1.0, 1.0)),
        ("floor", [(0.5, 2.5)], Interval(0.0, 2.0)),
    ],
)
def test_rules_are_tight(name: str, operands: list[tuple[Any, Any]], expected: Interval) -> None:
    result = OPS[name].interval(*(Interval(*ends) for ends in operands))
    assert result == expected
    assert type(result.lo) is type(expected.lo)


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("sub", (0.0, INF), (0.0, INF)),
        ("add", (-INF, 0.0), (0.0, INF)),
        ("mul", (0.0, 1.0), (0.0, INF)),
        ("div", (0.0, 1.0), (0.0, 1.0)),
        ("div", (1.0, INF), (1.0, INF)),
        ("mod", (0.0, INF), (1.0, 2.0)),
        ("pow", (-1.0, 1.0), (0.0, 1.0)),
    ],
)
def test_operations_without_a_value_admit_nan(
    name: str, a: tuple[float, float], b: tuple[float, float]
) -> None:
    assert OPS[name].interval(Interval(*a), Interval(*b)).nan


def test_a_comparison_with_a_possible_nan_is_not_certain() -> None:
    maybe = Interval(0.0, 1.0, nan=True)
    assert iv.lt(maybe, Interval(2.0, 3.0)) == ANY_BOOL
    assert iv.ge(maybe, Interval(2.0, 3.0)) == FALSE
    assert iv.ne(maybe, Interval(2.0, 3.0)) == TRUE


def test_rounding_widens_but_never_changes_the_sign() -> None:
    third = iv.div(Interval(1.0, 1.0), Interval(3.0, 3.0))
    assert third.lo < 1 / 3 < third.hi and third.hi - third.lo < 1e-5
    assert iv.mul(Interval(0.0, 1.0), Interval(0.0, 1.0)).lo == 0
    assert iv.mul(Interval(1e-30, 1.0), Interval(-1.0, -1e-30)).hi == 0
    assert iv.add(Interval(3e38, 3e38), Interval(3e38, 3e38)).hi == INF


def test_an_empty_any_is_false_and_an_empty_sum_zero() -> None:
    assert iv.same(TRUE, 0) == ANY_BOOL
    assert iv.sum_(Interval(3, 5), 0) == Interval(0, 0)
