"""Tiles that are visited: what rows see, once each, the full ones told from the partial ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL
from flexfa4.primitives.arithmetic import PLAIN
from flexfa4.primitives.tile_walk import (
    ClassTable,
    Closed,
    Dense,
    Lengths,
    Listed,
    RowLimits,
    Sampling,
    TileShape,
    Visits,
)
from tests.brute_force import kinds_of

LENGTHS = st.tuples(st.integers(1, 90), st.integers(0, 90))
SHAPES = st.builds(
    TileShape,
    st.sampled_from((1, 5, 16, 48)),
    st.sampled_from((8, 11, 32)),
    st.sampled_from((1, 3)),
)


def kinds_visited(row: Visits, tiles: int) -> list[int]:
    """Return the kind as which each tile is visited; checks that it is once, from last to first."""
    kinds = [EMPTY] * tiles
    for kind, count, at in (
        (PARTIAL, row.partial_count, row.partial),
        (FULL, row.full_count, row.full),
    ):
        found = [at(i) for i in range(count)]
        assert found == sorted(found, reverse=True)
        for tile in found:
            assert kinds[tile] == EMPTY
            kinds[tile] = kind
    return kinds


def seen(ends: list[tuple[int, int]], keys: int) -> torch.Tensor:
    """Return which keys each query sees."""
    at = torch.arange(keys)
    return torch.stack([(at >= begin) & (at < end) for begin, end in ends])


def with_partial_end(kinds: torch.Tensor, keys: int, tile: int) -> torch.Tensor:
    """Return the kinds where a last tile that is cut short needs the mask."""
    if keys % tile:
        kinds[..., -1] = kinds[..., -1].clamp(max=PARTIAL)
    return kinds


@given(LENGTHS, SHAPES)
def test_without_a_mask_every_tile_is_full_but_one_that_is_cut_short(
    lengths: tuple[int, int], shape: TileShape
) -> None:
    row = Dense(shape, RowLimits(PLAIN, Lengths(*lengths))).row(0, 0, 0)
    tiles = -(-lengths[1] // shape.keys)
    expected = [FULL] * (lengths[1] // shape.keys) + [PARTIAL] * (lengths[1] % shape.keys > 0)
    assert kinds_visited(row, tiles) == expected
    if tiles:
        assert row.first == tiles - 1


@st.composite
def intervals(draw: st.DrawFn, monotone: bool) -> tuple[list[tuple[int, int]], int]:
    """Draw the ends of some queries' intervals, and a number of keys."""
    count, keys = draw(st.integers(1, 90)), draw(st.integers(0, 90))
    ends = st.lists(st.integers(-9, 99), min_size=count, max_size=count)
    begins, stops = draw(ends), draw(ends)
    if monotone:
        begins.sort(reverse=draw(st.booleans()))
        stops.sort(reverse=draw(st.booleans()))
    return list(zip(begins, stops, strict=True)), keys


def closed(ends: list[tuple[int, int]], keys: int, shape: TileShape, sampling: Sampling) -> Closed:
    """Return the source for queries of given ends; batch 2 and head 5 have these, no other has."""

    def of_row(batch: int, head: int, query: int) -> tuple[int, int]:
        assert batch == 2 and head == 5 * shape.group
        return ends[query]

    return Closed(shape, RowLimits(PLAIN, Lengths(len(ends), keys), of_row), sampling)


@pytest.mark.parametrize("sampling", ["edges", "all"])
@given(data=st.data(), shape=SHAPES)
def test_of_any_intervals_no_tile_is_missed_and_the_full_ones_are_full(
    sampling: Sampling, data: st.DataObject, shape: TileShape
) -> None:
    ends, keys = data.draw(intervals(monotone=sampling == "edges"))
    source = closed(ends, keys, shape, sampling)
    kinds = kinds_of(seen(ends, keys), (shape.queries, shape.keys))
    for q_tile, expected in enumerate(with_partial_end(kinds, keys, shape.keys).tolist()):
        row = source.row(2, 5, q_tile)
        visited = kinds_visited(row, len(expected))
        assert [kind == FULL for kind in visited] == [kind == FULL for kind in expected]
        assert all(v != EMPTY for v, e in zip(visited, expected, strict=True) if e != EMPTY)
        if sampling == "all":  # visits are the tiles between those that are seen
            some = [tile for tile, kind in enumerate(expected) if kind != EMPTY]
            between = range(some[0], some[-1] + 1) if some else range(0)
            assert [tile for tile, kind in enumerate(visited) if kind != EMPTY] == list(between)
        if row.partial_count + row.full_count:
            assert row.first == (row.partial(0) if row.partial_count else row.full(0))


@given(data=st.data(), shape=SHAPES)
def test_neighbouring_tiles_of_queries_are_walked_together(
    data: st.DataObject, shape: TileShape
) -> None:
    ends, keys = data.draw(intervals(False))
    tiles, lines = -(-keys // shape.keys), -(-len(ends) // shape.queries)
    source = closed(ends, keys, shape, "all")
    for first in range(0, lines, 2):
        rows = [source.row(2, 5, first + half) for half in range(2)]
        one, other = (kinds_visited(row, tiles) for row in rows)
        both = kinds_visited(rows[0].joined(rows[1]), tiles)
        for tile, kind in enumerate(both):
            own = {one[tile], other[tile]}
            # tiles between those of the two are visited, too, and are nobody's
            assert (kind == FULL) == (own == {FULL})
            assert kind != EMPTY or own == {EMPTY}


@given(st.integers(-99, 99), st.integers(-99, 99), st.integers(0, 50), st.integers(0, 20))
def test_limits_of_a_row_lie_within_the_keys_that_there_are(
    begin: int, end: int, keys: int, query: int
) -> None:
    asked: list[Any] = []

    def ends(*row: int) -> tuple[int, int]:
        asked.append(row)
        return begin, end

    low, high = RowLimits(PLAIN, Lengths(9, keys), ends)(1, 2, query)
    assert list(range(low, high)) == [k for k in range(keys) if begin <= k < end]
    assert asked == [(1, 2, min(query, 8))]


def test_limits_without_ends_are_all_keys() -> None:
    assert RowLimits(PLAIN, Lengths(9, 70))(0, 0, 3) == (0, 70)


def test_lists_are_found_by_class_and_line_and_read_in_order() -> None:
    # class 0: line 0 has partial 4, 2 and full 1; line 1 nothing.  class 1: full 3; partial 0
    begins, tiles = [0, 2, 3, 3, 3, 3, 4, 5, 5], [4, 2, 1, 3, 0]
    table = ClassTable([0, 1, 1, 0], 2, 1)
    source = Listed(PLAIN, begins, tiles, 2, table)
    kinds = {
        (batch, head, line): kinds_visited(source.row(batch, head, line), 5)
        for batch in range(2)
        for head in range(2)
        for line in range(2)
    }
    nothing = [EMPTY] * 5
    of_class = (
        ([EMPTY, FULL, PARTIAL, EMPTY, PARTIAL], nothing),
        ([EMPTY, EMPTY, EMPTY, FULL, EMPTY], [PARTIAL] + [EMPTY] * 4),
    )
    for (batch, head, line), found in kinds.items():
        assert found == of_class[table.classes[2 * batch + head]][line]
    assert source.row(0, 0, 0).first == 4 and source.row(0, 1, 0).first == 3


def test_one_class_needs_no_table() -> None:
    assert Listed(PLAIN, [0, 1, 1], [6], 1, ClassTable(None)).row(7, 7, 0).first == 6
