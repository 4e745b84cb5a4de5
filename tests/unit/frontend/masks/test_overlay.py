"""Overlaid stretches add up block by block."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.masks.overlay import Stretches, overlay

WIDTH = 6
STRETCH = st.tuples(
    st.integers(0, 2), st.integers(0, WIDTH), st.integers(0, WIDTH), st.integers(-2, 3)
)


def stretches(rows: list[tuple[int, ...]]) -> Stretches:
    return Stretches(*torch.tensor(rows, dtype=torch.int64).reshape(-1, 4).unbind(1))


def sums(found: Stretches) -> list[list[int]]:
    """Return the sum of weights of every block of three lines."""
    table = [[0] * WIDTH for _ in range(3)]
    columns = (found.line, found.start, found.stop, found.weight)
    for line, start, stop, weight in zip(*(c.tolist() for c in columns), strict=True):
        for block in range(start, stop):
            table[line][block] += weight
    return table


@given(st.lists(STRETCH, max_size=12))
def test_sums_are_those_of_each_block_in_sorted_disjoint_stretches(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    given_ = stretches([(n, min(a, b), max(a, b), w) for n, a, b, w in drawn])
    found = overlay(given_, WIDTH)
    assert sums(found) == sums(given_)
    assert (found.start < found.stop).all() and (found.weight != 0).all()
    places = (found.line * WIDTH + found.start).tolist()
    assert places == sorted(places)
    assert all(
        stop <= start or line != following
        for stop, start, line, following in zip(
            found.stop[:-1], found.start[1:], found.line[:-1], found.line[1:], strict=True
        )
    )


def test_a_stretch_to_the_end_of_a_line_does_not_run_into_the_next() -> None:
    found = overlay(stretches([(0, 4, WIDTH, 1), (1, 0, 2, 1)]), WIDTH)
    assert (found.line.tolist(), found.start.tolist(), found.stop.tolist()) == (
        [0, 1], [4, 0], [6, 2],
    )  # fmt: skip


def test_concatenated_stretches_follow_each_other() -> None:
    none, one = Stretches.none(torch.device("cpu")), stretches([(1, 2, 3, 4)])
    both = Stretches.concatenated((none, one, one))
    assert both.weight.tolist() == [4, 4] and both.line.dtype == torch.int64
