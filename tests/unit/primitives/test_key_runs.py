"""Runs of keys cover exactly the non-empty blocks, in order, no wider than allowed."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL
from flexfa4.frontend.masks.runs import BlockRun
from flexfa4.primitives.key_runs import (
    KeyRun,
    QueryTile,
    dense_tiles,
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
