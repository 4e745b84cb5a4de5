"""Score mods split around the matrix product: what is left for each score, and what is promised."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.analysis.bounds import premises
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.eager import result_on
from flexfa4.frontend.ir import Graph, Node, make_graph
from flexfa4.frontend.ops import apply
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.emit.program import (
    ScoreProgram,
    ScorePromises,
    float_early,
    prepare_mask,
    prepare_score,
    score_promises,
)

SIZES = Sizes(1, 2, 1, 8, 8)
ALL = ScorePromises(scale=True, outer=True)


def graph_of(mod: Any) -> Graph:
    return resolve(mod, "score").graph


def prepared(text: str, promises: ScorePromises = ALL, **captures: Any) -> ScoreProgram:
    return prepare_score(graph_of(flexfa4.parse(text, **captures)), promises)


def text_of(node: Node | None) -> str | None:
    """Return a node as it is printed in a graph."""
    return None if node is None else str(make_graph("score", node)).splitlines()[-1]


def test_without_a_mod_the_maximum_is_that_of_the_products() -> None:
    assert prepare_score(None, ALL).max_of_products
    assert not prepare_score(None, ScorePromises(scale=False)).max_of_products


@pytest.mark.parametrize("text", ["score", "2 * score", "score / 4 + q", "score * 0.5 - h + b"])
def test_nothing_is_left_of_a_mod_that_is_affine_along_the_row(text: str) -> None:
    program = prepared(text)
    assert program.max_of_products
    assert not program.shifts
    assert (program.constant is not None) == (("q" in text) or ("h" in text))


def test_a_factor_that_may_be_negative_is_applied_before_the_maximum() -> None:
    factor = torch.rand(2)
    assert not prepared("score * f[h]", ScorePromises(), f=factor).max_of_products
    assert (
        not prepared("-score").max_of_products
        or prepared("-score", ScorePromises()).defers is False
    )
    assert not prepared("2 * score", ScorePromises(scale=False)).defers


def test_a_core_does_not_need_a_positive_scale() -> None:
    program = prepared("30 * tanh(score / 30)", ScorePromises(scale=False))
    assert program.defers and text_of(program.core) == "tanh(score)"
    assert text_of(program.outer) == "30.0" and program.inner is not None


def test_a_term_that_is_linear_in_kv_leaves_its_value_at_the_origin_to_the_shift() -> None:
    (term,) = prepared("score + slope[h] * (kv - q)", slope=torch.rand(2)).terms
    assert term.part is None and term.origin is not None
    assert text_of(term.coefficient) == "slope[h]"


def test_linear_terms_are_one() -> None:
    program = prepared("score + slope[h] * (kv - q) + 0.5 * kv + q", slope=torch.rand(2))
    (term,) = program.terms
    assert text_of(term.coefficient) == "slope[h] + 0.5"
    assert program.constant is not None and program.constant.depends == {"q"}


def test_a_term_with_a_factor_is_one_fused_multiply_add() -> None:
    program = prepared("score - slope[h] * abs(kv - q)", slope=torch.rand(2))
    (term,) = program.terms
    assert program.defers and term.coefficient is not None and term.part is not None
    assert text_of(term.coefficient) == "-slope[h]"
    assert "kv" in term.part.depends


def test_a_term_without_a_factor_is_added_by_the_scaling() -> None:
    program = prepared("score + bias[h, kv]", bias=torch.rand(2, 8))
    assert not program.defers and [term.coefficient for term in program.terms] == [None]


def test_the_parts_of_a_difference_stay_together() -> None:
    gate = torch.rand(8)
    program = prepared("score + (gate[q] - gate[kv])", gate=gate)
    (term,) = program.terms
    assert program.constant is None and term.part is not None
    assert term.part.depends == {"q", "kv"}
    apart = prepared("score + gate[q] - gate[kv]", gate=gate)
    assert apart.constant is not None and apart.constant.depends == {"q"}


def test_a_mod_without_the_score_has_terms_only() -> None:
    program = prepared("bias[kv] + 2.0", bias=torch.rand(8))
    assert program.ignores_score and program.core is None and not program.max_of_products
    assert prepared("1.0 + q").ignores_score


@pytest.mark.parametrize(
    ("scale", "factor", "wanted"),
    [
        (0.125, 2.0, ScorePromises(True, True)),
        (0.0, 2.0, ScorePromises(False, True)),
        (-1.0, -2.0, ScorePromises(False, False)),
        (math.inf, 1e30, ScorePromises(False, False)),
        (1.0, 1e-30, ScorePromises(True, False)),
    ],
)
def test_promises_are_checked_with_the_numbers_of_a_call(
    scale: float, factor: float, wanted: ScorePromises
) -> None:
    bound = resolve(flexfa4.parse("score * f", f=factor), "score")
    assert score_promises(bound.graph, premises(bound, SIZES).domain(), scale) == wanted


# ---- every program is the mod --------------------------------------------------------------------

MODS = [
    "score", "3 * score + 1", "-(score - q) / 4",
    "score + slope[h] * (kv - q) - abs(q - kv) * 0.25",
    "5 * tanh(score * slope[h] / 5) + bias[kv] * slope[h] + bias[q]", "bias[kv] - 2 * bias[q]",
    "where(q > kv, score, 2 * score) * slope[h] + f32(max(q - kv, 0))",
    "(score + bias[kv]) * slope[h] - (bias[q] - bias[kv])", "1.0 - tanh(score * score)",
]  # fmt: skip


@pytest.mark.parametrize("promises", [ALL, ScorePromises(False, False)])
@pytest.mark.parametrize("text", MODS)
def test_factor_and_shift_and_value_are_the_mod(text: str, promises: ScorePromises) -> None:
    captures = {"slope": torch.rand(2).double() + 0.5, "bias": torch.randn(8).double()}
    used = {name: t for name, t in captures.items() if name in text}
    bound = resolve(flexfa4.parse(text, **used), "score")
    program = prepare_score(bound.graph, promises)
    products, scale = torch.randn(1, 2, 8, 8).double(), 0.3
    index = {
        "b": torch.zeros(1, 1, 1, 1).long(),
        "h": torch.arange(2)[:, None, None],
        "q": torch.arange(8)[:, None],
        "kv": torch.arange(8),
    }

    def value(node: Node | None, score: Any = products, kv: Any = index["kv"]) -> Any:
        if node is None:
            return 1.0
        graph = make_graph("score", node)
        tensors = dict(zip(bound.graph.buffers, bound.tensors, strict=True))
        part = BoundGraph(graph, tuple(tensors[b] for b in graph.buffers))
        inputs = {**index, "kv": kv, "score": score}
        return result_on(part, inputs, lambda: None)

    origin = torch.tensor(3)
    core = products
    if program.core is not None:
        core = value(program.core, products * scale * value(program.inner))
    outer = value(program.outer) * (scale if program.core is None else 1.0)
    y = torch.zeros(()) if program.ignores_score else core
    y = y if program.defers or program.ignores_score else y * outer
    shift = 0.0 if program.constant is None else value(program.constant)
    for term in program.terms:
        part = (index["kv"] - origin).double() if term.part is None else value(term.part)
        y = y + value(term.coefficient) / (outer if program.defers else 1.0) * part
        if term.origin is not None:
            shift = shift + value(term.origin, kv=origin)
    found = y * (outer if program.defers else 1.0) + shift
    wanted = value(bound.graph.root, products * scale)
    torch.testing.assert_close(found.expand(1, 2, 8, 8), wanted.expand(1, 2, 8, 8))


# ---- conversions and limits ----------------------------------------------------------------------


def test_positions_are_converted_before_extremes_are_taken() -> None:
    root = graph_of(flexfa4.parse("score + f32(max(abs(q - kv), 3)) + f32(max(q, 3))")).root
    early = float_early(root)
    assert early is not root
    assert text_of(early) == "score + max(abs(f32(q - kv)), 3.0) + max(q, 3)"


def test_what_is_not_linear_is_converted_where_it_was() -> None:
    root = graph_of(flexfa4.parse("score + f32(abs(q - kv * kv))")).root
    assert float_early(root) is root


def test_vectors_that_are_too_long_are_refused() -> None:
    left, right = torch.rand(8, 64), torch.rand(8, 64)
    mod = flexfa4.trace(lambda score, b, h, q, kv: score + (left[q] * right[kv]).sum(-1))
    with pytest.raises(KernelLimitError, match="for each score") as error:
        prepare_score(graph_of(mod), ALL)
    assert 'backend="cpu"' in str(error.value)


def test_vectors_of_a_few_elements_are_not() -> None:
    left, right = torch.rand(8, 4), torch.rand(8, 4)
    mod = flexfa4.trace(lambda score, b, h, q, kv: score + (left[q] * right[kv]).sum(-1))
    assert prepare_score(graph_of(mod), ALL).terms


def test_a_mask_is_prepared_for_the_kernel() -> None:
    graph = resolve(flexfa4.parse("q >= kv and f32(abs(q - kv)) < 3.5"), "mask").graph
    program = prepare_mask(graph)
    assert program.graph is graph and "abs(f32(q - kv))" in str(make_graph("mask", program.root))
    assert apply("to_bool", program.root) is program.root
