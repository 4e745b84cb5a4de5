"""Lines that take turns: how long they take, and which order lets them wait least."""

from __future__ import annotations

import pytest

from flexfa4.primitives.makespan import makespan
from flexfa4.primitives.turn_order import ordered_makespan

LINES = 32


def causal() -> list[list[int]]:
    """Tiles of queries that tiles of keys visit: the one on the diagonal, then the last ones."""
    return [[line, *range(LINES - 1, line, -1)] for line in range(LINES)]


def test_a_line_alone_takes_a_unit_for_each_visit() -> None:
    assert ordered_makespan([[3, 1, 2]], 1, latency=5.0) == 3
    assert ordered_makespan([[3, 1, 2], [0]], 1, latency=5.0, start=2.0) == 8


def test_two_lines_that_visit_one_tile_at_once_add_one_after_the_other() -> None:
    assert ordered_makespan([[0], [0], [0]], 3, latency=0.5) == 2.0
    assert ordered_makespan([[0], [1], [2]], 3, latency=0.5) == 1.0


def test_a_line_that_is_late_holds_up_those_behind_it() -> None:
    late, early = [1, 2, 0], [0, 3]
    assert ordered_makespan([late, early], 2, latency=0.0) == 4
    assert ordered_makespan([early, late], 2, latency=0.0) == 3


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_without_a_shared_tile_it_is_the_makespan(workers: int) -> None:
    lengths, first = (5, 1, 4, 4, 2, 7), 0
    lines = []
    for length in lengths:
        lines.append(range(first, first + length))
        first += length
    assert ordered_makespan(lines, workers, start=0.5) == makespan(lengths, workers, start=0.5)


@pytest.mark.parametrize("workers", [4, 8, 16])
def test_under_a_causal_mask_the_short_lines_come_first(workers: int) -> None:
    shares = [
        makespan(map(len, lines), workers) / ordered_makespan(lines, workers)
        for lines in (causal(), causal()[::-1])
    ]
    assert shares[0] < 0.5 < 0.8 < shares[1] <= 1


def test_a_line_that_is_ahead_of_its_turns_works_while_it_waits() -> None:
    """The second line waits at 5 for the first one's last visit, and has its other tiles done."""
    lines = [[0, 1, 2, 3, 4, 5], [5, 6, 7]]
    for ahead, expected in ((0, 8), (1, 7), (2, 6), (3, 6)):
        assert ordered_makespan(lines, 2, latency=0.0, ahead=ahead) == expected


def test_a_rectangle_costs_its_latency_once_for_each_worker() -> None:
    lines = [list(range(LINES - 1, -1, -1)) for _ in range(LINES)]
    assert ordered_makespan(lines, LINES, latency=0.25) == LINES + 0.25 * (LINES - 1)
