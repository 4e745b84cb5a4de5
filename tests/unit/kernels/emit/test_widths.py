"""Bounds of a graph's integers that follow from a plan, and which of them need 64 bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.frontend.ir import Node, topological
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.captures import capture_plan
from flexfa4.kernels.emit.widths import Ranges

SIZES = Sizes(2, 4, 2, 300, 300)


def division(mod: Any) -> tuple[Ranges, Node]:
    """Return the bounds of a score mod's graph, and its only division."""
    bound = resolve(mod, "score")
    (found,) = [n for n in topological(bound.graph.root) if n.op in ("floordiv", "mod")]
    return Ranges(bound.graph, capture_plan(bound, SIZES)), found


def by(number: int) -> tuple[Ranges, Node]:
    return division(lambda s, b, h, q, kv: s + kv // number)


@pytest.mark.parametrize("number", [1, 14, 2**29 - 1])
def test_a_quotient_by_a_positive_number_is_no_wider_than_what_is_divided(number: int) -> None:
    ranges, quotient = by(number)
    assert ranges.width(quotient) == 32 and ranges.interval(quotient).lo == 0


@pytest.mark.parametrize("number", [-1, -14, 2**40])
def test_a_quotient_by_another_number_may_be_anything(number: int) -> None:
    ranges, quotient = by(number)
    assert ranges.width(quotient) == 64


def test_plans_know_of_no_other_number_that_it_is_positive() -> None:
    bound = resolve(lambda s, b, h, q, kv: s + (kv // 1 + q) * 2, "score")
    assert capture_plan(bound, SIZES).positive == ()


@pytest.mark.parametrize(
    ("dtype", "wraps"), [(torch.int16, False), (torch.int32, True), (torch.int64, True)]
)
def test_only_the_least_integer_leaves_its_width_when_it_is_divided(
    dtype: torch.dtype, wraps: bool
) -> None:
    table, number = torch.zeros(300, dtype=dtype), -1
    ranges, quotient = division(lambda s, b, h, q, kv: s + table[kv] // number)
    assert ranges.wraps(quotient) == wraps
