"""Each rewrite rule fires and is right; simplification keeps every value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.errors import OperandError
from flexfa4.frontend.ir import (
    BOOL,
    F32,
    I32,
    Buffer,
    DType,
    Node,
    Scalar,
    const,
    iota,
    load,
    scalar,
    size,
    topological,
)
from flexfa4.frontend.ops import OPS, apply
from flexfa4.frontend.rewriting import rules
from flexfa4.frontend.rewriting.patterns import Expr, Literal, Operation, Rule, Var
from flexfa4.frontend.rewriting.rule_table import RULES
from flexfa4.frontend.rewriting.rules import simplify
from tests.leaves import KV, SCORE, Q

NAN, INF = math.nan, math.inf
CONSTANTS = {F32: (2.0, -3.0, 0.25, INF, NAN), I32: (3, -2, 64), BOOL: (True, False)}
SAMPLES = {
    F32: (0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e30, -1e-30, INF, -INF, NAN),
    I32: (0, 1, -1, 2, 7, -8, 1000003, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)),
    BOOL: (True, False),
}
TORCH = {F32: torch.float64, I32: torch.int64, BOOL: torch.bool}


def leaf(name: str, dtype: DType) -> Node:
    if dtype is BOOL:
        return load(Buffer(name, BOOL, ()), ())
    return scalar(Scalar(name + dtype.value, dtype))


def evaluate(root: Node, leaves: Mapping[Node, torch.Tensor]) -> torch.Tensor:
    """Evaluate in fp64: constants are folded in fp64 as well, so results are equal to the bit."""
    found = dict(leaves)
    for node in topological(root):
        if node.op == "const":
            found[node] = torch.tensor(node.attr, dtype=TORCH[node.dtype])
        elif node.op == "to_f32":
            found[node] = OPS["to_f32"].eager(found[node.args[0]], torch.float64)
        elif node not in found:
            found[node] = OPS[node.op].eager(*(found[a] for a in node.args))
    return found[root]


def samples(root: Node, count: int = 400) -> dict[Node, torch.Tensor]:
    """Return random values for the leaves, special values among them."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for node in topological(root):
        if node.op in ("scalar", "load", "input"):
            values = torch.tensor(SAMPLES[node.dtype], dtype=TORCH[node.dtype])
            found[node] = values[torch.randint(len(values), (count,), generator=generator)]
    return found


def assert_equal_values(before: Node, after: Node) -> None:
    assert (before.dtype, before.length) == (after.dtype, after.length)
    leaves = samples(before)
    a, b = evaluate(before, leaves), evaluate(after, leaves)
    same = (a == b) | (a.isnan() & b.isnan()) if a.is_floating_point() else a == b
    assert same.all(), f"{before} is not {after} at {(~same).nonzero().flatten()[:3].tolist()}"


def variables(pattern: Expr) -> dict[str, Var]:
    if isinstance(pattern, Var):
        return {pattern.name: pattern}
    if isinstance(pattern, Operation):
        return {n: v for a in pattern.args for n, v in variables(a).items()}
    return {}


def build(pattern: Expr, found: Mapping[str, Node]) -> Node:
    if isinstance(pattern, Var):
        return found[pattern.name]
    if isinstance(pattern, Literal):
        return const(pattern.value)
    assert isinstance(pattern, Operation)
    return apply(pattern.name, *(build(a, found) for a in pattern.args))


def instances(rule: Rule) -> Iterator[Node]:
    """Yield nodes that the rule's left side matches, over all dtypes of its variables."""
    needed = list(variables(rule.pattern).values())
    for dtypes in itertools.product(*(sorted(v.dtypes, key=str) for v in needed)):
        choices = [
            [const(c, d) for c in CONSTANTS[d]] if v.constant else [leaf(v.name, d)]
            for v, d in zip(needed, dtypes, strict=True)
        ]
        for nodes in itertools.product(*choices):
            try:
                node = build(rule.pattern, {v.name: n for v, n in zip(needed, nodes, strict=True)})
            except OperandError:
                continue
            if any(rule.rewrite(node, order) is not None for order in rule.orders):
                yield node


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rule_fires_and_keeps_every_value(rule: Rule) -> None:
    fired = False
    for node in instances(rule):
        for order in rule.orders:
            made = rule.rewrite(node, order)
            if made is not None:
                assert_equal_values(node, made)
        before = rules.hits[rule]
        assert_equal_values(node, simplify(node))
        fired |= rules.hits[rule] > before
    assert fired


def _extend(
    children: st.SearchStrategy[Node], draw: st.DrawFn, names: tuple[str, ...]
) -> Node | None:
    row = OPS[draw(st.sampled_from(names))]
    try:
        return apply(row.name, *(draw(children) for _ in range(row.dtypes.arity)))
    except OperandError:
        return None


# Without division, whose result tells the two zeros apart, and casts of floats to integers, which
# have no value out of range.
GRAPH_OPS = tuple(
    name
    for name, row in OPS.items()
    if not row.reduces
    and name not in ("div", "floordiv", "mod", "pow", "rsqrt", "shl", "shr", "to_i32", "atan")
)
LEAVES = [leaf(n, d) for n in "xy" for d in (F32, I32, BOOL)] + [
    const(c, d) for d, cs in CONSTANTS.items() for c in (*cs, 0, 1, -1)
]


@st.composite
def graphs(draw: st.DrawFn) -> Node:
    """Draw a graph by adding random ops on what is there already."""
    nodes = list(LEAVES)
    for _ in range(draw(st.integers(1, 14))):
        made = _extend(st.sampled_from(nodes[-6:] + nodes[:18]), draw, GRAPH_OPS)
        if made is not None:
            nodes.append(made)
    return nodes[-1]


@given(graphs())
def test_simplified_graphs_keep_every_value(root: Node) -> None:
    assert_equal_values(root, simplify(root))


@given(graphs())
def test_a_simplified_graph_stays_as_it_is(root: Node) -> None:
    once = simplify(root)
    assert simplify(once) is once


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (apply("mul", SCORE, const(0.0)), None),  # NaN and inf
        (apply("sub", SCORE, SCORE), None),
        (apply("not", apply("lt", SCORE, const(1.0))), None),
        (apply("eq", SCORE, SCORE), None),
        (apply("add", apply("add", SCORE, const(0.1)), const(0.2)), None),
        (apply("floordiv", const(1), const(0)), None),  # no value
        (apply("add", const(2**63 - 1), const(1)), None),  # wraps on some devices only
        (apply("mul", const(1e30), const(1e30)), None),  # inf in fp32 only
        (apply("div", SCORE, const(3.0)), None),
        (apply("div", SCORE, const(8.0)), apply("mul", SCORE, const(0.125))),
        (apply("add", const(0), SCORE), SCORE),
        (apply("sub", apply("add", Q, const(5)), const(7)), apply("sub", Q, const(2))),
        (apply("not", apply("lt", Q, KV)), apply("ge", Q, KV)),
        (apply("lt", const(3), Q), apply("gt", Q, const(3))),
        (apply("exp", const(0.0)), const(1.0)),
        (apply("floordiv", const(-7), const(2)), const(-4)),
    ],
)
def test_only_what_holds_for_the_dtype_is_rewritten(node: Node, expected: Node | None) -> None:
    assert simplify(node) is (node if expected is None else expected)


def test_a_vector_never_becomes_a_scalar() -> None:
    zero = apply("mul", iota(4), const(0))
    assert simplify(zero) is zero
    assert simplify(apply("sum", zero)).length is None


def test_sizes_that_the_declaration_fixes_are_constants() -> None:
    buffer = Buffer("t", F32, (None, 16))
    assert simplify(size(buffer, 1)) is const(16)
    assert simplify(size(buffer, 0)) is size(buffer, 0)


def test_deep_graphs_need_no_recursion() -> None:
    root = SCORE
    for i in range(5000):
        root = apply("mul", apply("neg", root), const(1.0 + i % 3))
    assert simplify(root).dtype is F32
