"""Ranks of visits: lines that visit one tile have their turns in the order of work."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given

from flexfa4.frontend.masks.runs import BlockRuns
from flexfa4.kernels.blocks.lists import listed
from flexfa4.kernels.blocks.ranks import best_turns, in_order, ranks_of, visits_of_lines
from flexfa4.kernels.blocks.walk import walk_for
from flexfa4.primitives.arithmetic import PLAIN
from flexfa4.primitives.scheduler import Sections, Work
from flexfa4.primitives.tile_walk import Dense, Listed
from tests.tile_walks import COLUMNS, CPU, limits_on_host
from tests.unit.kernels.blocks.test_lists import tables


@given(tables())
def test_visits_of_lines_are_those_of_the_lists(kinds: torch.Tensor) -> None:
    lists = listed(BlockRuns.from_kinds(kinds), kinds.shape[2] * 10, 10)
    found = visits_of_lines(lists, kinds.shape[1])
    assert [[sorted(line) for line in lines] for lines in found] == [
        [line.nonzero().flatten().tolist() for line in of_class] for of_class in kinds
    ]


@given(tables())
def test_a_rank_counts_the_lines_before_that_visit_the_same_tile(kinds: torch.Tensor) -> None:
    lists = listed(BlockRuns.from_kinds(kinds), kinds.shape[2] * 10, 10)
    for descending in (False, True):
        ranks = ranks_of(lists, kinds.shape[1], descending).tolist()
        assert len(ranks) == len(lists.tiles) and ranks.pop() == 0
        seen = kinds != 0
        before = (seen.flip(1).cumsum(1).flip(1) if descending else seen.cumsum(1)) - 1
        expected = [
            int(before[c, line, tile])
            for c, lines in enumerate(visits_of_lines(lists, kinds.shape[1]))
            for line, tiles in enumerate(lines)
            for tile in tiles
        ]
        assert ranks == expected


@pytest.mark.parametrize("name", ["dense", "causal, tall", "window by head", "prefix", "texts"])
def test_turns_of_a_walk_follow_the_order_of_work(name: str) -> None:
    case = COLUMNS[name]
    walk = walk_for(case.blocks, case.shape, CPU, by="columns", ranked=True)
    values = [v.flatten().tolist() if isinstance(v, torch.Tensor) else v for v in walk.values]
    source = walk.plan.source_of(values, limits_on_host(walk, case.sizes))
    assert isinstance(source, (Dense, Listed))
    rank: Any = source.rank
    batches, heads, lines, _ = case.kinds().shape
    sections = Sections.of(Work(lines, heads, batches), 2, walk.descending)
    order = walk.plan.order_of(values, sections, PLAIN)
    turns: dict[tuple[int, int, int], int] = {}
    for number in range(sections.items):
        item = order.item(number)
        row = source.row(item.batch, item.head, item.q_tile)
        visits = [(True, i, row.partial(i)) for i in range(row.partial_count)]
        visits += [(False, i, row.full(i)) for i in range(row.full_count)]
        for partial, i, tile in visits:
            place = (item.batch, item.head, tile)
            assert rank(row, item.q_tile, partial, i) == turns.get(place, 0)
            turns[place] = turns.get(place, 0) + 1
    assert len(turns) == int((case.kinds() != 0).any(2).sum())


def test_short_lines_come_first_under_a_causal_mask() -> None:
    kinds = torch.where(torch.ones(40, 40).triu(1) > 0, 2, torch.eye(40)).to(torch.int8)[None]
    lists = listed(BlockRuns.from_kinds(kinds), 400, 10)
    turns = best_turns(lists, 40)
    assert turns.descending and torch.equal(turns.ranks, ranks_of(turns.lists, 40, True))
    assert torch.equal(turns.lists.begins, lists.begins)  # of two kinds


def test_in_a_window_visits_are_made_from_one_end_to_the_other() -> None:
    """Tiles that need the mask lie at both ends: lines would wait for those between."""
    line = torch.arange(40)
    ahead = line - line[:, None]
    kinds = torch.where((ahead >= 0) & (ahead <= 9), 2, 0).to(torch.int8)
    kinds[(ahead == 0) | (ahead == 9)] = 1
    turns = best_turns(listed(BlockRuns.from_kinds(kinds[None]), 400, 10), 40)
    (visits,) = visits_of_lines(turns.lists, 40)
    assert all(tiles == sorted(tiles, reverse=not turns.descending) for tiles in visits)
    assert torch.equal(turns.lists.begins[1::2], turns.lists.begins[2::2])


@given(tables())
def test_visits_in_another_order_are_the_same(kinds: torch.Tensor) -> None:
    lists = listed(BlockRuns.from_kinds(kinds), kinds.shape[2] * 10, 10)
    before = visits_of_lines(lists, kinds.shape[1])
    for ascending in (False, True):
        for one_kind in (False, True):
            made = in_order(lists, ascending=ascending, one_kind=one_kind)
            begins, tiles = made.begins.tolist(), made.tiles.tolist()
            for a, b in itertools.pairwise(begins):
                assert tiles[a:b] == sorted(tiles[a:b], reverse=not ascending)
            after = visits_of_lines(made, kinds.shape[1])
            assert [[{*x} for x in c] for c in after] == [[{*x} for x in c] for c in before]
            assert len(tiles) == len(lists.tiles) and (one_kind or begins == lists.begins.tolist())
