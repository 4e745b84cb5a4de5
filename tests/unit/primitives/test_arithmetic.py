"""Index arithmetic on Python's integers: the model of what kernels compute."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flexfa4.primitives.arithmetic import PLAIN

ROWS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=9)


@given(ROWS)
def test_extremes_of_what_is_seen_leave_out_rows_that_see_nothing(
    rows: list[tuple[int, int]],
) -> None:
    found = PLAIN.extremes(rows.__getitem__, len(rows))
    seen = {key for begin, end in rows for key in range(begin, end)}
    if seen:
        assert (found.first, found.stop) == (min(seen), max(seen) + 1)
    else:
        assert found.first >= found.stop


@given(ROWS)
def test_what_lies_between_the_inner_extremes_is_seen_by_every_row(
    rows: list[tuple[int, int]],
) -> None:
    found = PLAIN.extremes(rows.__getitem__, len(rows))
    every = set.intersection(*(set(range(begin, end)) for begin, end in rows))
    assert set(range(found.last_begin, found.first_stop)) == every


def test_what_is_clamped_may_need_more_than_32_bits() -> None:
    assert [PLAIN.clamped(v, 0, 100) for v in (-(1 << 62), -1, 0, 7, 100, 1 << 62)] == [
        0, 0, 0, 7, 100, 100,
    ]  # fmt: skip
