"""Unions of intervals: set algebra by brute force, and how short they become."""

from __future__ import annotations

import itertools

import pytest
import torch

from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import I32, Node, Scalar, const, scalar, symbol
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.masks.solving.linear_forms import Form, form_of
from flexfa4.frontend.masks.solving.spans import (
    EVERYTHING,
    MOST_SPANS,
    NOTHING,
    Algebra,
    Clause,
    TooManyError,
    Union,
    literal,
)
from flexfa4.frontend.ops import apply
from tests.leaves import Q

LENGTH = 6
W = scalar(Scalar("w", I32))
Q_FORM, W_FORM = form_of(Q), form_of(W)
SMALL = apply("lt", W, const(2))

CLAUSES = [
    Clause(uppers=(Q_FORM.shifted(1),)),
    Clause(lowers=(Q_FORM.plus(W_FORM, -1),)),
    Clause((Q_FORM,), (W_FORM,)),
    Clause((Form((), 2),), (Form((), 4),)),
    Clause(lowers=(W_FORM,), guards=frozenset({literal(SMALL, True)})),
    Clause(uppers=(Q_FORM,), guards=frozenset({literal(SMALL, False)})),
]


def algebra() -> Algebra:
    return Algebra(symbol("kv_len"))


def value(node: Node, w: int) -> torch.Tensor:
    values = Values(scalars={W.attr: w}, symbols={"kv_len": LENGTH})
    (found,) = Program((node,)).run(values, Lanes((0, 1), (0, 1), (0, 5), (0, 1)))
    return torch.as_tensor(found).reshape(-1).expand(5)


def members(union: Union, w: int) -> torch.Tensor:
    """Return which positions a union holds for q from 0 to 4, bool ``(q, LENGTH)``."""
    at, found = torch.arange(LENGTH), torch.zeros(5, LENGTH, dtype=torch.bool)
    spans, _ = algebra().spans(union)
    for span in spans:
        start, stop = value(span.start, w)[:, None], value(span.stop, w)[:, None]
        found |= (at >= start) & (at < stop)
    return found


@pytest.mark.parametrize("w", [-3, 0, 1, 2, 4, 9])
def test_unions_and_intersections_are_those_of_sets(w: int) -> None:
    single = [(clause,) for clause in CLAUSES]
    sets = [members(union, w) for union in single]
    for i, j in itertools.combinations(range(len(single)), 2):
        either, both = (f(single[i], single[j]) for f in (algebra().either, algebra().both))
        assert torch.equal(members(either, w), sets[i] | sets[j])
        assert torch.equal(members(both, w), sets[i] & sets[j])
        k = (i + j) % len(single)
        three = algebra().both(either, single[k])
        assert torch.equal(members(three, w), (sets[i] | sets[j]) & sets[k])


def clause(low: int | None, high: int | None) -> Clause:
    lowers = () if low is None else (Q_FORM.shifted(low),)
    return Clause(lowers, () if high is None else (Q_FORM.shifted(high),))


@pytest.mark.parametrize(
    ("a", "b", "union"),
    [
        (clause(0, 5), clause(1, 3), (clause(0, 5),)),  # one holds the other
        (clause(0, 3), clause(2, 5), (clause(0, 5),)),  # they overlap
        (clause(3, 5), clause(0, 3), (clause(0, 5),)),  # they meet
        (clause(None, 2), clause(1, None), EVERYTHING),
        (clause(0, 2), clause(3, 5), (clause(0, 2), clause(3, 5))),
        (clause(2, 2), clause(3, 1), NOTHING),
    ],
)
def test_intervals_that_meet_become_one(a: Clause, b: Clause, union: Union) -> None:
    assert algebra().either((a,), (b,)) == union


def test_a_condition_and_its_opposite_cancel() -> None:
    positive, negative = (
        Clause((Q_FORM,), guards=frozenset({literal(node, True)}))
        for node in (SMALL, apply("ge", W, const(2)))
    )
    assert algebra().either((positive,), (negative,)) == (Clause((Q_FORM,)),)
    assert algebra().both((positive,), (negative,)) == NOTHING


def test_more_intervals_than_a_kernel_should_look_at_are_refused() -> None:
    union: Union = NOTHING
    for i in range(MOST_SPANS):
        union = algebra().either(union, (clause(2 * i, 2 * i + 1),))
    assert len(algebra().spans(union)[0]) == MOST_SPANS
    with pytest.raises(TooManyError):
        algebra().spans(algebra().either(union, (clause(99, 100),)))
    with pytest.raises(TooManyError):  # while it is being made, too
        for i in range(99):
            union = algebra().either(union, (clause(3 * i + 50, 3 * i + 51),))
