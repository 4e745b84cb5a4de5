"""Refinement: blocks equal brute force, and little is evaluated to find them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.errors import ArgumentError
from flexfa4.frontend.analysis.bounds import Leaf
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import BOOL, F32, I32, Buffer, Graph, Node, const, load, make_graph
from flexfa4.frontend.masks.classes import classes_of
from flexfa4.frontend.masks.grid import FULL, PARTIAL, BlockGrid, MaskSize
from flexfa4.frontend.masks.limits import Budget
from flexfa4.frontend.masks.runs import BlockRuns
from flexfa4.frontend.masks.search import parts, refine, tiles
from flexfa4.frontend.masks.search.boxes import Boxes, verdicts
from flexfa4.frontend.masks.search.parts import decide_by_parts
from flexfa4.frontend.ops import apply
from tests.brute_force import kinds_of_graph
from tests.leaves import KV, B, H, Q

IDS, LEVEL = Buffer("ids", I32, (None, None)), Buffer("level", F32, (None,))
TABLE, WIDTH = Buffer("table", BOOL, (None, None)), Buffer("width", I32, (None,))
LONGEST = 420
AWAY = apply("sub", Q, KV)
CAUSAL = apply("ge", Q, KV)
SAME_ID = apply("eq", load(IDS, (B, Q)), load(IDS, (B, KV)))
CONDITIONS = (
    CAUSAL,
    apply("lt", apply("abs", AWAY), load(WIDTH, (H,))),
    SAME_ID,
    apply("le", load(LEVEL, (KV,)), load(LEVEL, (Q,))),
    load(TABLE, (apply("floordiv", Q, const(20)), apply("floordiv", KV, const(35)))),
    apply("lt", KV, apply("add", const(50), apply("mul", B, const(90)))),
    apply("gt", Q, const(77)),
    apply("eq", apply("mod", AWAY, const(3)), const(0)),
)


def values_of(seed: int) -> Values:
    g = torch.Generator().manual_seed(seed)
    starts = torch.rand(2, LONGEST, generator=g) < 1 / 40
    names = torch.randperm(LONGEST + 1, generator=g)
    return Values(
        {
            IDS: names[starts.cumsum(1)],
            LEVEL: (torch.randn(LONGEST, generator=g) / 20 + torch.linspace(0, 2, LONGEST)).round(),
            TABLE: torch.rand(21, 12, generator=g) < 0.5,
            WIDTH: torch.tensor([30, 5, 30]),
        }
    )


def found_blocks(root: Node, values: Values, grid: BlockGrid) -> tuple[BlockRuns, torch.Tensor]:
    """Return what refinement finds, and the kinds of blocks ``(b, h, rows, columns)`` of it."""
    graph = make_graph("mask", root)
    classes = classes_of(graph, values, grid.size)
    runs = refine.refine(graph, values, classes, grid)
    return runs, runs.to_kinds()[classes.of]


# limits that small masks reach, and those of other devices
STEPS: dict[str, list[tuple[Any, str, int]]] = {
    "in small steps": [
        (refine, "_FIRST", 3), (refine, "_SLICE", 10), (parts, "_FEW_LANES", 0),
        (parts, "_LEAST", 4), (parts, "_SLICE", 100), (tiles, "_FEW_LANES", 0),
    ],
    "as it is": [],
    "as on a device": [(refine, "_FIRST", 16), (refine, "_EVERY", 2)],
}  # fmt: skip


@pytest.fixture(params=STEPS)
def limited(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with each of these limits."""
    monkeypatch.setattr(refine, "_FEW_LANES", 0)
    for module, name, limit in STEPS[request.param]:
        monkeypatch.setattr(module, name, limit)


@pytest.mark.usefixtures("limited")
@given(st.data())
def test_blocks_equal_brute_force(data: st.DataObject) -> None:
    root = data.draw(st.sampled_from(CONDITIONS))
    for _ in range(data.draw(st.integers(0, 2))):
        other = data.draw(st.sampled_from(CONDITIONS))
        root = apply(data.draw(st.sampled_from(("and", "or", "xor"))), root, other)
    lengths = (data.draw(st.integers(1, LONGEST)) for _ in "qk")
    size = MaskSize(data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3)), *lengths)
    block_size = data.draw(st.sampled_from(((16, 16), (32, 48), (128, 16), (64, 256), (96, 80))))
    values, grid = values_of(data.draw(st.integers(0, 50))), BlockGrid(size, block_size)
    _, kinds = found_blocks(root, values, grid)
    assert torch.equal(kinds, kinds_of_graph(root, values, grid))


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("size", [(1, 1, 0, 50), (1, 1, 50, 0), (0, 2, 50, 50), (1, 1, 1, 1)])
def test_masks_of_nothing_and_of_one_score(size: tuple[int, int, int, int]) -> None:
    grid = BlockGrid(MaskSize(*size), (16, 16))
    runs, kinds = found_blocks(CAUSAL, Values(), grid)
    assert kinds.shape == (*size[:2], grid.rows, grid.columns)
    assert runs.kind.tolist() == [FULL] * (size == (1, 1, 1, 1))


# ---- how much is done ----------------------------------------------------------------------------


class Work:
    """How many lanes and boxes are evaluated, and how many boxes at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lanes = 0
        self.tiles = 0
        self.boxes: list[int] = []
        evaluate = tiles._Part.values_seen

        def values_seen(part: tiles._Part, *args: Any) -> torch.Tensor:
            self.lanes += part.lanes * len(args[2])
            return evaluate(part, *args)

        def judged(root: Node, known: Leaf, zones: Any, boxes: Boxes) -> torch.Tensor:
            self.boxes.append(len(boxes))
            return verdicts(root, known, zones, boxes)

        def decided(graph: Graph, values: Values, *args: Any) -> torch.Tensor:
            self.tiles += len(args[1])
            return decide_by_parts(graph, values, *args)

        monkeypatch.setattr(tiles._Part, "values_seen", values_seen)
        monkeypatch.setattr(refine, "verdicts", judged)
        monkeypatch.setattr(refine, "decide_by_parts", decided)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    yield Work(monkeypatch)


def test_only_blocks_on_the_boundary_are_evaluated(work: Work) -> None:
    grid = BlockGrid(MaskSize(1, 1, 1 << 17, 1 << 17), (128, 128))
    runs, _ = found_blocks(CAUSAL, Values(), grid)
    assert work.tiles == 1024  # the diagonal
    assert sum(work.boxes) < 8 * 1024
    assert runs.counts().tolist() == [list(range(1, 1025))]


@pytest.mark.parametrize("length", [1 << 16, 1 << 20])
def test_work_for_permuted_documents_grows_with_the_length(work: Work, length: int) -> None:
    document = 1000
    names = torch.randperm(length // document + 1, generator=torch.Generator().manual_seed(0))
    values = Values({IDS: names.repeat_interleave(document)[None, :length]})
    root = apply("and", SAME_ID, CAUSAL)
    grid = BlockGrid(MaskSize(1, 1, length, length), (128, 128))
    runs, _ = found_blocks(root, values, grid)
    blocks = int(runs.counts().sum())
    assert blocks > length // 128 * 3
    assert work.tiles < 4 * length // 128
    assert work.lanes < 40 * length
    assert sum(work.boxes) < 16 * length // 128


def test_boxes_are_judged_in_slices_where_nothing_can_be_proved(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refine, "_SLICE", 300)
    noise = apply(
        "mod", apply("mul", apply("add", Q, const(7)), apply("add", KV, const(3))), const(5)
    )
    grid = BlockGrid(MaskSize(1, 1, 2000, 2000), (16, 16))
    runs, _ = found_blocks(apply("lt", noise, const(2)), Values(), grid)
    assert runs.kind.tolist() == [PARTIAL] * grid.rows
    assert max(work.boxes) <= 300
    assert sum(work.boxes) < 1.5 * grid.rows * grid.columns


def test_an_axis_that_is_not_read_costs_nothing(work: Work) -> None:
    grid = BlockGrid(MaskSize(1, 1, 1 << 20, 1 << 20), (128, 128))
    runs, _ = found_blocks(apply("lt", KV, const(1000)), Values(), grid)
    assert runs.kind.tolist() == [FULL, PARTIAL] * grid.rows
    assert work.tiles == 1 and sum(work.boxes) < 2 * grid.columns


def test_a_search_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    multiple = apply("eq", apply("mod", apply("mul", Q, KV), const(997)), const(0))
    grid = BlockGrid(MaskSize(1, 1, 900, 900), (128, 128))
    monkeypatch.setattr(refine, "Budget", functools.partial(Budget, lanes=10 * 128 * 128))
    with pytest.raises(ArgumentError, match="next to nothing is proved"):
        found_blocks(multiple, Values(), grid)
