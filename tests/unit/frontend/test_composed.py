"""A function that text and torch share has the same values and derivatives in both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexfa4.frontend.derivative import derivatives
from flexfa4.frontend.ops import OPS, Call
from flexfa4.frontend.text import vocabulary
from flexfa4.frontend.tracing import torch_functions
from flexfa4.frontend.tracing.trace import parse, resolve

REDUCTIONS = {row.text.name for row in OPS.values() if row.reduces and isinstance(row.text, Call)}
SHARED = sorted(vocabulary.FUNCTIONS.keys() & torch_functions.FUNCTIONS.keys() - REDUCTIONS)
CONDITIONS = ("bool", "isnan")
# min and max of two values are torch.minimum and torch.maximum
ARGUMENTS: dict[str, tuple[str, Callable[[Any, Any, Any], tuple[Any, ...]]]] = {
    "clamp": ("score, -0.5, 0.5", lambda score, q, kv: (score, -0.5, 0.5)),
    "where": ("q > kv, score, 0.0", lambda score, q, kv: (q > kv, score, 0.0)),
    "min": ("score, q", lambda score, q, kv: (score, q)),
    "max": ("score, q", lambda score, q, kv: (score, q)),
}


@pytest.mark.parametrize("name", SHARED)
def test_text_and_torch_mean_the_same(name: str) -> None:
    text, arguments = ARGUMENTS.get(name, ("score", lambda score, q, kv: (score,)))

    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        result = torch_functions.call(name, arguments(score, q, kv), {})
        return torch.where(result, score, 2.0) if name in CONDITIONS else result

    call = f"{name}({text})"
    read = parse(f"where({call}, score, 2.0)" if name in CONDITIONS else call).graph
    traced = resolve(score_mod, "score").graph
    assert traced == read
    assert derivatives(traced) == derivatives(read)


def test_the_functions_that_could_differ_are_among_those_compared() -> None:
    assert {"clamp", "relu", "square", "isnan", "abs", "max", "floor"} <= set(SHARED)
