"""Score mods taken apart: what is left for each score, and what is moved out of it."""

from __future__ import annotations

import pytest

import flexfa4
from flexfa4.frontend.analysis.peeling import fold_inner, peeled, product
from flexfa4.frontend.ir import F32, Node, const
from flexfa4.frontend.tracing.trace import resolve

ONE, ZERO = const(1.0, F32), const(0.0, F32)


def root(text: str) -> Node:
    return resolve(flexfa4.parse(text), "score").graph.root


# A mod -> its core, what its factor varies with, and what each term that is added varies with.
PEELED: dict[str, tuple[str, set[str], list[set[str]]]] = {
    "score": ("score", set(), []),
    "2 * score + q": ("score", set(), [{"q"}]),
    "kv - score / (1 + q)": ("score", {"q"}, [{"kv"}]),
    "(1 + q) * (score + kv)": ("score", {"q"}, [{"q", "kv"}]),
    "score * kv": ("score * kv", set(), []),
    "30 * tanh(score / 30) - kv": ("tanh(score / 30)", set(), [{"kv"}]),
}


@pytest.mark.parametrize("mod", PEELED)
def test_factors_of_a_row_and_terms_without_the_score_are_peeled_off(mod: str) -> None:
    core, factor, terms = PEELED[mod]
    found, outer, added = peeled(root(mod))
    assert found is root(core)
    assert outer.depends == factor
    assert [term.depends for term in added] == terms


def test_a_factor_of_every_use_of_the_score_leaves_the_core() -> None:
    core, _, _ = peeled(root("tanh(score * (1 + q))"))
    inner, left = fold_inner(core)
    assert inner is not None and inner.depends == {"q"}
    assert left.op == "tanh" and left.args[0].op == "input"


def test_products_leave_out_what_changes_nothing() -> None:
    x = root("score")
    assert product(ONE, x) is x and product(x, ONE) is x
    assert product(ZERO, x) is ZERO
