"""Overlaid stretches add up block by block."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.masks.overlay import Steps, Stretches, overlay, pitch_of

WIDTH, LINES = 6, 3
STRETCH = st.tuples(
    st.integers(0, LINES - 1), st.integers(0, WIDTH), st.integers(0, WIDTH), st.integers(-2, 3)
)


def stretches(rows: list[tuple[int, int, int, int]]) -> Stretches:
    """Return stretches (line, start, stop, weight)."""
    line, start, stop, weight = torch.tensor(rows, dtype=torch.int64).reshape(-1, 4).unbind(1)
    return Stretches(line, torch.stack((start, stop)), weight)


def table(steps: Steps) -> list[list[int]]:
    """Return the number at every place of the lines, ends included."""
    flat = [0] * (LINES * pitch_of(WIDTH))
    for place, value in zip(steps.place.tolist(), steps.value.tolist(), strict=True):
        flat[place:] = [value] * (len(flat) - place)
    return [flat[line * pitch_of(WIDTH) :][: pitch_of(WIDTH)] for line in range(LINES)]


@given(st.lists(STRETCH, max_size=12))
def test_sums_are_those_of_each_block_and_0_at_the_end_of_lines(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    ordered = [(line, min(a, b), max(a, b), weight) for line, a, b, weight in drawn]
    sums = [[0] * (WIDTH + 1) for _ in range(LINES)]
    for line, start, stop, weight in ordered:
        for block in range(start, stop):
            sums[line][block] += weight
    found = overlay(stretches(ordered), WIDTH)
    assert found.place.tolist() == sorted(found.place.tolist())
    assert table(found) == sums


def test_a_stretch_to_the_end_of_a_line_does_not_run_into_the_next() -> None:
    found = overlay(stretches([(0, 4, WIDTH, 1), (1, 0, 2, 1)]), WIDTH)
    assert found.place.tolist() == [4, 6, 7, 9]
    assert found.value.tolist() == [1, 0, 1, 0]


def test_lines_and_weights_are_those_of_all_stretches_that_they_broadcast_to() -> None:
    line, weight = torch.tensor([0, 2]), torch.tensor([[10], [1]])
    ends = torch.tensor([[[0, 1], [2, 0]], [[4, 5], [6, 3]]], dtype=torch.int32)
    found = overlay(Stretches(line, ends, weight), WIDTH)
    assert table(found) == [[10, 10, 11, 11, 1, 1, 0], [0] * 7, [1, 11, 11, 10, 10, 0, 0]]


def test_sums_have_the_dtype_of_the_weights() -> None:
    one = Stretches(torch.tensor([1]), torch.tensor([[2], [3]]), torch.tensor([4]).to(torch.int8))
    found = overlay(one, WIDTH)
    assert found.value.dtype is torch.int8 and found.place.dtype is torch.int64
    assert table(found)[1] == [0, 0, 4, 0, 0, 0, 0]


def test_settled_steps_at_one_place_have_the_number_of_the_last() -> None:
    steps = Steps(torch.tensor([2, 2, 4, 7, 7, 7]), torch.tensor([5, 1, 0, 3, 0, 2]))
    settled = steps.settled()
    assert settled.place.tolist() == [2, 2, 4, 7, 7, 7]
    assert settled.value.tolist() == [1, 1, 0, 2, 2, 2]


def test_steps_of_later_lines_follow_those_of_earlier_ones() -> None:
    none = Steps.none(torch.device("cpu"))
    one = Steps(torch.tensor([1, 3]), torch.tensor([2, 0]).to(torch.int8))
    two = Steps(torch.tensor([8, 9]), torch.tensor([1, 0]).to(torch.int8))
    both = Steps.concatenated((none, one, two))
    assert both.place.tolist() == [1, 3, 8, 9] and both.value.tolist() == [2, 0, 1, 0]
    assert both.place.dtype is torch.int64 and both.value.dtype is torch.int8
    assert Steps.concatenated((one,)) is one
