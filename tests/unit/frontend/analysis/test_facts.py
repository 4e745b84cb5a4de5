"""Facts about score graphs are true of their values, and rewrites rest on what they name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.analysis.bounds import Domain
from flexfa4.frontend.analysis.facts import (
    DROP_ROW_CONSTANT,
    FOLD_AFFINE,
    FOLD_INNER_SCALE,
    REUSE_DERIVATIVE,
    ROW_MAX_FIRST,
    STEP_ALONG_ROW,
    Instructions,
    ScoreFacts,
    mask_facts,
    score_facts,
)
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import (
    F32,
    I32,
    Buffer,
    Node,
    Scalar,
    const,
    iota,
    load,
    make_graph,
    scalar,
    substitute,
    symbol,
)
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.ops import apply
from flexfa4.frontend.pipeline import optimise
from tests.leaves import KV, SCORE, B, H, Q

S, C, W = Scalar("s", F32), Scalar("c", F32), Scalar("w", I32)
SLOPES, ROWS = Buffer("slopes", F32, (None,)), Buffer("rows", F32, (None, None))
SLOPE = load(SLOPES, (H,))
DISTANCE = apply("sub", KV, Q)

LANES = Lanes((0, 2), (0, 3), (0, 5), (0, 7))
VALUES = Values(
    tensors={
        SLOPES: torch.tensor([0.5, -0.25, 2.0], dtype=torch.float64),
        ROWS: torch.arange(49, dtype=torch.float64).reshape(7, 7),
    },
    scalars={S: 0.75, C: -3.0, W: 2},
    symbols={"q_len": 5, "kv_len": 7, "num_heads": 3, "num_kv_heads": 1},
    dtype=torch.float64,
)


def add(*terms: Node) -> Node:
    total = terms[0]
    for term in terms[1:]:
        total = apply("add", total, term)
    return total


def mul(a: Node, b: Node) -> Node:
    return apply("mul", a, b)


def facts_of(root: Node) -> ScoreFacts:
    return score_facts(optimise(make_graph("score", root)))


def run(root: Node) -> torch.Tensor:
    scores = torch.randn(LANES.shape, generator=torch.Generator().manual_seed(1)).double()
    (result,) = Program([root]).run(VALUES, LANES, scores)
    return torch.as_tensor(result, dtype=torch.float64).expand(LANES.shape)


def assert_close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-11)


def assert_true(facts: ScoreFacts) -> None:
    """Check each fact against the values of the graph."""
    root = facts.graph.root
    if facts.scale is not None and facts.bias is not None:
        assert "score" not in facts.scale.depends | facts.bias.depends
        assert_close(run(facts.scale) * run(SCORE) + run(facts.bias), run(root))
        if facts.kv_slope is not None:
            assert not facts.kv_slope.depends & {"kv", "score"}
            bias = run(facts.bias)
            steps = torch.arange(7, dtype=torch.float64)
            assert_close(bias[..., :1] + run(facts.kv_slope) * steps, bias)
    whole = torch.zeros(LANES.shape, dtype=torch.float64)
    for part in (facts.row_constant, facts.row_varying):
        whole = whole if part is None else whole + run(part)
    assert_close(whole, run(root if facts.bias is None else facts.bias))
    if facts.row_constant is not None:
        assert not facts.row_constant.depends & {"kv", "score"}
    if facts.inner_scale is not None:
        inner = facts.inner_scale
        assert_close(run(inner.scale) * run(SCORE), run(inner.node))
        without = substitute(root, lambda n, a: const(1.0) if n is inner.node else rebuilt(n, a))
        assert "score" not in without.depends


def rebuilt(node: Node, args: tuple[Node, ...]) -> Node:
    return apply(node.op, *args) if args and node.op != "load" else node


AFFINE: dict[str, Node] = {
    "bare": SCORE,
    "bias by distance": add(SCORE, mul(SLOPE, DISTANCE)),
    "negated distance": apply("sub", mul(SCORE, const(2.0)), mul(apply("sub", Q, KV), scalar(S))),
    "selected slope": add(
        SCORE,
        mul(apply("where", apply("gt", H, const(1)), SLOPE, scalar(S)), DISTANCE),
        apply("div", apply("neg", KV), scalar(C)),
    ),
    "distributed": mul(add(SCORE, add(H, mul(KV, scalar(W)))), SLOPE),
    "divided": apply("div", apply("sub", const(1.0), SCORE), scalar(C)),
    "selected scale": apply(
        "where", apply("eq", B, const(0)), mul(SCORE, const(2.0)), add(mul(SCORE, SLOPE), Q)
    ),
    "ignored score": apply("where", apply("ge", Q, KV), SCORE, const(-100.0)),
    "score ignored everywhere": mul(SLOPE, DISTANCE),
    "twice": add(SCORE, SCORE, load(ROWS, (Q, Q))),
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_mods_are_recognised(name: str) -> None:
    facts = facts_of(AFFINE[name])
    assert facts.scale is not None and facts.bias is not None
    assert_true(facts)


LINEAR = ("bias by distance", "negated distance", "selected slope", "distributed")


@pytest.mark.parametrize("name", LINEAR)
def test_a_bias_that_is_linear_in_kv_is_recognised(name: str) -> None:
    facts = facts_of(AFFINE[name])
    assert facts.kv_slope is not None and facts.kv_slope is not const(0.0)
    assert facts.rewrite(STEP_ALONG_ROW) is not None


def test_the_slope_of_a_distance_is_the_coefficient_itself() -> None:
    assert facts_of(AFFINE["bias by distance"]).kv_slope is SLOPE
    assert facts_of(SCORE).kv_slope is const(0.0)


def test_stepping_along_a_row_is_as_exact_as_the_mod_at_large_positions() -> None:
    facts = facts_of(add(SCORE, mul(scalar(S), DISTANCE)))
    assert facts.bias is not None and facts.kv_slope is not None
    first = 2**21 + 1
    tile = Lanes((0, 1), (0, 1), (first + 200, first + 300), (first, first + 128))

    def at(root: Node, dtype: torch.dtype) -> torch.Tensor:
        values = Values(scalars={S: 0.1}, dtype=dtype)
        return torch.as_tensor(Program([root]).run(values, tile)[0], dtype=dtype)

    exact = at(facts.bias, torch.float64)
    eager = at(facts.bias, torch.float32)
    stepped = eager[..., :1] + at(facts.kv_slope, torch.float32) * torch.arange(128.0)
    budget = (
        2 * (eager - exact).abs().max() + 2 * torch.finfo(torch.float32).eps * exact.abs().max()
    )
    assert (stepped - exact).abs().max() <= budget


@pytest.mark.parametrize(
    "bias",
    [
        mul(KV, KV),
        mul(SLOPE, apply("abs", DISTANCE)),
        load(ROWS, (Q, KV)),
        apply("floordiv", KV, const(2)),
        apply("where", apply("ge", Q, KV), const(1.0), const(0.0)),
        apply("to_f32", apply("to_i32", mul(KV, const(0.5)))),
    ],
)
def test_a_bias_that_is_not_linear_in_kv_has_no_slope(bias: Node) -> None:
    facts = facts_of(add(SCORE, bias))
    assert facts.kv_slope is None and facts.rewrite(STEP_ALONG_ROW) is None
    assert_true(facts)


@pytest.mark.parametrize(
    "root",
    [
        mul(SCORE, SCORE),
        mul(scalar(C), apply("tanh", apply("div", SCORE, scalar(C)))),
        apply("where", apply("gt", SCORE, const(0.0)), SCORE, const(0.0)),
        apply("div", const(1.0), SCORE),
        apply("max", SCORE, const(0.0)),
    ],
)
def test_mods_that_are_not_affine_are_not_called_so(root: Node) -> None:
    facts = facts_of(root)
    assert facts.scale is None and facts.bias is None and facts.rewrite(FOLD_AFFINE) is None
    assert_true(facts)


def test_terms_that_are_constant_along_a_row_are_gathered() -> None:
    facts = facts_of(add(SCORE, mul(SLOPE, H), apply("neg", load(ROWS, (Q, H))), mul(KV, SLOPE)))
    assert facts.row_constant is not None and facts.row_constant.depends == {"h", "q"}
    assert facts.row_varying is mul(KV, SLOPE)
    assert_true(facts)
    assert facts_of(add(apply("tanh", SCORE), H)).row_constant is apply("to_f32", H)


def test_a_row_constant_inside_a_product_stays_where_it_is() -> None:
    """Taking ``slope * q`` out of ``slope * (kv - q)`` would enlarge both operands."""
    assert facts_of(AFFINE["bias by distance"]).row_constant is None


CAP = mul(scalar(C), apply("tanh", apply("div", SCORE, scalar(C))))


@pytest.mark.parametrize(
    ("root", "scale"),
    [
        (CAP, apply("div", const(1.0), scalar(C))),
        (apply("tanh", apply("neg", mul(mul(SCORE, SLOPE), scalar(S)))), None),
        (mul(SCORE, const(3.0)), const(3.0)),
        (apply("exp", mul(SCORE, load(ROWS, (Q, H)))), load(ROWS, (Q, H))),
    ],
)
def test_a_score_that_enters_through_one_product_is_found(root: Node, scale: Node | None) -> None:
    facts = facts_of(root)
    assert facts.inner_scale is not None
    assert scale is None or facts.inner_scale.scale is scale
    assert_true(facts)


@pytest.mark.parametrize(
    "root",
    [
        add(CAP, SCORE),
        mul(SCORE, load(ROWS, (Q, KV))),
        apply("tanh", SCORE),
        apply("div", scalar(C), SCORE),
        mul(SCORE, SCORE),
        apply("to_f32", H),
    ],
)
def test_a_score_that_enters_otherwise_has_no_inner_scale(root: Node) -> None:
    assert facts_of(root).inner_scale is None


def test_independence_and_constant_derivatives_are_told() -> None:
    assert facts_of(AFFINE["score ignored everywhere"]).score_independent
    assert facts_of(AFFINE["ignored score"]).derivative_constant
    assert facts_of(AFFINE["bare"]).rewrite(REUSE_DERIVATIVE) is not None
    assert not facts_of(CAP).derivative_constant
    assert facts_of(CAP).rewrite(REUSE_DERIVATIVE) is None


@pytest.mark.parametrize(
    ("load_", "shape", "axis", "step"),
    [
        (SLOPE, "uniform", None, None),
        (load(ROWS, (Q, H)), "uniform", None, None),
        (load(SLOPES, (KV,)), "contiguous", 0, 1),
        (load(ROWS, (H, apply("add", DISTANCE, symbol("q_len")))), "contiguous", 1, 1),
        (load(ROWS, (KV, Q)), "strided", 0, 1),
        (load(SLOPES, (apply("sub", Q, KV),)), "strided", 0, -1),
        (load(SLOPES, (mul(KV, const(3)),)), "strided", 0, 3),
        (load(ROWS, (KV, KV)), "gather", None, None),
        (load(SLOPES, (mul(KV, scalar(W)),)), "gather", None, None),
        (load(SLOPES, (apply("mod", KV, const(4)),)), "gather", None, None),
        (load(SLOPES, (apply("to_i32", SCORE),)), "gather", None, None),
    ],
)
def test_the_shape_of_each_load_along_a_row(
    load_: Node, shape: str, axis: int | None, step: int | None
) -> None:
    (found,) = facts_of(add(SCORE, load_)).loads
    assert (found.load, found.shape, found.axis, found.step) == (load_, shape, axis, step)


def test_instructions_are_counted_where_they_run() -> None:
    vector = load(Buffer("v", F32, (None, 4)), (KV, iota(4)))
    per_head = apply("exp2", apply("to_f32", H))
    per_row = mul(per_head, Q)
    facts = facts_of(add(mul(SCORE, per_row), apply("sum", mul(vector, vector))))
    assert facts.pipes.element == Instructions(fma=1 + 1 + 4 + 4)
    assert facts.pipes.row == Instructions(fma=1, alu=1)  # the conversion of q is an alu op
    assert facts.pipes.head == Instructions(mufu=1, alu=1)


# ---- rewrites ------------------------------------------------------------------------------------


def domain(s: float, heads: int = 8) -> Domain:
    return Domain(2, heads, 64, 64, heads, heads, scalars={S: s, C: 2.0, W: 1})


def state(root: Node, name: str) -> str | None:
    found = facts_of(root).rewrite(name)
    return None if found is None else found.state


def test_the_row_max_moves_only_before_a_positive_scale() -> None:
    assert state(SCORE, ROW_MAX_FIRST) == "proved"
    assert state(mul(SCORE, const(0.5)), ROW_MAX_FIRST) == "proved"
    assert state(apply("neg", SCORE), ROW_MAX_FIRST) == "refused"
    assert state(mul(SCORE, const(0.0)), ROW_MAX_FIRST) == "refused"
    assert state(mul(SCORE, SLOPE), ROW_MAX_FIRST) == "refused"
    assert state(add(SCORE, KV), ROW_MAX_FIRST) == "refused"
    assert state(mul(SCORE, add(KV, const(1.0))), ROW_MAX_FIRST) == "refused"
    assert state(add(SCORE, Q), ROW_MAX_FIRST) == "proved"  # constant along the row
    assert state(mul(SCORE, scalar(S)), ROW_MAX_FIRST) == "guarded"


@pytest.mark.parametrize(
    ("value", "allowed"),
    [(1.0, True), (1e-30, True), (0.0, False), (-1.0, False), (float("nan"), False)],
)
def test_a_guard_decides_with_the_captured_number_of_the_call(value: float, allowed: bool) -> None:
    rewrite = facts_of(mul(SCORE, scalar(S))).rewrite(ROW_MAX_FIRST)
    assert rewrite is not None and rewrite.allowed(domain(value)) is allowed


def test_a_guard_may_rest_on_sizes() -> None:
    slope = apply("exp2", apply("neg", apply("add", H, const(1))))  # positive unless h is huge
    rewrite = facts_of(mul(SCORE, slope)).rewrite(ROW_MAX_FIRST)
    assert rewrite is not None and rewrite.state == "guarded"
    assert rewrite.allowed(domain(1.0)) and not rewrite.allowed(domain(1.0, heads=4000))


def test_a_row_constant_is_dropped_only_if_it_is_finite() -> None:
    assert state(add(SCORE, mul(Q, const(0.5))), DROP_ROW_CONSTANT) == "proved"
    assert state(add(SCORE, SLOPE), DROP_ROW_CONSTANT) == "refused"
    assert state(add(SCORE, const(float("inf"))), DROP_ROW_CONSTANT) == "refused"
    assert state(SCORE, DROP_ROW_CONSTANT) is None
    rewrite = facts_of(add(SCORE, mul(scalar(S), Q))).rewrite(DROP_ROW_CONSTANT)
    assert rewrite is not None and rewrite.state == "guarded"
    assert rewrite.allowed(domain(3.0)) and not rewrite.allowed(domain(float("inf")))


def test_a_scale_of_zero_that_a_selection_brings_in_is_not_folded() -> None:
    """The mod ignores an infinite score where it selects the other branch; 0 * inf would not."""
    assert state(AFFINE["ignored score"], FOLD_AFFINE) == "refused"
    assert state(AFFINE["selected scale"], FOLD_AFFINE) == "proved"
    assert state(AFFINE["score ignored everywhere"], FOLD_AFFINE) is None


def test_an_inner_scale_is_folded_only_if_it_is_finite() -> None:
    rewrite = facts_of(apply("tanh", apply("div", SCORE, scalar(S)))).rewrite(FOLD_INNER_SCALE)
    assert rewrite is not None
    assert rewrite.allowed(domain(30.0)) and not rewrite.allowed(domain(0.0))


# ---- random mods ---------------------------------------------------------------------------------

FREE = [SLOPE, scalar(S), scalar(C), const(2.0), *(apply("to_f32", n) for n in (H, Q))]
VARYING = [apply("to_f32", DISTANCE), apply("to_f32", KV), load(ROWS, (Q, KV))]


@st.composite
def mods(draw: st.DrawFn) -> Node:
    nodes = [SCORE, *FREE, *VARYING]
    combine: dict[str, Callable[[Node, Node], Node]] = {
        name: lambda a, b, name=name: apply(name, a, b) for name in ("add", "sub", "mul", "max")
    }
    combine["div"] = lambda a, b: apply("div", a, const(4.0) if b in VARYING else scalar(C))
    combine["tanh"] = lambda a, b: apply("tanh", a)
    combine["where"] = lambda a, b: apply("where", apply("ge", Q, H), a, b)
    for _ in range(draw(st.integers(1, 7))):
        name = draw(st.sampled_from(sorted(combine)))
        recent = st.sampled_from(nodes[-3:])
        nodes.append(combine[name](draw(recent), draw(st.sampled_from(nodes))))
    return nodes[-1]


@given(mods())
def test_facts_of_random_mods_are_true(root: Node) -> None:
    facts = facts_of(root)
    limit = 1e6  # beyond it, the tolerance of 1e-11 is below what fp64 can tell
    if run(facts.graph.root).abs().max() < limit:
        assert_true(facts)


def test_mask_facts_tell_what_a_mask_reads() -> None:
    root = apply("and", apply("ge", Q, KV), apply("eq", load(SLOPES, (Q,)), load(SLOPES, (KV,))))
    facts = mask_facts(optimise(make_graph("mask", root)))
    assert facts.reads == {"q", "kv"}
    assert [found.shape for found in facts.loads] == ["uniform", "contiguous"]
    assert facts.pipes.element == Instructions(alu=3)
