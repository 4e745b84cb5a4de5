"""Runs of keys cover exactly the non-empty blocks, in order, no wider than allowed."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL
from flexfa4.frontend.masks.runs import BlockRun
from flexfa4.primitives.key_runs import (
    KeyRun,
    QueryTile,
    dense_tiles,
    joined_along_diagonal,
    query_tiles,
    runs_of_line,
)


def line_of(kinds: list[int]) -> list[BlockRun]:
    """Return a line of blocks as runs."""
    line = []
    for kind, places in itertools.groupby(range(len(kinds)), key=kinds.__getitem__):
        found = list(places)
        if kind != EMPTY:
            line.append((found[0], found[-1] + 1, kind))
    return line


def test_neighbouring_blocks_become_one_run_that_remembers_its_partial_columns() -> None:
    line = line_of([EMPTY, FULL, PARTIAL, PARTIAL, FULL, EMPTY, PARTIAL])
    assert runs_of_line(line, 16, 110, 512) == (
        KeyRun(16, 80, ((32, 64),)),
        KeyRun(96, 110, ((96, 110),)),
    )


def test_a_run_is_no_wider_than_the_width() -> None:
    assert runs_of_line([(0, 5, FULL)], 16, 80, 32) == (
        KeyRun(0, 32),
        KeyRun(32, 64),
        KeyRun(64, 80),
    )


def test_partial_columns_are_cut_with_the_runs() -> None:
    assert runs_of_line([(0, 1, FULL), (1, 4, PARTIAL)], 16, 60, 32) == (
        KeyRun(0, 32, ((16, 32),)),
        KeyRun(32, 60, ((32, 60),)),
    )
    assert runs_of_line([(0, 2, FULL), (2, 3, PARTIAL)], 16, 48, 32) == (
        KeyRun(0, 32),
        KeyRun(32, 48, ((32, 48),)),
    )


def test_a_row_of_empty_blocks_has_no_runs() -> None:
    assert runs_of_line([], 16, 64, 64) == ()


@given(st.lists(st.sampled_from((EMPTY, PARTIAL, FULL)), max_size=12), st.integers(1, 16),
       st.integers(1, 4))  # fmt: skip
def test_runs_cover_every_visible_key_once_and_mark_the_partial_ones(
    kinds: list[int], last: int, blocks_in_run: int
) -> None:
    length = max(0, (len(kinds) - 1) * 16 + last)
    runs = runs_of_line(line_of(kinds), 16, length, 16 * blocks_in_run)
    covered = [EMPTY] * length
    end = 0
    for run in runs:
        assert end <= run.start < run.stop <= length
        assert run.stop - run.start <= 16 * blocks_in_run
        end = run.stop
        for key in range(run.start, run.stop):
            partial = any(a <= key < b for a, b in run.partial)
            covered[key] = PARTIAL if partial else FULL
    assert covered == [kinds[key // 16] for key in range(length)]


def test_query_tiles_end_at_the_lengths() -> None:
    lines = [line_of([FULL, EMPTY]), line_of([FULL, PARTIAL])]
    assert list(query_tiles(lines, (16, 16), (20, 30), 64)) == [
        QueryTile(0, 16, (KeyRun(0, 16),)),
        QueryTile(16, 20, (KeyRun(0, 30, ((16, 30),)),)),
    ]


def test_dense_tiles_cover_every_pair_without_partial_columns() -> None:
    tiles = list(dense_tiles((20, 30), (16, 16)))
    assert [(t.start, t.stop) for t in tiles] == [(0, 16), (16, 20)]
    assert all(t.runs == (KeyRun(0, 16), KeyRun(16, 30)) for t in tiles)


def banded(start: int, rows: int, keys: int, partial: tuple[tuple[int, int], ...]) -> QueryTile:
    """Return a tile with one run that begins where its queries do; `partial` counts from there."""
    run = KeyRun(start, start + keys, tuple((start + a, start + b) for a, b in partial))
    return QueryTile(start, start + rows, (run,))


def test_tiles_that_move_along_the_diagonal_are_copies_of_the_first() -> None:
    tiles = [banded(i, 16, 40, ((0, 16), (32, 40))) for i in range(32, 112, 16)]
    (joined,) = joined_along_diagonal(tiles, 1 << 20)
    assert joined == replace(tiles[0], copies=5) and (joined.rows, joined.end) == (16, 112)
    assert list(joined_along_diagonal(tiles, 2 * 16 * 40 + 1)) == [
        replace(tiles[0], copies=2),
        replace(tiles[2], copies=2),
        tiles[4],
    ]
    assert list(joined_along_diagonal(tiles, 1)) == tiles
    assert list(joined_along_diagonal([], 1)) == []


def test_tiles_that_differ_in_more_than_their_place_are_not_joined() -> None:
    first = banded(0, 16, 40, ((0, 16),))
    run = first.runs[0]
    for other in (
        banded(16, 8, 40, ((0, 16),)),
        banded(16, 16, 41, ((0, 16),)),
        banded(16, 16, 40, ((0, 15),)),
        banded(16, 16, 40, ()),
        QueryTile(16, 32, (run,)),
        QueryTile(16, 32, ()),
        QueryTile(16, 32, (*banded(16, 16, 40, ((0, 16),)).runs, KeyRun(80, 81))),
    ):
        assert list(joined_along_diagonal([first, other], 1 << 20)) == [first, other]
    empty = [QueryTile(0, 16, ()), QueryTile(16, 32, ())]
    assert list(joined_along_diagonal(empty, 1 << 20)) == empty
