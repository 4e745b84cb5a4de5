"""The simulator of launches, and what it says of orders of work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.primitives.arithmetic import PLAIN
from flexfa4.primitives.makespan import makespan
from flexfa4.primitives.scheduler import Order, Sections, Work, pairs_at_end

AMOUNTS = st.lists(st.integers(0, 50), max_size=60)


@given(AMOUNTS, st.integers(1, 9))
def test_no_time_is_less_than_the_work_and_the_longest_item_ask_for(
    amounts: list[int], workers: int
) -> None:
    least = max(sum(amounts) / workers, max(amounts, default=0))
    found = makespan(amounts, workers)
    assert least <= found <= sum(amounts)
    assert makespan(amounts, workers, start=2.0) >= found


@given(AMOUNTS, st.integers(1, 9))
def test_the_longest_first_is_within_a_third_of_the_best(amounts: list[int], workers: int) -> None:
    # Graham, "Bounds on multiprocessing timing anomalies", 1969: 4/3 - 1/(3 workers) of the optimum
    least = max(sum(amounts) / workers, max(amounts, default=0))
    found = makespan(sorted(amounts, reverse=True), workers)
    longest = max(amounts, default=0)
    assert found <= least + longest * (1 - 1 / workers)
    if len(amounts) <= workers:
        assert found == longest


def test_items_go_to_whoever_is_free_first() -> None:
    assert makespan([4, 1, 1, 1], 2) == 4


def triangle(order: Order, tile_cost: float = 1.0) -> list[float]:
    """Return the work of each item where tile t visits t + 1 tiles."""
    return [(order.item(n).q_tile + 1) * tile_cost for n in range(order.sections.items)]


def test_the_most_work_first_beats_the_order_of_positions_on_a_triangle() -> None:
    work, workers = Work(64, 16, 4), 132
    natural, sorted_ = (
        makespan(triangle(Order(PLAIN, Sections.of(work, 8, descending))), workers)
        for descending in (False, True)
    )
    least = sum(triangle(Order(PLAIN, Sections.of(work, 8)))) / workers
    assert natural > 1.025 * least and sorted_ < 1.005 * least


@pytest.mark.parametrize(
    ("tiles", "heads", "pairs", "before"),
    [(64, 16, 1, 0.1), (64, 16, 3, 0.1), (64, 64, 3, 0.03), (16, 256, 3, 0.025)],
)
def test_a_last_section_that_is_large_enough_leaves_nobody_without_work(
    tiles: int, heads: int, pairs: int, before: float
) -> None:
    work, blocks = Work(tiles, heads, 1), 132

    def waste(at_end: int) -> float:
        amounts = triangle(Order(PLAIN, Sections.of(work, pairs, True, at_end)))
        return makespan(amounts, blocks) * blocks / sum(amounts) - 1

    assert waste(1) > before
    assert waste(pairs_at_end(tiles, blocks, pairs)) < 0.02
