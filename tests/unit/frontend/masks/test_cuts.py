"""Blocks of a range of queries follow from those of all, and no more is evaluated than is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import BOOL as BOOL_TYPE
from flexfa4.frontend.ir import Buffer, load, make_graph
from flexfa4.frontend.masks import cuts
from flexfa4.frontend.masks.cuts import with_rows_of
from flexfa4.frontend.masks.grid import MaskSize
from flexfa4.frontend.masks.search.tiles import Tiles, decide
from flexfa4.frontend.masks.structure import MaskBlocks, analyse
from tests.brute_force import equal_runs
from tests.leaves import KV, H, Q

TABLE = Buffer("keep", BOOL_TYPE, (None,) * 3)
GRAPH = make_graph("mask", load(TABLE, (H, Q, KV)))
HEADS, Q_LEN, KV_LEN = 3, 150, 100
KEEP = torch.rand(5, 4, generator=torch.Generator().manual_seed(0)) < 0.5  # patches of 32 x 32
KEEP = KEEP.repeat_interleave(32, 0).repeat_interleave(32, 1)[:Q_LEN, :KV_LEN]
KEEP = torch.stack([KEEP, ~KEEP, KEEP.roll(7, 0)])
SIZE = MaskSize(1, HEADS, Q_LEN, KV_LEN)
BORDER = int((KEEP[0, 31, ::32] != KEEP[0, 32, ::32]).sum())
WHOLE = analyse(GRAPH, Values({TABLE: KEEP}), SIZE, (16, 32))


def rows_of(first: int, last: int, heads: list[int]) -> MaskBlocks:
    """Return the structure of a range of queries and some heads, nothing of which is known."""
    values = Values({TABLE: KEEP[heads, first:last]})
    return MaskBlocks(GRAPH, values, MaskSize(1, len(heads), last - first, KV_LEN), (16, 32))


@given(
    ends=st.tuples(st.integers(0, Q_LEN), st.integers(0, Q_LEN)),
    heads=st.lists(st.integers(0, HEADS - 1), min_size=1, max_size=HEADS, unique=True),
)
def test_the_rows_of_a_range_are_those_of_its_own_analysis(
    ends: tuple[int, int], heads: list[int]
) -> None:
    first, last = sorted(ends)
    part = rows_of(first, last, heads)
    classes = [heads[h] for _, h in part.classes.members]  # heads may be equal in so few rows
    found = with_rows_of(part, WHOLE, classes, first)
    assert found.has_runs and equal_runs(found.runs, part.found().runs)


@pytest.mark.parametrize(
    ("first", "last", "evaluated"),
    [
        (32, 64, 0),  # between blocks
        (144, 150, 0),  # up to the end
        (33, 34, 0),  # within full and empty blocks
        (40, 56, 0),  # through these
        (24, 40, BORDER),  # across the border of two patches
        (16, 17, 0),
    ],
)
def test_only_what_the_cut_leaves_open_is_evaluated(
    first: int, last: int, evaluated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0

    def noted(graph: object, values: object, tiles: Tiles, grid: object) -> torch.Tensor:
        nonlocal seen
        seen += len(tiles)
        return decide(graph, values, tiles, grid)  # type: ignore[arg-type]

    monkeypatch.setattr(cuts, "decide", noted)
    with_rows_of(rows_of(first, last, [0]), WHOLE, [0], first)
    assert seen == evaluated


def test_a_range_of_more_blocks_than_are_looked_at_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuts, "_MOST_BLOCKS", 7)
    part = rows_of(5, 30, [1])
    assert with_rows_of(part, WHOLE, [1], 5) is part
    assert with_rows_of(replace(part, caches={}), WHOLE, [1], 5).has_runs is False
    assert with_rows_of(rows_of(32, 64, [1]), WHOLE, [1], 32).has_runs
