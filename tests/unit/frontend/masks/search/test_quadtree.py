"""The quad-tree's geometry: levels, and boxes that cover the grid exactly."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.masks.grid import BlockGrid, MaskSize
from flexfa4.frontend.masks.search.quadtree import Forest, Level, Places, levels_over

BOTH = frozenset({"q", "kv"})
grids = st.builds(
    BlockGrid,
    st.builds(MaskSize, st.just(1), st.just(1), *(st.integers(1, 3000) for _ in range(2))),
    st.tuples(*(st.sampled_from((16, 48, 128, 256)) for _ in range(2))),
)


@given(
    grids,
    st.sampled_from((BOTH, frozenset({"q"}), frozenset({"kv"}), frozenset())),
    st.integers(1, 3),
)
def test_boxes_of_every_level_cover_each_block_once(
    grid: BlockGrid, depends: frozenset[str], step: int
) -> None:
    forest = Forest(grid, torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    levels = levels_over(grid, depends, 5)
    assert len(forest.all_places(levels[-1])) <= 2 * 5
    levels = levels[::step]
    places = forest.all_places(levels[-1])
    for level, finer in (*itertools.pairwise(reversed(levels)), (levels[0], None)):
        lanes = torch.zeros(2, *(n + 1 for n in (grid.size.q_len, grid.size.kv_len)))
        assert int(places.row.max()) < grid.rows and int(places.column.max()) < grid.columns
        boxes = forest.boxes(places, level)
        for owner, *ends in zip(
            places.owner, boxes.q_start, boxes.q_stop, boxes.kv_start, boxes.kv_stop, strict=True
        ):
            q, q_end, kv, kv_end = map(int, ends)
            lanes[owner, q:q_end, kv:kv_end] += 1
        assert bool((lanes[:, :-1, :-1] == 1).all()) and not lanes[:, -1].any()
        if finer is not None:
            places = forest.parts(places, level, finer)


@pytest.mark.parametrize("block_size", list(itertools.product((16, 48, 128, 256), repeat=2)))
def test_the_finest_boxes_are_blocks_and_the_others_nearly_square(
    block_size: tuple[int, int],
) -> None:
    grid = BlockGrid(MaskSize(1, 1, 50_000, 70_000), block_size)
    levels = levels_over(grid, BOTH, 1)
    assert levels[0] == Level(1, 1)
    for finer, level in itertools.pairwise(levels):
        assert finer != level
        if level.rows < grid.rows and level.columns < grid.columns:
            before, after = (
                max(height / width, width / height)
                for height, width in (lanes_of(finer, grid), lanes_of(level, grid))
            )
            assert after <= max(2, before / 2)


def lanes_of(level: Level, grid: BlockGrid) -> tuple[int, int]:
    """Return the height and width of a box."""
    return level.rows * grid.block_size[0], level.columns * grid.block_size[1]


def test_an_axis_that_is_not_read_is_not_split() -> None:
    grid = BlockGrid(MaskSize(1, 1, 1000, 2000), (16, 16))
    assert {level.rows for level in levels_over(grid, frozenset({"kv"}), 3)} == {grid.rows}
    assert {level.columns for level in levels_over(grid, frozenset({"q"}), 3)} == {grid.columns}
    assert levels_over(grid, frozenset(), 3) == [Level(grid.rows, grid.columns)]


def test_the_tile_of_a_box_is_its_first_block() -> None:
    grid = BlockGrid(MaskSize(2, 3, 100, 100), (16, 16))
    forest = Forest(grid, torch.tensor([1, 0]), torch.tensor([2, 1]))
    tiles = forest.tiles(Places(torch.tensor([1, 0]), torch.tensor([3, 4]), torch.tensor([5, 6])))
    assert [t.tolist() for t in (tiles.b, tiles.h, tiles.row, tiles.column)] == [
        [0, 1], [1, 2], [3, 4], [5, 6],
    ]  # fmt: skip
