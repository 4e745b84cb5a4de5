"""The verifier accepts what the constructors make and refuses everything else."""

from __future__ import annotations

import pytest

from flexfa4.frontend.ir import (
    F32,
    I32,
    Buffer,
    DType,
    Graph,
    Node,
    Scalar,
    Search,
    const,
    intern,
    iota,
    load,
    make_graph,
    scalar,
    search,
    size,
    symbol,
)
from flexfa4.frontend.ops import apply
from flexfa4.frontend.verify import GraphError, verify
from tests.leaves import KV, SCORE, Q

ROWS = Buffer("rows", F32, (None, 4))


def test_graphs_made_by_the_constructors_pass() -> None:
    dot = apply("sum", apply("mul", load(ROWS, (Q, iota(4))), load(ROWS, (KV, iota(4)))))
    bias = apply("mul", scalar(Scalar("s", F32)), apply("sub", size(ROWS, 0), symbol("kv_len")))
    verify(make_graph("score", apply("add", SCORE, apply("add", dot, bias))))
    verify(make_graph("mask", apply("and", apply("ge", Q, KV), const(True))))
    verify(make_graph("score", apply("mul", apply("to_f32", apply("to_i32", const(1e30))), SCORE)))
    place = search(Search(ROWS, 1, "first"), (Q,), const(2.0))
    verify(make_graph("mask", apply("ge", KV, place)))


def raw(op: str, *args: Node, dtype: DType = F32, attr: object = None) -> Node:
    return intern(op, args, attr, dtype)


def in_rows(side: str, *args: Node, axis: int = 1) -> Node:
    where = Search(ROWS, axis, side)  # type: ignore[arg-type]
    return apply("to_f32", raw("search", *args, dtype=I32, attr=where))


@pytest.mark.parametrize(
    ("root", "problem"),
    [
        (raw("add", SCORE, Q), "made again"),  # operands not promoted
        (raw("lt", SCORE, SCORE, dtype=F32), "made again"),  # wrong result dtype
        (raw("add", SCORE), "cannot be made again"),
        (raw("frobnicate", SCORE), "no such op"),
        (raw("input", attr="time"), "cannot be made again"),
        (raw("symbol", attr="q_size"), "cannot be made again"),
        (raw("input", SCORE, attr="score"), "leaf with operands"),
        (raw("neg", SCORE, attr=3), "op with an attribute"),
        (raw("to_f32", const(3)), "made again"),  # a constant is converted at once
        (raw("const", attr=3), "constant of the wrong type"),
        (raw("to_f32", raw("const", attr=2**70, dtype=I32)), "beyond 64 bits"),
        (raw("load", Q, attr=ROWS), "cannot be made again"),  # one index of two
        (raw("load", SCORE, SCORE, attr=ROWS), "cannot be made again"),
        (apply("to_f32", raw("size", attr=(ROWS, 2), dtype=I32)), "no such axis"),
        (in_rows("first", Q), "cannot be made again"),  # the value is no f32
        (in_rows("first", Q, SCORE, SCORE), "cannot be made again"),
        (in_rows("behind", Q, SCORE), "no such side"),
        (in_rows("first", Q, SCORE, axis=2), "no such axis"),
        (raw("sum", SCORE), "cannot be made again"),  # of a scalar
        (raw("exp", Q), "made again"),
        (Q, "root"),
        (load(ROWS, (Q, iota(4))), "vector as the root"),
    ],
)
def test_a_broken_graph_is_refused(root: Node, problem: str) -> None:
    with pytest.raises(GraphError, match=problem):
        verify(make_graph("score", root))


def test_a_mask_must_be_bool_and_must_not_read_the_score() -> None:
    with pytest.raises(GraphError, match="root"):
        verify(make_graph("mask", Q))
    with pytest.raises(GraphError, match="reads the score"):
        verify(make_graph("mask", apply("gt", SCORE, const(0.0))))


def test_captures_must_be_those_that_the_root_reads_under_unique_names() -> None:
    root = apply("add", SCORE, scalar(Scalar("s", F32)))
    with pytest.raises(GraphError, match="scalars"):
        verify(Graph("score", root, (), ()))
    with pytest.raises(GraphError, match="buffers"):
        verify(Graph("score", root, (ROWS,), (Scalar("s", F32),)))
    both = apply("add", root, scalar(Scalar("s", I32)))
    with pytest.raises(GraphError, match="not unique"):
        verify(make_graph("score", both))
