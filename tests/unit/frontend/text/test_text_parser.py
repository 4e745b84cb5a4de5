"""What a text means: values, functions, captured tensors and the kind of the result."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from flexfa4 import counters
from flexfa4.frontend import ir
from flexfa4.frontend.ir import BOOL, F32, I32, Buffer, Node, Scalar
from flexfa4.frontend.ops import OPS, apply, cast
from flexfa4.frontend.text.printing import parse_graph
from tests.leaves import KV, SCORE, H, Q


def root(text: str, **bindings: Any) -> Node:
    return parse_graph(text, bindings).graph.root


def evaluate(node: Node, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return a node's value by the eager column of the ops table."""
    if node.op == "const":
        return torch.tensor(node.attr)
    if node.op == "input":
        return inputs[node.attr]
    value: torch.Tensor = OPS[node.op].eager(*(evaluate(a, inputs) for a in node.args))
    return value


@pytest.mark.parametrize(
    "text",
    [
        "q - kv - 1",
        "q // 3 - q % 3 * -2",
        "-q // 2 % 5",
        "7 - q * kv ** 2 // 3",
        "q << 2 >> 1 | kv & 3 ^ 1",
        "~q & 6 | -kv",
        "0 <= q - kv < 2",
        "0 < q < kv < 3",
        "q == kv != 1",
        "not q > kv and kv > 0 or q == 0",
        "q > 0 or kv > 0 and q == kv",
        "q if q > kv else kv if kv > 1 else -1",
        "(q > 0) & (kv > 0) | (q == kv)",
        "(q > kv) + (q < kv) * 2",
    ],
)
def test_a_text_has_the_value_that_python_gives_it(text: str) -> None:
    node = root(text)
    for q, kv in itertools.product(range(-4, 5), repeat=2):
        value = evaluate(node, {"q": torch.tensor(q), "kv": torch.tensor(kv)})
        assert value.item() == eval(text, {"q": q, "kv": kv}), (q, kv)


def test_indices_have_the_names_of_the_mods_parameters_too() -> None:
    assert root("q_idx >= kv_idx") is root("q >= kv") is apply("ge", Q, KV)


@pytest.mark.parametrize("name", ir.SYMBOLS)
def test_sizes_of_the_call_are_known_by_name(name: str) -> None:
    assert root(f"q < {name}") is apply("lt", Q, ir.symbol(name))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("clamp(score, -1, 1)", "x = where(score < -1, -1, score); where(x > 1, 1, x)"),
        ("clamp(score, lo=-1)", "where(score < -1, -1, score)"),
        ("clamp(score, hi=1)", "where(score > 1, 1, score)"),
        ("clamp(score, hi=1, lo=-1)", "clamp(score, -1, 1)"),
        ("clamp(score, -1, hi=1)", "clamp(score, -1, 1)"),
        ("relu(score)", "where(score <= 0, 0, score)"),
        ("square(score)", "score * score"),
        ("where(isnan(score), 0, score)", "where(score != score, 0, score)"),
        ("score if q > kv else 0", "where(q > kv, score, 0)"),
        ("score * -pi", "score * -3.141592653589793"),
        ("score + 0x1f + 1_000", "score + 31 + 1000"),
        ("d = score; d = d * 2; d", "score * 2"),
    ],
)
def test_short_forms_stand_for_ops(text: str, same: str) -> None:
    assert root(text) is root(same)


def test_a_number_becomes_a_scalar_and_a_bool_a_constant() -> None:
    parsed = parse_graph("score * a + n if flag else score", {"a": 0.5, "n": 3, "flag": True})
    assert parsed.declarations == {"a": Scalar("a", F32), "n": Scalar("n", I32)}
    assert parsed.graph.scalars == (Scalar("a", F32), Scalar("n", I32))
    assert parsed.graph.root.args[0] is ir.const(True)


def test_a_tensor_becomes_a_buffer_with_sizes_that_may_change() -> None:
    assert root("score + bias[h, q - kv]", bias=torch.zeros(2, 3)) is apply(
        "add", SCORE, ir.load(Buffer("bias", F32, (None, None)), (H, apply("sub", Q, KV)))
    )
    assert root("score * temperature", temperature=torch.tensor(2.0)) is apply(
        "mul", SCORE, ir.load(Buffer("temperature", F32, ()), ())
    )


def test_names_of_captured_values_are_plain_strings() -> None:
    text = "a: i32\n`c`: f32[_]\nscore * `c`[q] + a + d + e[kv]"
    graph = parse_graph(text, {"d": 2, "e": torch.ones(3)}).graph
    declared: list[Any] = [*graph.buffers, *graph.scalars]
    assert {type(x.name) for x in declared} == {str}


def test_an_axis_that_is_read_as_a_whole_becomes_static() -> None:
    rows = torch.zeros(5, 64)
    graph = parse_graph("score + sum(a[q, :] * a[kv, :])", {"a": rows}).graph
    buffer = Buffer("a", F32, (None, 64))
    assert graph.buffers == (buffer,)
    vectors = [ir.load(buffer, (i, ir.iota(64))) for i in (Q, KV)]
    assert graph.root is apply("add", SCORE, apply("sum", apply("mul", *vectors)))


def test_sizes_of_tensors_can_be_read() -> None:
    buffer = Buffer("doc", I32, (None, None))
    doc = torch.zeros(2, 9, dtype=torch.int64)
    assert root("q < size(doc, 1)", doc=doc) is apply("lt", Q, ir.size(buffer, 1))


def test_a_declared_table_may_be_read_beyond_its_size_as_where_the_score_is_masked() -> None:
    text = "table: f32[4]\nwhere(q < 4, score + table[7], -inf)"
    assert parse_graph(text, {"table": torch.zeros(4)}).graph == parse_graph(text).graph


def test_the_result_decides_whether_a_text_is_a_score_or_a_mask() -> None:
    assert parse_graph("q >= kv").graph.kind == "mask"
    assert parse_graph("score * 2").graph.kind == "score"
    assert root("q - kv") is cast(apply("sub", Q, KV), F32)
    assert root("False").dtype is BOOL


def test_a_name_in_backticks_is_a_captured_one_whatever_it_means_otherwise() -> None:
    assert root("q < `q`", q=3) is apply("lt", Q, ir.scalar(Scalar("q", I32)))
    assert root("score * `cfg['a']`", **{"cfg['a']": 2.0}) is apply(
        "mul", SCORE, ir.scalar(Scalar("cfg['a']", F32))
    )


def test_declared_and_bound_values_must_agree_but_an_int_may_stand_for_a_float() -> None:
    text = "w: f32\ntable: f32[_, 4]\nscore * w + sum(table[h, :])"
    parsed = parse_graph(text, {"w": 2, "table": torch.zeros(3, 4)})
    assert parsed.graph == parse_graph(text).graph
    assert parsed.declarations == {
        "w": Scalar("w", F32),
        "table": Buffer("table", F32, (None, 4)),
    }


def test_each_parse_is_counted() -> None:
    before = counters.stats()
    parse_graph("score")
    assert (counters.stats() - before).parses == 1


def test_the_least_integer_can_be_written() -> None:
    assert root("score + -9223372036854775808") is apply("add", SCORE, ir.const(-(2**63)))
