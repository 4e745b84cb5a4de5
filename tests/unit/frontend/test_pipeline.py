"""The passes: what the range of indices decides is replaced, and each result is verified."""

from __future__ import annotations

import pytest

from flexfa4.frontend import pipeline
from flexfa4.frontend.ir import (
    BOOL,
    Node,
    const,
    input_,
    make_graph,
    symbol,
)
from flexfa4.frontend.ops import apply
from flexfa4.frontend.pipeline import PASSES, optimise
from flexfa4.frontend.verify import GraphError
from tests.leaves import KV, Q


def optimised_mask(root: Node) -> Node:
    return optimise(make_graph("mask", root)).root


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (apply("and", apply("ge", Q, const(0)), apply("ge", Q, KV)), apply("ge", Q, KV)),
        (apply("gt", symbol("num_heads"), const(0)), const(True)),
        (apply("lt", apply("abs", Q), KV), apply("lt", Q, KV)),
        (apply("lt", apply("max", const(0), Q), KV), apply("lt", Q, KV)),
        (apply("lt", apply("min", Q, const(0)), KV), apply("gt", KV, const(0))),
        (apply("ge", Q, const(1)), apply("ge", Q, const(1))),
    ],
)
def test_what_the_range_of_indices_decides_is_replaced(root: Node, expected: Node) -> None:
    assert optimised_mask(root) is expected


def test_what_becomes_constant_is_converted_and_simplified() -> None:
    inside = apply("to_f32", apply("ge", Q, const(0)))
    root = apply("mul", input_("score"), inside)
    assert optimise(make_graph("score", root)).root is input_("score")


def test_a_pass_that_breaks_the_graph_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    breaks = pipeline.Pass("break", lambda root: apply("to_i32", root), "breaks the root's dtype")
    monkeypatch.setattr(pipeline, "PASSES", (*PASSES, breaks))
    monkeypatch.setenv("FLEXFA4_VERIFY", "1")
    with pytest.raises(GraphError, match="root"):
        optimised_mask(apply("ge", Q, KV))
    monkeypatch.setenv("FLEXFA4_VERIFY", "0")
    assert optimised_mask(apply("ge", Q, KV)).dtype is not BOOL


def test_passes_have_names_that_differ() -> None:
    assert len({step.name for step in PASSES}) == len(PASSES) > 0
