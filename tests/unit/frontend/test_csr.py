"""Offsets and ranges are those of lists that are written one after the other."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.csr import offsets_of_lengths, offsets_of_owners, ranges

lengths_of_lists = st.lists(st.integers(0, 4), max_size=6)


def whole(numbers: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


@given(lengths_of_lists)
def test_lists_begin_where_the_ones_before_end(lengths: list[int]) -> None:
    expected = [0, *itertools.accumulate(lengths)]
    owners = [i for i, length in enumerate(lengths) for _ in range(length)]
    assert offsets_of_lengths(whole(lengths)).tolist() == expected
    assert offsets_of_owners(whole(owners), len(lengths)).tolist() == expected
    places = [5 * owner + i % 5 for i, owner in enumerate(owners)]
    places.sort()
    assert offsets_of_owners(whole(places), len(lengths), 5).tolist() == expected


@given(lengths_of_lists, st.integers(1, 4), st.data())
def test_ranges_are_written_one_after_the_other(
    lengths: list[int], step: int, data: st.DataObject
) -> None:
    first = [data.draw(st.integers(-9, 9)) for _ in lengths]
    expected = [
        (i, start + step * place)
        for i, (start, length) in enumerate(zip(first, lengths, strict=True))
        for place in range(length)
    ]
    for dtype in (torch.int32, torch.int64):
        owner, number = ranges(whole(first, dtype), whole(lengths), step)
        assert list(zip(owner.tolist(), number.tolist(), strict=True)) == expected
        assert owner.dtype == number.dtype == torch.int64
