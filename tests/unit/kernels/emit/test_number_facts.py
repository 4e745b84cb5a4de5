"""What a plan rests on about numbers: equal facts mean equal plans, and few numbers are facts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch

from flexfa4.frontend.analysis.bounds import premises
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.captures import capture_plan
from flexfa4.kernels.emit.number_facts import number_facts
from flexfa4.kernels.emit.program import prepare_score, score_promises

SIZES = Sizes(2, 4, 4, 300, 300)
TABLE = torch.zeros(32)

Make = Callable[[Any], Callable[..., Any]]
MODS: dict[str, Make] = {
    "score + n * (kv - q)": lambda n: lambda s, b, h, q, kv: s + n * (kv - q),
    "n * score": lambda n: lambda s, b, h, q, kv: n * s,
    "n * tanh(score / n)": lambda n: lambda s, b, h, q, kv: n * torch.tanh(s / n),
    "(n + 1) * score": lambda n: lambda s, b, h, q, kv: (n + 1) * s,
}
WHOLE: dict[str, Make] = {
    "score + table[min(kv, n)]": lambda n: lambda s, b, h, q, kv: s + TABLE[torch.clamp(kv, max=n)],
    "score + table[clamp(q - kv, 0, n)]": lambda n: (
        lambda s, b, h, q, kv: s + TABLE[(q - kv).clamp(0, n)]
    ),
    "score + kv // n": lambda n: lambda s, b, h, q, kv: s + kv // (n or 1),
    "score where q - kv < n": lambda n: (
        lambda s, b, h, q, kv: torch.where(q - kv < n, s, -float("inf"))
    ),
}
NUMBERS = (0.5, 2.0, 3.0, 31.0, 32.0, 0.0, -1.0, -5.0, 1e30, 1e-30, 2.0**29, 2.0**40)


def bound_to(name: str, number: float) -> BoundGraph:
    mod = WHOLE[name](int(min(number, 2.0**50))) if name in WHOLE else MODS[name](number)
    return resolve(mod, "score")


def plan_of(bound: BoundGraph) -> Hashable:
    """Return all that a plan has of a score mod."""
    promises = score_promises(bound.graph, premises(bound, SIZES).domain(), 1.0)
    return prepare_score(bound.graph, promises), capture_plan(bound, SIZES)


@pytest.mark.parametrize("name", [*MODS, *WHOLE])
def test_equal_facts_mean_equal_plans(name: str) -> None:
    known = [
        (number_facts(bound, SIZES), bound.graph, plan_of(bound))
        for bound in (bound_to(name, n) for n in NUMBERS)
    ]
    for (facts, graph, plan), (others, other, its) in itertools.combinations(known, 2):
        assert (facts, graph) != (others, other) or plan == its
    assert len({facts for facts, _, _ in known}) <= 4  # and few differ


@pytest.mark.parametrize("number", [3.0, -1e-30, 1e300, float("nan")])
def test_a_number_that_code_does_not_rest_on_is_no_fact(number: float) -> None:
    facts = {number_facts(bound_to("score + n * (kv - q)", n), SIZES) for n in (0.5, number)}
    assert len(facts) == 1


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("n * score", (2.0, 0.0)),
        ("n * score", (2.0, -2.0)),
        ("n * tanh(score / n)", (2.0, 1e30)),
        ("(n + 1) * score", (2.0, -3.0)),
        ("score + table[clamp(q - kv, 0, n)]", (31, 32)),
        ("score where q - kv < n", (7, 1 << 29)),
    ],
)
def test_facts_tell_numbers_apart_that_need_other_code(name: str, numbers: Any) -> None:
    first, second = (bound_to(name, n) for n in numbers)
    assert number_facts(first, SIZES) != number_facts(second, SIZES)
    assert plan_of(first) != plan_of(second)
