"""Printing graphs, reading them back, and the messages of texts that are refused."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.errors import FlexFA4Error, MissingBindingError, OperandError
from flexfa4.frontend import ir
from flexfa4.frontend.ir import BOOL, F32, I32, SYMBOLS, Buffer, Graph, Node, Scalar
from flexfa4.frontend.ops import OPS, apply
from flexfa4.frontend.text.printing import bind_values, parse_graph, to_text
from tests.leaves import KV, SCORE, B, H, Q

LENGTH = 4

# names that the language uses itself, names of locals, and names of no identifier
BUFFERS = (
    Buffer("slope", F32, (None,)),
    Buffer("t0", I32, (None, LENGTH)),
    Buffer("q", BOOL, (None, None, LENGTH)),
    Buffer("self.table['a`b\\\n']", F32, ()),
    Buffer("größe", I32, (LENGTH,)),
    Buffer("漢", F32, (LENGTH, LENGTH)),
)
SCALARS = (Scalar("w", I32), Scalar("max", F32), Scalar("cfg[0]", F32), Scalar("t2", I32))
CONSTANTS = (
    *(0.0, -0.0, 1.5, -2.0, 1e-05, 1e22, float("inf"), -float("inf"), float("nan")),
    *(0, 1, -1, 7, 2**63 - 1, -(2**63), True, False),
)


def reduced(node: Node) -> Node:
    if node.length is None:
        return node
    return apply("any" if node.dtype is BOOL else "sum", node)


def graph_of(node: Node) -> Graph:
    """Make a graph whose result depends on `node` and that a mod may return."""
    root = reduced(node)
    if root.dtype is BOOL and "score" not in root.depends:
        return ir.make_graph("mask", root)
    if root.dtype is BOOL:
        root = apply("where", root, SCORE, ir.const(0.0))
    return ir.make_graph("score", root if root.dtype is F32 else apply("to_f32", root))


def assert_reads_back(graph: Graph) -> None:
    text = to_text(graph)
    again = parse_graph(text).graph
    assert again.root is graph.root, text
    assert again == graph, text


# ---- printing ------------------------------------------------------------------------------------


def test_declarations_come_first_then_shared_values_then_the_result() -> None:
    distance = apply("sub", KV, Q)
    slope, w = Buffer("slope", F32, (None,)), Scalar("w", I32)
    biased = apply("add", SCORE, apply("mul", ir.load(slope, (H,)), distance))
    near = apply("le", distance, ir.scalar(w))
    graph = ir.make_graph("score", apply("where", near, biased, ir.const(-float("inf"))))
    assert str(graph) == (
        "slope: f32[_]\nw: i32\nt0 = kv - q\nwhere(t0 <= w, score + slope[h] * t0, -inf)"
    )


def test_locals_keep_clear_of_captured_names() -> None:
    taken = Scalar("t0", F32)
    shared = apply("add", SCORE, ir.scalar(taken))
    assert to_text(ir.make_graph("score", apply("mul", shared, shared))) == (
        "t0: f32\nt1 = score + t0\nt1 * t1"
    )


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (apply("add", SCORE, Q), "score + q"),
        (apply("div", Q, KV), "q / kv"),
        (apply("mul", apply("to_f32", Q), apply("to_f32", KV)), "q * f32(kv)"),
        (apply("add", SCORE, apply("to_i32", SCORE)), "score + i32(score)"),
        (apply("exp", apply("eq", Q, KV)), "exp(q == kv)"),
        (apply("where", apply("to_bool", Q), SCORE, KV), "where(bool(q), score, kv)"),
    ],
)
def test_only_conversions_that_the_dtype_rules_do_not_restore_are_printed(
    node: Node, text: str
) -> None:
    assert to_text(ir.make_graph("score", node)) == text
    assert parse_graph(text).graph.root is node


def test_a_conversion_of_a_shared_value_does_not_hide_that_it_is_shared() -> None:
    distance = apply("sub", Q, KV)
    root = apply("add", apply("mul", SCORE, distance), apply("exp", distance))
    assert to_text(ir.make_graph("score", root)) == "t0 = q - kv\nscore * t0 + exp(t0)"


def test_a_whole_axis_prints_as_a_colon_only_where_the_axis_has_that_size() -> None:
    table = Buffer("table", F32, (None, LENGTH))
    rows = ir.load(table, (Q, ir.iota(LENGTH)))
    columns = ir.load(table, (ir.iota(LENGTH), ir.const(0)))
    graph = ir.make_graph("score", apply("sum", apply("mul", rows, columns)))
    assert str(graph) == "table: f32[_, 4]\nsum(table[q, :] * table[iota(4), 0])"
    assert_reads_back(graph)


@pytest.mark.parametrize("op", OPS)
def test_every_op_reads_back_with_operands_of_every_dtype_and_precedence(op: str) -> None:
    vector = ir.load(BUFFERS[4], (ir.iota(LENGTH),))
    operands = [
        *(SCORE, KV, vector, ir.const(2.0), ir.const(-2.0), ir.const(3), ir.const(-3)),
        *(apply("add", SCORE, Q), apply("neg", ir.const(1.0)), apply("pow", Q, KV)),
        *(apply("lt", Q, KV), apply("and", apply("lt", Q, KV), ir.const(True)), apply("not", Q)),
    ]
    checked = 0
    for args in itertools.product(operands, repeat=OPS[op].dtypes.arity):
        try:
            node = apply(op, *args)
        except OperandError:
            continue
        if OPS[op].reduces or any(a.length is None for a in args):
            assert_reads_back(graph_of(node))
            checked += 1
    if not checked:  # any() and all()
        assert_reads_back(graph_of(apply(op, apply("gt", vector, Q))))


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Draw a well-typed node from all leaves and all ops."""
    pool = [SCORE, B, H, Q, KV, ir.iota(LENGTH), *map(ir.symbol, SYMBOLS), *map(ir.scalar, SCALARS)]
    pool += map(ir.const, draw(st.lists(st.sampled_from(CONSTANTS), max_size=4)))
    for buffer in draw(st.lists(st.sampled_from(BUFFERS), max_size=3)):
        integers = [n for n in pool if n.dtype is I32 and n.length in (None, LENGTH)]
        index = st.sampled_from([ir.iota(LENGTH), *integers])
        pool.append(ir.load(buffer, tuple(draw(index) for _ in buffer.shape)))
        if buffer.shape:
            pool.append(ir.size(buffer, draw(st.integers(0, len(buffer.shape) - 1))))
    for op in draw(st.lists(st.sampled_from(sorted(OPS)), min_size=10, max_size=30)):
        # recent nodes more often, so that graphs grow deep
        operand = st.integers(0, len(pool) - 1).map(lambda i: pool[max(i, len(pool) - 1 - i)])
        try:
            pool.append(apply(op, *(draw(operand) for _ in range(OPS[op].dtypes.arity))))
        except OperandError:
            continue
    return pool[-1]


@given(nodes())
def test_any_graph_reads_back_to_the_identical_node(node: Node) -> None:
    assert_reads_back(graph_of(node))


@pytest.mark.parametrize("value", CONSTANTS, ids=repr)
def test_constants_and_negated_constants_stay_apart(value: float) -> None:
    for node in (ir.const(value), apply("neg", ir.const(value))):
        assert_reads_back(graph_of(apply("mul", SCORE, node)))
        assert_reads_back(graph_of(apply("pow", node, node)))


@pytest.mark.parametrize("op", ["exp", "neg"])
def test_a_deep_graph_prints_in_short_lines_and_reads_back(op: str) -> None:
    node = SCORE
    for _ in range(5000):
        node = apply(op, node)
    graph = ir.make_graph("score", node)
    assert max(map(len, str(graph).splitlines())) < 5000
    assert_reads_back(graph)


def test_a_long_sum_prints_in_short_lines_and_reads_back() -> None:
    node = SCORE
    for number in range(5000):
        node = apply("add", node, ir.const(float(number)))
    assert_reads_back(ir.make_graph("score", node))


def test_printing_loads_no_parser() -> None:
    code = (
        "import sys\n"
        "from flexfa4.frontend import ir\n"
        "print(ir.make_graph('score', ir.input_('score')), 'lark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "score False"


# ---- values for what a text reads ----------------------------------------------------------------


def test_values_are_bound_in_the_order_in_which_the_graph_reads_them() -> None:
    slope, bias = torch.ones(8), torch.zeros(3)
    bindings = {"w": 3, "bias": bias, "f": 2, "slope": slope}
    text = "f: f32\nscore * slope[h] + bias[b] * f + w"
    bound = bind_values(parse_graph(text, bindings).graph, bindings)
    assert [b.name for b in bound.graph.buffers] == ["slope", "bias"]
    assert bound.tensors[0] is slope and bound.tensors[1] is bias
    assert [s.name for s in bound.graph.scalars] == ["f", "w"]
    assert [(v, type(v)) for v in bound.scalars] == [(2.0, float), (3, int)]


def test_a_declared_name_without_a_value_is_refused_when_values_are_bound() -> None:
    graph = parse_graph("w: i32\nq - kv <= w").graph
    with pytest.raises(
        MissingBindingError, match="w is declared in the text but was given no value"
    ):
        bind_values(graph, {})


# ---- messages ------------------------------------------------------------------------------------

TABLE = torch.zeros(8)
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    # syntax
    "ambiguous_and": ("q >= kv & q - kv <= w", {"w": 3}),
    "ambiguous_bits": ("q & 1 == 0", {}),
    "ambiguous_mixed": ("q < 1 | kv == 2 & q > kv", {}),
    "assignment_to_input": ("score = score + 1; score", {}),
    "and_of_c": ("q >= kv && q < 3", {}),
    "or_of_c": ("q >= kv || q < 3", {}),
    "bars": ("q >= kv and |q - kv| < 3", {}),
    "space_in_operator": ("q > = kv", {}),
    "arrow": ("q - kv => 3", {}),
    "at_most_reversed": ("q - kv =< 3", {}),
    "unequal_of_sql": ("q <> kv", {}),
    "called_number": ("score + w (q - kv)", {"w": 2}),
    "attribute": ("torch.exp(score)", {}),
    "closed_twice": ("(score + 1))", {}),
    "deeply_nested": ("(" * 10_000 + "score" + ")" * 10_000, {}),
    "empty": (" \n# nothing\n", {}),
    "ends_early": ("score +", {}),
    "equals_sign": ("score if q = kv else 0", {}),
    "integer_beyond_64_bits": ("score + 9223372036854775808", {}),
    "keyword_in": ("q in kv", {}),
    "leading_zero": ("q < 007", {}),
    "line_begins_with_and": ("q >= kv\nand q - kv < 3", {}),
    "line_break": ("d = q - kv\nd >= 0 and\nd < 8", {}),
    "never_closed": ("where(q >= kv, score, -inf", {}),
    "no_operator": ("d = q - kv\n2 d < 8", {}),
    "no_result": ("d = q - kv", {}),
    "return": ("return score", {}),
    "semicolon_in_brackets": ("(q; kv)", {}),
    "slice": ("score + table[0:h]", {"table": TABLE}),
    "strange_character": ("q ≤ kv", {}),
    "string": ("score + 'a'", {}),
    "too_long": ("score" + " + 1" * 60_000, {}),
    "unused_value": ("score * 2\nscore", {}),
    "wrong_arguments": ("clamp(score, lo=0, lo=1)", {}),
    # names
    "declared_twice": ("w: i32\nw: f32\nscore * w", {}),
    "declared_reserved": ("q: i32\nscore * q", {}),
    "declared_wrongly": ("w: f64\nscore * w", {}),
    "unknown_function": ("score + relux(q)", {}),
    "unknown_name": ("score + slop[h]", {"slope": TABLE}),
    "uncalled_function": ("score + max", {}),
    "called_tensor": ("score + table(h)", {"table": TABLE}),
    # bindings
    "binding_beyond_64_bits": ("q - kv < w", {"w": 2**63}),
    "binding_complex": ("score + table[h]", {"table": TABLE.to(torch.complex64)}),
    "binding_disagrees": ("table: f32[_, _]\nscore + table[h, q]", {"table": TABLE}),
    "binding_of_other_kind": ("score + table[h]", {"table": (1, 2)}),
    "binding_reserved": ("score + q", {"q": 3}),
    "binding_sparse": ("score + table[h]", {"table": TABLE.to_sparse()}),
    "binding_unused": ("score", {"window": 3}),
    # types and shapes
    "condition_of_number": ("q and kv > 3", {}),
    "dtype": ("score & 1", {}),
    "index_count": ("score + table[b, h]", {"table": TABLE}),
    "index_float": ("score + table[q / 2]", {"table": TABLE}),
    "index_missing": ("score + table", {"table": TABLE}),
    "index_of_number": ("score[q]", {}),
    "index_out_of_range": ("score + table[8]", {"table": TABLE}),
    "index_whole_dynamic_axis": ("table: f32[_]\nsum(table[:])", {}),
    "mask_reads_score": ("score > 0 and q >= kv", {}),
    "size_axis": ("score / size(table, 1)", {"table": TABLE}),
    "vector_lengths": ("sum(iota(3) * iota(4)) + score", {}),
    "vector_result": ("score + table[:]", {"table": TABLE}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_text_says_where_and_what_to_write(
    name: str, golden: Callable[[str, str], None]
) -> None:
    text, bindings = REFUSED[name]
    with pytest.raises(FlexFA4Error) as caught:
        parse_graph(text, bindings)
    shown = text if len(text) < 200 else f"{text[:60]} ... ({len(text)} characters)"
    golden(name, f"{shown}\n\n{type(caught.value).__name__}: {caught.value}")


def test_a_message_points_into_the_middle_of_a_long_line() -> None:
    with pytest.raises(FlexFA4Error) as caught:
        parse_graph("score" + " + 1" * 100 + " + slop" + " + 1" * 100)
    line, caret = str(caught.value).splitlines()[2:4]
    assert len(line) < 140
    assert line[caret.index("^") :].startswith("slop +")
    assert caret.strip() == "^^^^"


def test_dtypes_are_those_of_the_binding() -> None:
    for dtype, wanted in {torch.bfloat16: F32, torch.int8: I32, torch.bool: BOOL}.items():
        parsed = parse_graph("f32(x[h]) + score", {"x": torch.zeros(4, dtype=dtype)})
        assert parsed.declarations == {"x": Buffer("x", wanted, (None,))}
