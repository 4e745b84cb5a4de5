"""Boxes end where a sequence does: the arithmetic of tensor copies, on numbers."""

from __future__ import annotations

import itertools

import pytest

from flexfa4.primitives.arithmetic import PLAIN
from flexfa4.primitives.ragged import coordinates, sizes_and_strides

TOKENS, STEP = 23, 32  # positions of all sequences, and bytes from one to the next


def copied(box: int, begin: int, length: int, first: int) -> list[int | None]:
    """Return which token each position of a box is copied from or to; None for none."""
    sizes, strides, back = sizes_and_strides((8, TOKENS, 1), (STEP, 999), 1, box)
    position, end = coordinates(begin, length, first, box, PLAIN)
    assert end < sizes[2]
    found: list[int | None] = []
    for i in range(position, position + box):
        address = i * strides[0] + end * strides[1] - back
        found.append(address // STEP if i < sizes[1] else None)
    return found


@pytest.mark.parametrize("box", [1, 4, 16, 40])
def test_a_box_holds_the_tokens_of_its_sequence_and_no_others(box: int) -> None:
    for begin, length in itertools.product(range(TOKENS), range(TOKENS)):
        if begin + length > TOKENS:
            continue
        for first in range(0, length + 1, 3):
            there = range(begin + first, min(begin + first + box, begin + length))
            assert copied(box, begin, length, first) == [*there, *[None] * (box - len(there))]


@pytest.mark.parametrize("first", [5, 8, 400])
def test_a_box_behind_the_end_of_its_sequence_is_empty(first: int) -> None:
    sizes, _, _ = sizes_and_strides((8, TOKENS, 1), (STEP, 999), 1, 4)
    position, _ = coordinates(3, 5, first, 4, PLAIN)
    assert position == sizes[1]


def test_other_axes_stay_what_they_are() -> None:
    sizes, strides, back = sizes_and_strides((64, 2, TOKENS, 4, 1), (128, 1024, 256, 7), 2, 16)
    assert sizes == (64, 2, 16, 4, TOKENS + 1)
    assert strides == (128, 1024, 256, 1024)
    assert back == 16 * 1024


def test_the_stride_of_a_single_token_does_not_matter() -> None:
    """Of one element torch gives any stride, of which tensor maps take few."""
    sizes, strides, back = sizes_and_strides((64, 1, 4, 1), (3, 128, 5), 1, 16)
    assert sizes == (64, 16, 4, 2)
    assert strides[0] == strides[2] and strides[0] % 16 == 0
    assert back == 16 * strides[0]
