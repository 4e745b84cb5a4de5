"""How tiles of scores lie in registers: as PTX says of accumulators."""

from __future__ import annotations

import pytest

from flexfa4.kernels.backward.fragment import Fragment

HOPPER = Fragment(columns=32, rows=2, sharing=4, run=2)  # of 64 by 128
BLACKWELL = Fragment(columns=64, rows=1, sharing=1, run=4)  # of 128 by 64
TILES = [pytest.param(HOPPER, 64, 128, id="sm90"), pytest.param(BLACKWELL, 128, 64, id="sm100")]


@pytest.mark.parametrize(("fragment", "rows", "columns"), TILES)
def test_the_threads_of_a_warpgroup_have_each_score_once(
    fragment: Fragment, rows: int, columns: int
) -> None:
    found = [
        (
            fragment.first_row(0, thread) + fragment.row_step * row,
            fragment.first_column(thread) + offset,
        )
        for thread in range(128)
        for row in range(fragment.rows)
        for offset in fragment.offsets
    ]
    assert sorted(found) == [(row, column) for row in range(rows) for column in range(columns)]


@pytest.mark.parametrize(("fragment", "rows", "columns"), TILES)
def test_elements_in_the_order_of_registers_are_all_rows_and_columns(
    fragment: Fragment, rows: int, columns: int
) -> None:
    count = fragment.rows * fragment.columns
    elements = [fragment.element(index) for index in range(count)]
    assert len(set(elements)) == count == rows * columns // 128
    assert max(elements) == (fragment.rows - 1, fragment.columns - 1)


def test_accumulators_of_wgmma_alternate_between_rows_by_pairs_of_columns() -> None:
    """PTX ISA, "Register fragments and shared memory layouts" of wgmma."""
    assert [HOPPER.element(i) for i in range(6)] == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3)]
    assert HOPPER.offsets[:6] == (0, 1, 8, 9, 16, 17) and HOPPER.row_step == 8
    assert HOPPER.multiple == 2 and HOPPER.warp_rows == 16


def test_a_thread_of_blackwell_has_columns_side_by_side() -> None:
    assert BLACKWELL.offsets == tuple(range(64)) and BLACKWELL.multiple == 64
    assert BLACKWELL.warp_rows == 32
