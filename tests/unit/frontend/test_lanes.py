"""Lanes: scattered tiles see what a rectangle sees, for every op and every kind of load."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.errors import OperandError, OutOfRangeError
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import (
    BOOL,
    F32,
    I32,
    Buffer,
    Node,
    Scalar,
    const,
    iota,
    load,
    scalar,
    symbol,
)
from flexfa4.frontend.lanes import Lanes, ScatteredLanes, arange, common_shape, vector
from flexfa4.frontend.ops import OPS, apply
from tests.leaves import KV, B, H, Q

SIZES = (2, 3, 20, 30)  # b, h, q, kv
WHOLE = Lanes(*((0, n) for n in SIZES))
_seeded = torch.Generator().manual_seed(0)

W = Scalar("w", I32)
LEVELS = Buffer("levels", F32, (None,))
IDS = Buffer("ids", I32, (None, None))
SEEN = Buffer("seen", BOOL, (None,) * 4)
CODES = Buffer("codes", I32, (None, 4))
VALUES = Values(
    tensors={
        LEVELS: torch.randn(30, generator=_seeded),
        IDS: torch.randint(-9, 9, (3, 30), generator=_seeded),
        SEEN: torch.rand(SIZES, generator=_seeded) < 0.5,
        CODES: torch.randint(0, 5, (30, 4), generator=_seeded),
    },
    scalars={W: 3},
    symbols={"q_len": 20},
)
LOADS = (
    load(LEVELS, (KV,)),
    load(LEVELS, (apply("abs", apply("sub", KV, Q)),)),
    load(IDS, (H, Q)),
    load(IDS, (const(-1), apply("neg", apply("add", KV, const(1))))),
    load(IDS, (B, apply("mod", apply("mul", Q, KV), const(30)))),
    load(SEEN, (B, H, Q, KV)),
    load(SEEN, (B, const(1), apply("floordiv", KV, const(2)), Q)),
)
VECTORS = (
    load(CODES, (Q, iota(4))),
    load(CODES, (apply("mod", apply("add", Q, KV), const(30)), iota(4))),
    load(CODES, (KV, apply("sub", const(3), iota(4)))),
    load(CODES, (const(2), iota(4))),
)
LEAVES = (B, H, Q, KV, symbol("q_len"), scalar(W), *map(const, (0, 1, -3, 7)), *LOADS)


@st.composite
def tiles(draw: st.DrawFn) -> ScatteredLanes:
    count, rows, columns = (draw(st.integers(1, n)) for n in (4, 5, 6))

    def index(size: int, *shape: int) -> torch.Tensor:
        seed = draw(st.integers(0, 99))
        return torch.randint(size, shape, generator=torch.Generator().manual_seed(seed))

    b, h, q, kv = SIZES
    return ScatteredLanes(
        index(b, count), index(h, count), index(q, count, rows), index(kv, count, columns)
    )


def both(root: Node, lanes: ScatteredLanes) -> tuple[torch.Tensor, torch.Tensor]:
    """Evaluate at scattered lanes; and everywhere, of which these lanes are picked."""
    program = Program((root,))
    (found,), (dense,) = program.run(VALUES, lanes), program.run(VALUES, WHOLE)
    everywhere = torch.as_tensor(dense).expand(SIZES)
    at = torch.broadcast_tensors(*(lanes.index(n, VALUES.device) for n in ("b", "h", "q", "kv")))
    return torch.as_tensor(found).expand(lanes.shape), everywhere[at]


@given(tiles(), st.sampled_from(LOADS + tuple(apply("sum", v) for v in VECTORS)))
def test_scattered_tiles_read_tensors_as_a_rectangle_does(
    lanes: ScatteredLanes, root: Node
) -> None:
    found, right = both(root, lanes)
    assert torch.equal(found, right)


@st.composite
def whole_graphs(draw: st.DrawFn) -> Node:
    """Draw graphs of integers and bools, whose values do not depend on the order of sums."""
    nodes = [node for node in LEAVES if node.dtype is not F32]
    names = [name for name, row in OPS.items() if not row.reduces and row.dtypes.operands != {F32}]
    for _ in range(draw(st.integers(1, 8))):
        name = draw(st.sampled_from(names))
        operands = [draw(st.sampled_from(nodes)) for _ in range(OPS[name].dtypes.arity)]
        if name in ("floordiv", "mod", "pow", "shl", "shr"):  # others have no result
            operands[1] = const(draw(st.integers(1, 5)))
        try:
            made = apply(name, *operands)
        except OperandError:
            continue
        if made.dtype is not F32:
            nodes.append(made)
    return nodes[-1]


@given(tiles(), whole_graphs())
def test_scattered_tiles_see_what_a_rectangle_sees(lanes: ScatteredLanes, root: Node) -> None:
    found, right = both(root, lanes)
    assert torch.equal(found, right)


OPERANDS = {F32: (LOADS[0], LOADS[1], const(0.5)), I32: (Q, KV, LOADS[2]), BOOL: LOADS[5:] * 2}


@pytest.mark.parametrize("name", OPS)
def test_every_op_has_one_meaning_at_scattered_lanes_and_on_rectangles(name: str) -> None:
    row = OPS[name]
    lanes = ScatteredLanes(
        torch.tensor([1, 0]), torch.tensor([2, 0]),
        torch.tensor([[3, 4, 9], [0, 1, 19]]), torch.tensor([[7, 6, 5, 5], [0, 1, 2, 29]]),
    )  # fmt: skip
    for dtype in sorted(row.dtypes.operands, key=str):
        operands = list(OPERANDS[dtype][: row.dtypes.arity])
        if row.dtypes.first is not None:
            operands = [LOADS[5], *operands[:-1]]
        if name in ("floordiv", "mod", "pow", "shl", "shr"):
            operands[1] = const(3)
        if row.reduces:
            operands = [apply("lt" if dtype is BOOL else "add", operands[0], VECTORS[0])]
        root = apply(name, *operands)
        found, right = both(root, lanes)
        torch.testing.assert_close(found, right, equal_nan=True)


def test_a_value_of_tiles_has_only_the_axes_that_it_varies_along() -> None:
    lanes = ScatteredLanes(torch.zeros(5).long(), torch.zeros(5).long(),
                           torch.zeros(5, 3).long(), torch.zeros(5, 4).long())  # fmt: skip
    for root, shape in (
        (apply("add", B, H), (5, 1, 1, 1)),
        (load(IDS, (const(0), Q)), (5, 1, 3, 1)),
        (load(LEVELS, (KV,)), (5, 1, 1, 4)),
        (apply("lt", Q, KV), (5, 1, 3, 4)),
    ):
        (found,) = Program((root,)).run(VALUES, lanes)
        assert found.shape == shape
    assert lanes.shape == (5, 1, 3, 4)


def test_an_unproved_load_is_checked_at_scattered_lanes_too() -> None:
    node = load(LEVELS, (apply("add", KV, const(1)),))
    values = Values({LEVELS: VALUES.tensors[LEVELS]}, unproved=frozenset((node,)))
    zero = torch.zeros(1, 1, dtype=torch.int64)
    for key, fits in ((28, True), (29, False)):
        lanes = ScatteredLanes(zero[0], zero[0], zero, zero + key)
        if fits:
            (found,) = Program((node,)).run(values, lanes)
            assert found.item() == VALUES.tensors[LEVELS][29]
        else:
            with pytest.raises(OutOfRangeError, match="index 30"):
                Program((node,)).run(values, lanes)


def test_ranges_are_the_same_below_and_above_what_is_kept() -> None:
    for start, stop in ((0, 3), (5, 5), (65530, 65540), (1 << 20, (1 << 20) + 2)):
        assert arange(start, stop, torch.device("cpu")).tolist() == list(range(start, stop))


@pytest.mark.parametrize("numbers", [(), (7,), (3, 3, 3), (2, 3, 4), (0, 2, 1), (1 << 40,) * 2])
def test_a_vector_has_the_numbers_that_it_was_given(numbers: tuple[int, ...]) -> None:
    found = vector(numbers, torch.device("cpu"))
    assert found.tolist() == list(numbers) and found.dtype is torch.int64


@pytest.mark.parametrize("numbers", [(), (7,), (3, 3, 3), (2, 3, 4)])
def test_numbers_that_are_equal_or_count_up_are_not_transferred(
    numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch, "tensor")
    assert vector(numbers, torch.device("meta")).shape == (len(numbers),)


@pytest.mark.parametrize(
    "shapes", [((),), ((3,), ()), ((2, 1, 4), (3, 1)), ((1, 0), (5, 1, 1), (1,)), ((1,), (1, 1))]
)
def test_a_common_shape_is_what_tensors_broadcast_to(shapes: tuple[tuple[int, ...], ...]) -> None:
    tensors = torch.broadcast_tensors(*(torch.empty(shape) for shape in shapes))
    assert common_shape(*shapes) == tensors[0].shape
