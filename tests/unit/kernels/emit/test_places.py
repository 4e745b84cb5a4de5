"""Which columns of a thread are read together."""

from __future__ import annotations

import pytest

from flexfa4.kernels.emit.places import Columns

PAIRS = Columns((0, 1, 8, 9, 16, 17), multiple=2)
ROW = Columns(tuple(range(32)), multiple=32)


@pytest.mark.parametrize(
    ("columns", "offset", "count", "distance", "group"),
    [
        (PAIRS, 0, 2, 0, [0, 1]),
        (PAIRS, 9, 2, 0, [8, 9]),
        (PAIRS, 8, 4, 0, None),
        (PAIRS, 8, 2, 1, None),
        (PAIRS, 8, 2, 4, [8, 9]),
        (ROW, 13, 4, 0, [12, 13, 14, 15]),
        (ROW, 13, 4, 3, [13, 14, 15, 16]),
        (ROW, 0, 4, 3, None),
    ],
)
def test_columns_that_follow_each_other_are_read_together_where_they_are_aligned(
    columns: Columns, offset: int, count: int, distance: int, group: list[int] | None
) -> None:
    assert columns.aligned_group(offset, count, distance) == group
