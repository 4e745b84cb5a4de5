"""Parts: tiles are decided as by evaluating them, with fewer lanes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from flexfa4.frontend.analysis.bounds import unknown
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import I32, Buffer, Node, const, load, make_graph
from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL, BlockGrid, MaskSize
from flexfa4.frontend.masks.limits import Budget
from flexfa4.frontend.masks.search import parts, tiles
from flexfa4.frontend.masks.search.boxes import verdicts
from flexfa4.frontend.masks.search.parts import decide_by_parts
from flexfa4.frontend.masks.search.tiles import Tiles, decide
from flexfa4.frontend.masks.search.zones import Zones
from flexfa4.frontend.ops import apply
from tests.leaves import KV, Q


def square(node: Node) -> Node:
    return apply("mul", node, node)


RADIUS = 700
INSIDE = apply("le", apply("add", square(Q), square(KV)), const(RADIUS * RADIUS))
NOISE = apply("lt", apply("mod", apply("mul", Q, apply("mul", KV, Q)), const(997)), const(1))
IDS = Buffer("ids", I32, (None,))
PADDED = apply(
    "and",
    apply("eq", load(IDS, (Q,)), load(IDS, (KV,))),
    apply("ge", load(IDS, (Q,)), const(0)),
)
ids = torch.arange(9).repeat_interleave(120)
ids[100::120] = ids[101::120] = ids[102::120] = -1
VALUES = Values({IDS: ids})
# a square in each tile that no probe reads
HIDDEN = apply(
    "and",
    *(
        apply("eq", apply("mod", apply("floordiv", i, const(16)), const(8)), const(5))
        for i in (Q, KV)
    ),
)
MASKS = {
    "hidden": HIDDEN,
    "inside": INSIDE,
    "outside": apply("not", INSIDE),
    "padded": PADDED,
    "noise": NOISE,
}


def all_tiles(grid: BlockGrid) -> Tiles:
    place = torch.arange(grid.rows * grid.columns)
    zero = torch.zeros_like(place)
    return Tiles(zero, zero, place // grid.columns, place % grid.columns)


def decided(
    root: Node, grid: BlockGrid, some: Tiles | None = None, budget: Budget | None = None
) -> torch.Tensor:
    judge = functools.partial(verdicts, root, unknown, Zones(VALUES, grid.block_size))
    graph = make_graph("mask", root)
    return decide_by_parts(graph, VALUES, judge, some or all_tiles(grid), grid, budget)


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect how many lanes are evaluated, with limits that small masks reach."""
    found: list[int] = []
    run = tiles._Part.values_seen

    def counted(part: tiles._Part, *args: Any) -> torch.Tensor:
        found.append(part.lanes * len(args[2]))
        return run(part, *args)

    monkeypatch.setattr(tiles._Part, "values_seen", counted)
    monkeypatch.setattr(tiles, "_FEW_LANES", 0)
    monkeypatch.setattr(parts, "_FEW_LANES", 0)
    return found


@pytest.mark.parametrize("block_size", [(128, 128), (64, 32), (96, 160), (48, 48), (16, 64)])
@pytest.mark.parametrize("slice_", [100, 1 << 16])
@pytest.mark.parametrize("name", MASKS)
def test_kinds_are_those_of_evaluated_tiles(
    name: str,
    block_size: tuple[int, int],
    slice_: int,
    lanes: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "_SLICE", slice_)
    grid = BlockGrid(MaskSize(1, 1, 1000, 777), block_size)
    kinds = decided(MASKS[name], grid)
    right = decide(make_graph("mask", MASKS[name]), VALUES, all_tiles(grid), grid)
    assert kinds.dtype is torch.int8
    assert torch.equal(kinds, right)


def test_what_the_boundary_does_not_touch_is_not_evaluated(lanes: list[int]) -> None:
    grid = BlockGrid(MaskSize(1, 1, 1024, 1024), (128, 128))
    kinds = decided(INSIDE, grid)
    assert {EMPTY, PARTIAL, FULL} == set(kinds.tolist())
    probed = 73 * len(kinds)
    assert sum(lanes) < probed + 128 * 128 // 2


def test_tiles_are_evaluated_whole_where_little_is_proved_of_parts(lanes: list[int]) -> None:
    grid, budget = BlockGrid(MaskSize(1, 1, 512, 512), (128, 128)), Budget()
    some = all_tiles(grid)[torch.tensor([5, 6, 9])]  # no multiple of the prime 997 is in them
    before = budget.lanes
    assert decided(NOISE, grid, some, budget).eq(EMPTY).all()
    assert sum(lanes) == 3 * (2 * 73 + 128 * 128)
    assert before - budget.lanes == 3 * 128 * 128
