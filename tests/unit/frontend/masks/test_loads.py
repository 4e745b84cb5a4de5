"""Loads of masks: those in range pass, by bounds or exactly, and others are refused in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flexfa4
from flexfa4.errors import MaskOutOfRangeError
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import BOOL, I32, Buffer, Node, const, load, make_graph
from flexfa4.frontend.masks.grid import MaskSize
from flexfa4.frontend.masks.loads import check_loads
from flexfa4.frontend.masks.search import refine as refinement
from flexfa4.frontend.ops import apply
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.masks.spec import GivenSizes, Spec
from tests.leaves import KV, B, H, Q

CPU = torch.device("cpu")


def checked(mask: Callable[..., Any], q_len: int = 300, kv_len: int = 200) -> Values:
    """Check the loads of a mask for 2 batches and 3 heads; `unproved` is what shapes left open."""
    bound = resolve(mask, "mask")
    spec = Spec(GivenSizes(2, 3, q_len, kv_len), (128, 128))
    values = spec.values(bound, CPU)
    assert values.unproved, "the shapes prove this one"
    return check_loads(bound.graph, values, spec.space(bound.graph))


FOUR = torch.zeros(4)
IDS = torch.arange(300) % 4
SOME = torch.tensor([0, 3, 1])
FLOATS = torch.tensor([0.25, 3.9, 1.0])
ALMOST = torch.tensor([3.9999999999], dtype=torch.float64)
NAN = torch.tensor([0.25, 3.9, torch.nan])
LONG = torch.zeros(128, dtype=torch.bool)
STARTS = torch.arange(0, 300, 60)
TABLE = torch.zeros(60, dtype=torch.bool)
NAMES = torch.zeros(3, 300, dtype=torch.int64)


def _beyond(q: Any) -> Any:
    """Return how far a query is beyond the start of its stretch, which bounds cannot tell."""
    return q - STARTS[q // 60]


FITTING = {
    "by values": lambda b, h, q, kv: FOUR[IDS[q]] > kv,
    "by values of floats": lambda b, h, q, kv: FOUR[FLOATS[h].int()] > kv,
    "by values that are 4 in fp32": lambda b, h, q, kv: FOUR[ALMOST[h - h].int()] > kv,
    "by values of values": lambda b, h, q, kv: FOUR[SOME[IDS[q] % 3]] > kv,
    "together": lambda b, h, q, kv: TABLE[_beyond(q)],
    "guarded": lambda b, h, q, kv: TABLE[torch.where((q - kv).abs() < 60, q - kv, -1)],
    "vectors": lambda b, h, q, kv: FOUR[SOME + (IDS[q] - IDS[q])].sum() > kv,
}
# masks, the tensor and the dimension, where it is read, and what is needed
OUTSIDE = {
    "too short": (lambda b, h, q, kv: TABLE[q], "TABLE", 0, 60, "0 to 299"),
    "too few batches": (lambda b, h, q, kv: FOUR[:1][b] > q, "FOUR", 0, 1, "0 to 1"),
    "too few heads": (lambda b, h, q, kv: IDS[h * 100 + 99 + b] > q, "IDS", 0, 300, "99 to 300"),
    "second dimension": (lambda b, h, q, kv: NAMES[h, q + 1] > kv, "NAMES", 1, 300, "1 to 300"),
    "below": (lambda b, h, q, kv: TABLE[q - kv], "TABLE", 0, None, "-199 to 299"),
    "values": (lambda b, h, q, kv: FOUR[IDS[q] + 1] > kv, "FOUR", 0, 4, "1 to 4"),
    "index of an index": (lambda b, h, q, kv: FOUR[SOME[IDS[q]]] > kv, "SOME", 0, 3, "0 to 3"),
    "one below": (lambda b, h, q, kv: TABLE[_beyond(q) - 61], "TABLE", 0, -61, "-61 to -2"),
    "one above": (lambda b, h, q, kv: TABLE[_beyond(q) + 1], "TABLE", 0, 60, "1 to 60"),
    "first block": (lambda b, h, q, kv: LONG[kv - 256], "LONG", 0, -256, "-256 to -57"),
    "NaN": (lambda b, h, q, kv: FOUR[NAN[h].int()] > kv, "FOUR", 0, -(2**63), f"{-(2**63)} to 3"),
    "vectors": (lambda b, h, q, kv: FOUR[SOME + kv].sum() > q, "FOUR", 0, 4, "0 to 202"),
}


@pytest.mark.parametrize("name", FITTING)
def test_loads_that_fit_are_settled(name: str) -> None:
    assert checked(FITTING[name]).unproved == frozenset()


@pytest.mark.parametrize("name", OUTSIDE)
def test_loads_that_do_not_fit_are_refused_with_what_they_need(name: str) -> None:
    mask, tensor, dim, index, needed = OUTSIDE[name]
    with pytest.raises(MaskOutOfRangeError) as caught:
        checked(mask)
    fields = caught.value.fields
    assert tensor.lower() in fields["tensor"].lower()
    size = fields["size"]
    assert (fields["dim"], fields["needed"]) == (dim, f"indices {needed}")
    assert not -size <= fields["index"] < size
    assert index in (None, fields["index"])
    assert caught.value.load.attr.name in fields["tensor"]
    assert f"these sizes need indices {needed}" in str(caught.value)


def test_nothing_is_evaluated_where_bounds_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("an index was evaluated")

    monkeypatch.setattr(refinement, "refine", refuse)
    for name in ("by values", "by values of floats", "by values of values"):
        checked(FITTING[name], 4, 4)


def test_an_empty_index_space_reads_nothing() -> None:
    for q_len, kv_len in ((0, 200), (300, 0)):
        node = load(Buffer("t", BOOL, (None,)), (apply("add", Q, KV),))
        values = Values({node.attr: torch.zeros(0)}, unproved=frozenset((node,)))
        size = MaskSize(1, 1, q_len, kv_len)
        assert not check_loads(make_graph("mask", node), values, size).unproved


def test_an_empty_tensor_is_refused() -> None:
    with pytest.raises(MaskOutOfRangeError, match="size 0 in dimension 0"):
        checked(lambda b, h, q, kv: FOUR[:0][q] > kv)


@pytest.mark.parametrize(("q_len", "needed"), [(3, "indices -"), (3000, "64 bits may not hold")])
def test_indices_beyond_64_bits_are_refused_in_words(q_len: int, needed: str) -> None:
    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return FOUR[q * 2**62 + kv * 2**61] > 0

    with pytest.raises(MaskOutOfRangeError, match=needed):
        checked(mask, q_len, 3000)


def test_long_lengths_are_told_by_bounds() -> None:
    with pytest.raises(MaskOutOfRangeError, match="indices within -9999 to 9999"):
        checked(lambda b, h, q, kv: TABLE[q - kv], 10_000, 10_000)


def test_lengths_are_the_calls_where_an_index_varies_with_one_axis_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refinement, "_FEW_LANES", 0)
    lists = torch.full((4, 3), -1)
    lists[130 // 64, 1] = 300 - 130

    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return FOUR[3 + (lists[kv // 64] == flexfa4.q_len - kv).any(-1).int()] > q

    with pytest.raises(MaskOutOfRangeError, match="read at index 4"):
        checked(mask, 300, 200)


def test_a_million_tokens_are_checked_where_boxes_prove_them() -> None:
    length = 1 << 20
    assert not checked(FITTING["guarded"], length, length).unproved


# ---- at random -----------------------------------------------------------------------------------

LIST, GRID = Buffer("list", I32, (None,)), Buffer("grid", BOOL, (None, None))
RANDOM_SIZE = MaskSize(2, 2, 20, 30)


@st.composite
def masks(draw: st.DrawFn) -> Node:
    """Draw a load whose indices are arithmetic of inputs, small numbers and another load."""
    number = st.integers(-3, 3).map(const)

    def index(depth: int) -> Node:
        if not depth:
            return draw(st.sampled_from((B, H, Q, KV)) | number)
        op = draw(st.sampled_from(("add", "sub", "mod", "min", "max", "load")))
        if op == "load":
            return load(LIST, (index(depth - 1),))
        other = const(draw(st.integers(1, 9))) if op == "mod" else index(depth - 1)
        return apply(op, index(depth - 1), other)

    return load(GRID, (index(2), index(1)))


@given(masks(), st.lists(st.integers(-5, 25), min_size=1, max_size=35), st.integers(1, 40))
def test_a_load_is_refused_exactly_where_its_evaluation_would_fail(
    root: Node, numbers: list[int], extent: int
) -> None:
    graph = make_graph("mask", root)
    tensors = {LIST: torch.tensor(numbers), GRID: torch.ones(extent, 30, dtype=torch.bool)}
    nodes = {root, *root.args, *(a for i in root.args for a in i.args)}
    found = frozenset(n for n in nodes if n.op == "load")
    values = Values({b: tensors[b] for b in graph.buffers}, unproved=found)
    try:
        Program((root,)).run(values, RANDOM_SIZE.lanes())
    except IndexError as error:
        fits = False
        text = str(error)
    else:
        fits = True
    if fits:
        assert not check_loads(graph, values, RANDOM_SIZE).unproved
        return
    with pytest.raises(MaskOutOfRangeError) as caught:
        check_loads(graph, values, RANDOM_SIZE)
    assert re.match(r"captured tensor `(list|grid)` has size", text)
    low, high = re.findall(r"-?\d+", caught.value.fields["needed"])
    assert int(low) <= caught.value.fields["index"] <= int(high)
