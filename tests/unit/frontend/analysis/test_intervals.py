"""Interval rules hold every value that the eager meaning of their op gives."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch

from flexfa4.frontend.analysis import intervals as iv
from flexfa4.frontend.analysis.intervals import ANY_BOOL, ANY_I32, FALSE, TRUE, Interval
from flexfa4.frontend.ir import BOOL, F32, I32, DType
from flexfa4.frontend.ops import OPS, Op

INF = math.inf
LO, HI = -(2**63), 2**63 - 1
MAX, TINY, LEAST = 3.4028234663852886e38, 1.1754943508222875e-38, 1.401298464324817e-45  # of fp32
_INTS = [1, 2, 3, 8, 63, 64, 1000, 2**24 + 1, 3037000500, 2**62, HI]  # 3037000500^2 exceeds 64 bits
_TENTH = 0.10000000149011612
_FLOATS = [LEAST, TINY, _TENTH, 1.0, 2.5, 3.0, 88.0, 2.0**63, MAX, INF]
# Boxes are between any two of these numbers.
ENDS: dict[DType, list[Any]] = {
    I32: sorted({0, LO, -7, *_INTS, *(-v for v in _INTS)}),
    F32: sorted({0.0, *_FLOATS, *(-v for v in _FLOATS)}),
    BOOL: [False, True],
}
# Values are these and all ends.
INSIDE: dict[DType, list[Any]] = {
    I32: [*range(-9, 10), 17, -100, 12345, -(2**40) + 1],
    F32: [math.nan, -1.5, -1e-3, 1e-3, 0.75, 1.5, 12.0, 1e19, -1e30],
    BOOL: [],
}
STORED = {F32: torch.float64, I32: torch.int64, BOOL: torch.bool}
COMPUTED = {F32: (torch.float32, torch.float64), I32: (torch.int64,), BOOL: (torch.bool,)}
LENGTH = 5  # of vectors
SAMPLES = 150  # boxes that are also bounded one at a time


@dataclass(frozen=True)
class Operand:
    """All boxes of an operand along one axis of a grid, and all values along the same axis.

    Attributes:
        interval: the boxes together.
        values: of the dtype that ends are stored in, and whether each lies ``inside`` each box.
    """

    interval: Interval
    values: torch.Tensor
    inside: torch.Tensor

    @classmethod
    @functools.cache
    def of(cls, dtype: DType, axis: int, axes: int) -> Operand:
        """Return the operand that varies along one of the axes."""
        ends = ENDS[dtype]
        if axes == 3 and dtype is not BOOL:  # the grid would be large
            ends = ends[::3]
        boxes = [(*box, False) for box in itertools.combinations_with_replacement(ends, 2)]
        if dtype is F32:
            boxes += [(lo, hi, True) for lo, hi, _ in boxes[::5]]
        lo, hi = (torch.tensor([box[i] for box in boxes], dtype=STORED[dtype]) for i in (0, 1))
        nan = torch.tensor([box[2] for box in boxes])
        values = torch.tensor(sorted({*ENDS[dtype], *INSIDE[dtype]}), dtype=STORED[dtype])
        inside = (lo[:, None] <= values) & (values <= hi[:, None])
        inside |= nan[:, None] & values.isnan()
        shape = [-1 if i == axis else 1 for i in range(axes)]
        parts = [part.view(shape) for part in (lo, hi, nan)]
        return cls(Interval(*parts[: 2 + (dtype is F32)]), values.view(shape), inside)


def reached(result: torch.Tensor, valid: torch.Tensor, operands: list[Operand]) -> Interval:
    """Return the least and greatest result of valid lanes, and whether NaN is one, in each box."""
    nan = result.isnan() & valid
    valid = valid & ~nan
    if result.dtype is torch.bool:
        result = result.long()
    least, most = (-INF, INF) if result.is_floating_point() else (LO, HI)
    lo, hi = result.where(valid, most), result.where(valid, least)
    for axis, operand in enumerate(operands):
        inside = operand.inside

        def joined(
            t: torch.Tensor, nothing: Any, join: Any, axis: int = axis, inside: Any = inside
        ) -> torch.Tensor:
            values = t.movedim(axis, -1).unsqueeze(-2)  # beside each box along this axis
            return join(torch.where(inside, values, nothing), -1).movedim(-1, axis)

        lo, hi = joined(lo, most, torch.amin), joined(hi, least, torch.amax)
        nan = joined(nan, False, torch.any)
    return Interval(lo, hi, nan)


def assert_holds(interval: Interval, values: Interval, what: object) -> None:
    """Every box's interval holds the results that were reached in it."""
    ends = zip((interval.lo, interval.hi), (values.lo, values.hi), strict=True)
    lo, least, hi, most = [
        torch.as_tensor(x, dtype=torch.float64 if v.is_floating_point() else v.dtype)
        for e, v in ends
        for x in (e, v)
    ]
    some = least <= most
    wrong = (some & ((lo > least) | (hi < most))) | (values.nan & ~torch.as_tensor(interval.nan))
    assert not wrong.any(), (what, wrong.nonzero()[0])


def box(interval: Interval, shape: torch.Size, at: tuple[int, ...]) -> Interval:
    """Return one box of a grid, of numbers."""
    parts = [
        end.expand(shape)[at].item() if isinstance(end, torch.Tensor) else end for end in interval
    ]
    return Interval(*parts)


def assert_agrees(name: str, found: Interval, alone: Interval, what: object) -> None:
    """A box among many is bounded as it is alone; looser only where that is the design."""
    if name == "pow":  # with exponents that differ, by the hull of all boxes
        assert found.lo <= alone.lo and alone.hi <= found.hi and found.nan >= alone.nan, what
    elif found == ANY_I32:  # products are given up a little before they leave 64 bits
        assert alone == ANY_I32 or max(-alone.lo, alone.hi) > HI - 2**14, what
    else:
        ends = zip((found.lo, found.hi), (alone.lo, alone.hi), strict=True)
        assert all(math.isclose(x, y, rel_tol=1e-12) for x, y in ends), what
        assert found.nan == alone.nan and type(found.lo) is type(alone.lo), what


CASES = [
    (name, dtype)
    for name, row in OPS.items()
    for dtype in sorted(row.dtypes.operands, key=lambda d: d.value)
]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=[f"{n}-{d.value}" for n, d in CASES])
def test_many_boxes_hold_all_values_and_are_bounded_as_one_at_a_time(
    name: str, dtype: DType
) -> None:
    row, arity = OPS[name], OPS[name].dtypes.arity
    kinds = [dtype] * arity
    if row.dtypes.first is not None:
        kinds[0] = row.dtypes.first
    operands = [Operand.of(kind, axis, arity) for axis, kind in enumerate(kinds)]
    length = (LENGTH,) if row.reduces else ()
    intervals = [operand.interval for operand in operands]
    found = row.interval(*intervals, *length)
    for computed in COMPUTED[dtype]:
        values = [v.values.to(computed) if k is dtype else v.values
                  for v, k in zip(operands, kinds, strict=True)]  # fmt: skip
        if row.reduces:  # vectors of two values
            assert_holds(found, reached_by_vectors(row, values[0], operands[0]), name)
        else:
            valid = torch.ones(1, dtype=torch.bool)
            if dtype is I32 and name in ("floordiv", "mod"):  # torch raises, or the machine traps
                valid = (values[1] != 0) & ~((values[0] == LO) & (values[1] == -1))
                values[1] = torch.where(valid, values[1], 1)
            assert_holds(found, reached(row.eager(*values), valid, operands), (name, computed))
    shape = torch.broadcast_shapes(*[i.lo.shape for i in intervals])
    random = Random(name)
    for _ in range(SAMPLES):
        at = tuple(random.randrange(n) for n in shape)
        ones = [box(i, shape, at) for i in intervals]
        alone = row.interval(*ones, *length)
        assert not any(isinstance(part, torch.Tensor) for part in alone)
        assert_agrees(name, box(found, shape, at), alone, (name, ones, alone))


def reached_by_vectors(row: Op, values: torch.Tensor, operand: Operand) -> Interval:
    """Return what a reduction gives of vectors of two values of a box."""
    first, second = torch.broadcast_tensors(values[:, None], values)
    vectors = torch.stack([first] * 3 + [second] * (LENGTH - 3), -1)
    result = row.eager(vectors)
    valid = torch.ones(1, dtype=torch.bool)
    pairs = reached(result, valid, [operand, operand])
    return Interval(*[part.diagonal() for part in pairs])


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=[f"{n}-{d.value}" for n, d in CASES])
def test_numbers_and_tensors_mix(name: str, dtype: DType) -> None:
    row, arity = OPS[name], OPS[name].dtypes.arity
    length = (LENGTH,) if row.reduces else ()
    random = Random(name)
    for _ in range(10):
        many, ones = [], []
        for position in range(arity):
            kind = row.dtypes.first if position == 0 and row.dtypes.first else dtype
            lo, hi = sorted(random.choices(ENDS[kind], k=2))
            nan = kind is F32 and random.random() < 0.5
            ones.append(Interval(lo, hi, nan))
            tensors = [torch.tensor([end] * 2, dtype=STORED[kind]) for end in (lo, hi)]
            some_lo, some_hi = map(random.choice, zip((lo, hi), tensors, strict=True))
            some_nan = torch.tensor([nan] * 2) if nan and random.random() < 0.5 else nan
            many.append(Interval(some_lo, some_hi, some_nan))
        found, alone = row.interval(*many, *length), row.interval(*ones, *length)
        assert_agrees(name, box(found, torch.Size([2]), (1,)), alone, (name, many))


@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        ("add", [(1, 2), (10, 20)], Interval(11, 22)),
        ("add", [(2**63 - 1, 2**63 - 1), (1, 1)], ANY_I32),
        ("neg", [(-(2**63), 0)], ANY_I32),
        ("abs", [(-5, 3)], Interval(0, 5)),
        ("mul", [(-3, 2), (-5, 7)], Interval(-21, 15)),
        ("mul", [(0.0, 2.0), (0.0, INF)], Interval(0.0, INF, True)),
        ("div", [(0.0, INF), (1.0, INF)], Interval(0.0, INF, True)),
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
        ("shr", [(-5, 9), (1, 64)], ANY_I32),
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
    many = [
        Interval(lo, hi) if lo == hi else Interval(torch.tensor([lo] * 2), torch.tensor(hi))
        for lo, hi in operands
    ]
    assert box(OPS[name].interval(*many), torch.Size([2]), (1,)) == expected


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("sub", (0.0, INF), (0.0, INF)),
        ("add", (-INF, 0.0), (0.0, INF)),
        ("mul", (0.0, 1.0), (0.0, INF)),
        ("div", (0.0, 1.0), (0.0, 1.0)),
        ("div", (1.0, INF), (1.0, INF)),
        ("mod", (0.0, INF), (1.0, 2.0)),
        ("mod", (3e38, 3e38), (0.5, 0.5)),
        ("floordiv", (3e38, 3e38), (0.5, 0.5)),
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
