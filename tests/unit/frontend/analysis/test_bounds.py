"""Bounds of graphs: sound, decided conditions prune, loads are proved only where they are safe."""

from __future__ import annotations

import itertools
import math
import weakref
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexfa4.errors import OperandError
from flexfa4.frontend.analysis.bounds import Domain, bound, bounds, prove_loads
from flexfa4.frontend.analysis.intervals import ANY_BOOL, ANY_F32, TRUE, Interval
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import (
    BOOL,
    F32,
    I32,
    Buffer,
    Node,
    Scalar,
    Search,
    const,
    input_,
    iota,
    load,
    scalar,
    search,
    size,
    symbol,
)
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.ops import OPS, apply
from tests.leaves import KV, B, H, Q

INF = math.inf
W, S = Scalar("w", I32), Scalar("s", F32)
TABLE = Buffer("t", F32, (None,))
IDS = Buffer("ids", I32, (None,))
FLAGS = Buffer("flags", BOOL, (None, 3))
TENSORS = {
    TABLE: torch.tensor([0.5, -2.0, 3.25, 0.0, 1e30, -0.75, 2.0]),
    IDS: torch.tensor([0, 0, 1, 4, 2, -3, 2]),
    FLAGS: torch.tensor([[False, True, False]] * 4 + [[True, True, True]] * 3),
}
DOMAIN = Domain(
    b=2, h=3, q_len=5, kv_len=7, num_heads=3, num_kv_heads=1, scalars={W: 2, S: 0.1},
    shapes={buffer: tuple(t.shape) for buffer, t in TENSORS.items()},
)  # fmt: skip
LANES = Lanes((0, 2), (0, 3), (0, 5), (0, 7))
VALUES = Values(tensors=TENSORS, scalars={W: 2, S: 0.1}, symbols={"q_len": 5, "num_heads": 3})

LEAVES = [
    *(B, H, Q, KV, symbol("q_len"), symbol("num_heads"), scalar(W), scalar(S)),
    *(const(v) for v in (0, 1, 3, -2, 0.5, -4.0)),
    *(load(TABLE, (KV,)), load(IDS, (Q,)), load(IDS, (KV,)), load(FLAGS, (Q, iota(3))), iota(3)),
    load(TABLE, (apply("mod", apply("mul", KV, Q), const(7)),)),
]
# what torch takes as a second operand: no zero to divide by, no negative power of integers
SECOND = {
    "floordiv": (const(3), const(-2), const(1), symbol("q_len")),
    "mod": (const(3), const(-2), const(1), symbol("q_len")),
    "pow": (const(2), const(3), const(0), const(0.5), scalar(W)),
}


@st.composite
def graphs(draw: st.DrawFn) -> Node:
    nodes = list(LEAVES)
    for _ in range(draw(st.integers(1, 10))):
        row = OPS[draw(st.sampled_from(tuple(OPS)))]
        operands = [draw(st.sampled_from(nodes[-6:] + LEAVES)) for _ in range(row.dtypes.arity)]
        if row.name in SECOND:
            operands[1] = draw(st.sampled_from(SECOND[row.name]))
        try:
            nodes.append(apply(row.name, *operands))
        except OperandError:
            continue
    return nodes[-1]


def evaluated(root: Node, dtype: torch.dtype) -> torch.Tensor:
    """Return the root's value on all lanes, ``(b, h, q, kv, elements)``."""
    (result,) = Program([root]).run(replace(VALUES, dtype=dtype), LANES)
    value = torch.as_tensor(result)
    if root.length is None:
        value = value.unsqueeze(-1)
    return value.expand(*LANES.shape, root.length or 1)


@given(graphs())
def test_every_value_of_a_graph_lies_in_its_bound(root: Node) -> None:
    found = bound(root, DOMAIN.leaf)
    for dtype in (torch.float32, torch.float64):
        for value in evaluated(root, dtype).flatten().tolist():
            assert value in found


def random_boxes(random: Random, count: int) -> list[Lanes]:
    ranges = [[sorted(random.sample(range(n + 1), 2)) for n in LANES.shape] for _ in range(count)]
    return [Lanes(*((lo, hi) for lo, hi in axes)) for axes in ranges]


def extremes(node: Node, indices: list[Interval]) -> Interval:
    """Return the bounds of a load in each box, by reading all that it may read."""
    tensor = TENSORS[node.attr]
    ends = torch.broadcast_tensors(*[torch.as_tensor(e) for i in indices for e in (i.lo, i.hi)])
    parts = [
        tensor[tuple(slice(at[2 * d], at[2 * d + 1] + 1) for d in range(len(indices)))]
        for at in torch.stack(ends, -1).reshape(-1, len(ends)).tolist()
    ]
    shape = ends[0].shape
    low, high = torch.stack([p.amin() for p in parts]), torch.stack([p.amax() for p in parts])
    return Interval(low.reshape(shape), high.reshape(shape))


@settings(max_examples=150)
@given(graphs(), st.integers(0, 2**32))
def test_every_value_in_a_box_lies_in_the_bound_of_that_box(root: Node, seed: int) -> None:
    boxes = random_boxes(Random(seed), 4)

    def leaf(node: Node) -> Interval | None:
        if node.op != "input":
            return DOMAIN.leaf(node)
        ranges = torch.tensor([getattr(box, node.attr) for box in boxes])
        return Interval(ranges[:, 0], ranges[:, 1] - 1)

    found = bound(root, leaf, extremes)
    lo, hi, nan = (
        part.expand(len(boxes)).tolist() if isinstance(part, torch.Tensor) else [part] * len(boxes)
        for part in found
    )
    for dtype in (torch.float32, torch.float64):
        values = evaluated(root, dtype)
        for i, box in enumerate(boxes):
            inside = values[tuple(slice(*getattr(box, axis)) for axis in ("b", "h", "q", "kv"))]
            one = Interval(lo[i], hi[i], nan[i])
            assert all(value in one for value in inside.flatten().tolist()), (root, box, one)


def test_ends_of_any_number_type_are_made_fit_for_the_dtype() -> None:
    ends = torch.tensor([-INF, 1.5, 1e30]), torch.tensor([-1e30, 2.5, INF])
    found = bound(Q, lambda _: Interval(*ends))
    assert found.lo.tolist()[:2] == [-(2**63), 1] and found.hi.tolist()[1:] == [3, 2**63 - 1]
    bytes_ = Interval(torch.tensor([0, 0, 1], dtype=torch.uint8), 1)
    flags = bound(load(Buffer("m", BOOL, (None,)), (Q,)), lambda _: bytes_)
    assert flags.lo.tolist() == [False, False, True] and flags.hi is True
    halves = bound(load(TABLE, (Q,)), lambda _: Interval(torch.tensor([1, 2]).half(), 7))
    assert halves.lo.dtype is torch.float64 and type(halves.hi) is float


def test_a_product_of_a_node_with_itself_is_a_square() -> None:
    difference = apply("sub", Q, KV)
    assert bound(apply("mul", difference, difference), DOMAIN.leaf) == Interval(0, 36)
    assert bound(apply("mul", difference, apply("sub", KV, Q)), DOMAIN.leaf).lo == -36


@pytest.mark.parametrize(
    ("test", "end"), [("lt", (2, 5)), ("le", (2, 5)), ("gt", (-5, 2)), ("ge", (-5, 2))]
)
def test_a_selection_by_comparison_with_a_number_is_a_bound(
    test: str, end: tuple[int, int]
) -> None:
    x, two = input_("kv"), const(2)
    leaf = {x: Interval(-5, 5)}.get
    assert bound(apply("where", apply(test, x, two), two, x), leaf) == Interval(*end)
    assert bound(apply("where", apply(test, x, two), x, two), leaf) == Interval(-5, 5)
    floats = {load(TABLE, (Q,)): Interval(-5.0, 5.0, True)}
    (y,) = floats
    found = bound(apply("where", apply(test, y, const(2.0)), const(2.0), y), floats.get)
    assert found == Interval(float(end[0]), float(end[1]), True)


def test_what_is_the_same_in_all_boxes_stays_a_number() -> None:
    def leaf(node: Node) -> Interval | None:
        return Interval(torch.arange(3), torch.arange(3)) if node is Q else DOMAIN.leaf(node)

    found = bounds(apply("lt", apply("mul", KV, const(2)), apply("add", Q, H)), leaf)
    tensors = {node.op for node, i in found.items() if isinstance(i.lo, torch.Tensor)}
    assert tensors == {"input", "add", "lt"}


def test_intervals_are_dropped_after_their_last_use() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def leaf(node: Node) -> Interval | None:
        return Interval(torch.arange(3), torch.arange(3)) if node is Q else DOMAIN.leaf(node)

    def known(node: Node, indices: list[Interval]) -> Interval | None:
        assert not any(before() is not None for before in alive)
        alive.append(weakref.ref(indices[0].lo))
        return Interval(indices[0].lo * 2, indices[0].hi * 3)

    node = Q
    for _ in range(4):
        node = load(IDS, (apply("add", node, const(1)),))
    bound(node, leaf, known)
    assert len(alive) == 4


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
    place = search(Search(TABLE, 0, "through"), (), const(0.5))
    assert bound(place, DOMAIN.leaf) == Interval(0, 7)
    assert bound(place) == Interval(0, 2**63 - 1)
    assert bound(apply("sum", apply("mul", iota(4), const(2)))) == Interval(0, 24)


def test_narrowed_ranges_replace_the_whole_lengths() -> None:
    tile = Domain(1, 1, 512, 512, 1, 1, q=(256, 383), kv=(0, 127))
    assert bound(apply("ge", Q, KV), tile.leaf) == TRUE


def test_of_sequences_of_a_batch_the_lengths_are_bounded_and_not_known() -> None:
    one, some = Domain(1, 1, 90, 50, 8, 2), Domain(1, 1, 90, 50, 8, 2, any_length=True)
    for domain, least in ((one, 50), (some, 1)):
        assert bound(symbol("kv_len"), domain.leaf) == Interval(least, 50)
        assert bound(KV, domain.leaf) == Interval(0, 49)
        assert bound(symbol("num_heads"), domain.leaf) == Interval(8, 8)
    from_end = apply("sub", apply("add", Q, symbol("kv_len")), symbol("q_len"))
    assert bound(from_end, one.leaf) == Interval(-40, 49)
    assert bound(from_end, some.leaf) == Interval(-89, 138)


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
