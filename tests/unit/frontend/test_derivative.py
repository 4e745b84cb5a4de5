"""Derivatives agree with torch.autograd, at kinks and ties as well."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.errors import OperandError
from flexfa4.frontend.derivative import derivatives
from flexfa4.frontend.ir import (
    F32,
    Buffer,
    Node,
    const,
    iota,
    load,
    make_graph,
    topological,
)
from flexfa4.frontend.ops import OPS, apply
from flexfa4.frontend.verify import verify
from tests.leaves import KV, SCORE, Q

LENGTH, LANES = 3, 16
VECTOR = load(Buffer("v", F32, (None, LENGTH)), (KV, iota(LENGTH)))
OTHER = load(Buffer("u", F32, (None, LENGTH)), (Q, iota(LENGTH)))
BIAS = load(Buffer("t", F32, (None,)), (KV,))
SLOPE = load(Buffer("s", F32, ()), ())


def evaluate(root: Node, leaves: Mapping[Node, torch.Tensor]) -> torch.Tensor:
    """Evaluate with scalars of shape (lanes, 1) and vectors of shape (lanes, length)."""
    found = dict(leaves)
    for node in topological(root):
        if node in found or node.op in ("load", "iota"):
            continue
        if node.op == "const":
            dtype = torch.float64 if node.dtype is F32 else None
            found[node] = torch.tensor([[node.attr]], dtype=dtype)
        elif node.op == "to_f32":
            found[node] = OPS["to_f32"].eager(found[node.args[0]], torch.float64)
        else:
            operands = [found[a] for a in node.args]
            if OPS[node.op].reduces:
                operands = [operands[0].expand(-1, LENGTH)]
            result = OPS[node.op].eager(*operands)
            found[node] = result.unsqueeze(-1) if OPS[node.op].reduces else result
    return found[root]


def random_leaves(seed: int) -> dict[Node, torch.Tensor]:
    """Return small multiples of 1/2, so that ties and zeros are common."""
    random = torch.Generator().manual_seed(seed)

    def draw(width: int) -> torch.Tensor:
        return torch.randint(-4, 5, (LANES, width), generator=random).double() / 2

    leaves = {n: draw(n.length or 1).requires_grad_() for n in (SCORE, VECTOR, OTHER, BIAS, SLOPE)}
    indices = {n: torch.randint(0, 4, (LANES, 1), generator=random) for n in (Q, KV)}
    return {**leaves, **indices}


def assert_gradients_agree(root: Node, seed: int = 0) -> None:
    graph = make_graph("score", root)
    found = derivatives(graph)
    leaves = random_leaves(seed)
    result = evaluate(root, leaves).expand(LANES, 1)
    targets = [(SCORE, found.score), *found.loads]
    assert [n for n, _ in found.loads] == [
        n for n in topological(root) if n.op == "load" and n.dtype is F32
    ]
    expected: tuple[torch.Tensor | None, ...] = (None,) * len(targets)
    if result.requires_grad:
        inputs = [leaves[n] for n, _ in targets]
        expected = torch.autograd.grad(result.sum(), inputs, allow_unused=True)
    for (leaf, gradient), reference in zip(targets, expected, strict=True):
        verify(make_graph("score", gradient if gradient.length is None else apply("sum", gradient)))
        got = evaluate(gradient, leaves).expand_as(leaves[leaf]).detach()
        want = torch.zeros_like(got) if reference is None else reference
        finite = want.isfinite()
        torch.testing.assert_close(got[finite], want[finite], rtol=1e-9, atol=1e-9)


LEAVES = [SCORE, VECTOR, OTHER, BIAS, SLOPE, Q, KV, *(const(c) for c in (0.0, 1.0, 2.0, -0.5))]
# torch has no derivative for floor_divide of floats; ours is zero
NAMES = tuple(n for n, row in OPS.items() if F32 in row.dtypes.operands and n != "floordiv")


@st.composite
def roots(draw: st.DrawFn) -> Node:
    """Draw an f32 scalar that reads what the ops so far have made."""
    nodes = list(LEAVES)
    for _ in range(draw(st.integers(1, 9))):
        row = OPS[draw(st.sampled_from(NAMES))]
        operands = [draw(st.sampled_from(nodes[-5:] + nodes[:5])) for _ in range(row.dtypes.arity)]
        if row.name == "where":
            operands[0] = apply("lt", operands[0], draw(st.sampled_from(nodes[:6])))
        if row.name == "mod":  # of integers: zero raises
            operands[0] = apply("to_f32", operands[0])
        try:
            nodes.append(apply(row.name, *operands))
        except OperandError:
            continue
    root = nodes[-1]
    root = root if root.length is None else apply("sum", root)
    return apply("to_f32", root)


@given(roots(), st.integers(0, 1000))
def test_random_graphs_agree_with_autograd(root: Node, seed: int) -> None:
    assert_gradients_agree(root, seed)


F32_OPS = [n for n in NAMES if not OPS[n].reduces and n != "where"]


@pytest.mark.parametrize("name", F32_OPS)
def test_each_op_agrees_with_autograd(name: str) -> None:
    operands = (apply("mul", SCORE, const(0.5)), BIAS)[: OPS[name].dtypes.arity]
    assert_gradients_agree(apply("to_f32", apply(name, *operands)))
    assert_gradients_agree(apply("to_f32", apply(name, *operands[::-1])))


@pytest.mark.parametrize("name", ["sum", "amax", "amin"])
def test_each_reduction_agrees_with_autograd_at_ties(name: str) -> None:
    assert_gradients_agree(apply("mul", apply(name, apply("mul", VECTOR, SCORE)), BIAS))


@pytest.mark.parametrize(
    "root",
    [
        apply("max", SCORE, BIAS),
        apply("abs", apply("mul", SCORE, BIAS)),
        apply("where", apply("gt", SCORE, const(1.0)), const(1.0), SCORE),  # a clamp
        apply("min", apply("max", SCORE, const(-1.0)), const(1.0)),
        apply("sum", apply("mul", VECTOR, OTHER)),
        apply("sum", apply("add", VECTOR, SCORE)),  # a scalar added to every element
        apply("pow", SCORE, const(3.0)),
        apply("mul", SCORE, apply("mul", SCORE, SCORE)),  # one node, three uses
        apply("add", SCORE, apply("mul", SLOPE, apply("sub", KV, Q))),
        apply("to_f32", apply("to_i32", SCORE)),  # no gradient through integers
        BIAS,
        SCORE,
    ],
)
def test_chosen_graphs_agree_with_autograd(root: Node) -> None:
    assert_gradients_agree(root)


def test_simple_derivatives_come_out_simple() -> None:
    affine = make_graph("score", apply("add", apply("mul", SCORE, SLOPE), BIAS))
    found = derivatives(affine)
    assert found.score is SLOPE
    assert dict(found.loads) == {SLOPE: SCORE, BIAS: const(1.0)}


def test_a_root_that_ignores_a_value_has_derivative_zero() -> None:
    mask = apply("to_f32", apply("gt", BIAS, const(0.0)))
    found = derivatives(make_graph("score", mask))
    assert found.score is const(0.0)
    assert found.loads == ((BIAS, const(0.0)),)


def test_the_quotient_rounded_down_has_derivative_zero() -> None:
    root = apply("floordiv", SCORE, BIAS)
    assert derivatives(make_graph("score", root)).score is const(0.0)
