"""Bounds of graphs: sound, decided conditions prune, loads are proved only where they are safe."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.errors import OperandError
from flexfa4.frontend.analysis.bounds import Domain, bound, prove_loads
from flexfa4.frontend.analysis.intervals import ANY_BOOL, ANY_F32, TRUE, Interval
from flexfa4.frontend.evaluate import Lanes, Program, Values
from flexfa4.frontend.ir import (
    BOOL,
    F32,
    I32,
    Buffer,
    Node,
    Scalar,
    const,
    input_,
    iota,
    load,
    scalar,
    size,
    symbol,
)
from flexfa4.frontend.ops import OPS, apply
from tests.leaves import KV, B, H, Q

W, S = Scalar("w", I32), Scalar("s", F32)
TABLE = Buffer("t", F32, (None,))
DOMAIN = Domain(
    b=2, h=3, q_len=5, kv_len=7, num_heads=3, num_kv_heads=1, scalars={W: 2, S: 0.1},
    shapes={TABLE: (7,)},
)  # fmt: skip

LEAVES = [
    *(B, H, Q, KV, symbol("q_len"), symbol("num_heads"), scalar(W), scalar(S)),
    *(const(v) for v in (0, 1, 3, -2, 0.5, -4.0)),
]
# integer division by zero raises on the CPU
OP_NAMES = tuple(n for n, row in OPS.items() if not row.reduces and n not in ("floordiv", "mod"))


@st.composite
def graphs(draw: st.DrawFn) -> Node:
    nodes = list(LEAVES)
    for _ in range(draw(st.integers(1, 10))):
        row = OPS[draw(st.sampled_from(OP_NAMES))]
        operands = [draw(st.sampled_from(nodes[-8:] + nodes[:8])) for _ in range(row.dtypes.arity)]
        if row.name == "pow":  # torch refuses negative powers of integers
            operands[1] = draw(st.sampled_from([const(2), const(3), const(0.5), scalar(W)]))
        try:
            nodes.append(apply(row.name, *operands))
        except OperandError:
            continue
    return nodes[-1]


@given(graphs())
def test_every_value_of_a_graph_lies_in_its_bound(root: Node) -> None:
    found = bound(root, DOMAIN.leaf)
    values = Values(scalars={W: 2, S: 0.1}, symbols={"q_len": 5, "num_heads": 3})
    (result,) = Program([root]).run(values, Lanes((0, 2), (0, 3), (0, 5), (0, 7)))
    for value in torch.as_tensor(result).flatten().tolist():
        assert value in found


def test_what_the_caller_does_not_know_is_bounded_by_its_dtype() -> None:
    assert bound(input_("score")) == ANY_F32
    assert bound(load(Buffer("m", BOOL, (None,)), (Q,))) == ANY_BOOL
    assert bound(apply("tanh", load(TABLE, (H,)))) == Interval(-1.0, 1.0, nan=True)


def test_infinite_ends_of_an_integer_become_those_of_64_bits() -> None:
    found = bound(apply("add", Q, const(1)), lambda _: Interval(0, math.inf))
    assert found == Interval(-(2**63), 2**63 - 1)


def test_a_decided_condition_prunes_the_other_branch() -> None:
    root = apply("where", apply("ge", KV, const(0)), const(1), const(100))
    assert bound(root, DOMAIN.leaf) == Interval(1, 1)


def test_a_captured_float_covers_its_rounding_to_fp32() -> None:
    found = bound(scalar(S), DOMAIN.leaf)
    assert found.lo < 0.1 < found.hi
    assert float(torch.tensor(0.1)) in found


def test_sizes_and_vectors_are_known() -> None:
    assert bound(size(TABLE, 0), DOMAIN.leaf) == Interval(7, 7)
    assert bound(apply("sum", apply("mul", iota(4), const(2)))) == Interval(0, 24)


def test_narrowed_ranges_replace_the_whole_lengths() -> None:
    tile = Domain(1, 1, 512, 512, 1, 1, q=(256, 383), kv=(0, 127))
    assert bound(apply("ge", Q, KV), tile.leaf) == TRUE


@pytest.mark.parametrize(
    ("index", "safe"),
    [
        (KV, True),
        (apply("sub", KV, const(7)), True),  # negative indices count from the end
        (apply("add", KV, const(1)), False),
        (apply("sub", KV, const(8)), False),
        (apply("sub", Q, KV), True),
        (apply("add", Q, scalar(W)), True),
        (apply("add", apply("add", Q, scalar(W)), const(1)), False),
        (apply("mod", apply("mul", KV, const(31)), size(TABLE, 0)), True),
        (apply("min", apply("mul", KV, KV), const(6)), True),
        (apply("to_i32", load(TABLE, (H,))), False),
    ],
)
def test_loads_are_proved_exactly_where_indices_stay_in_range(index: Node, safe: bool) -> None:
    node = load(TABLE, (index,))
    assert prove_loads(node, DOMAIN)[node] is safe


def test_a_load_of_unknown_shape_is_not_proved() -> None:
    node = load(Buffer("other", F32, (None,)), (const(0),))
    assert prove_loads(node, DOMAIN) == {node: False}


def test_empty_calls_and_empty_buffers_are_handled() -> None:
    node = load(TABLE, (KV,))
    empty = Domain(1, 1, 0, 0, 1, 1, shapes={TABLE: (0,)})
    assert prove_loads(node, empty) == {node: False}


def test_every_index_of_a_load_counts() -> None:
    table = Buffer("m", F32, (None, None))
    domain = Domain(1, 1, 4, 4, 1, 1, shapes={table: (4, 3)})
    for a, b in itertools.product((Q, const(2)), repeat=2):
        node = load(table, (a, b))
        assert prove_loads(node, domain)[node] is (b is not Q)
