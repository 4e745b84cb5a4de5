"""The order of work: every item once, section by section, the most work first in each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.primitives.arithmetic import PLAIN
from flexfa4.primitives.fast_division import MOST
from flexfa4.primitives.scheduler import (
    NUMBERS,
    Item,
    Order,
    OrderTable,
    Sections,
    Work,
    pairs_at_end,
    pairs_in_cache,
    section_numbers,
)
from flexfa4.primitives.tile_walk import ClassTable

WORK = st.builds(Work, st.integers(1, 9), st.integers(1, 7), st.integers(1, 4))


def items_of(order: Order) -> list[Item]:
    return [order.item(number) for number in range(order.sections.items)]


@given(WORK, st.integers(1, 40), st.booleans(), st.integers(1, 40))
def test_every_item_comes_once_and_sections_one_after_the_other(
    work: Work, pairs: int, descending: bool, at_end: int
) -> None:
    items = items_of(Order(PLAIN, Sections.of(work, pairs, descending, at_end)))
    assert len(set(items)) == len(items) == work.items
    ranges = zip(Item(*[0] * 3), (work.tiles, work.heads, work.batch), strict=True)
    for axis, (low, high) in enumerate(ranges):
        assert {item[axis] for item in items} == set(range(low, high))
    last = max(0, work.heads * work.batch - at_end) // min(pairs, work.heads * work.batch)
    section = [min(last, (i.batch * work.heads + i.head) // pairs) for i in items]
    assert section == sorted(section)


@given(WORK, st.integers(1, 40), st.booleans(), st.integers(1, 40))
def test_in_a_section_tiles_come_in_order_and_the_heads_of_each_side_by_side(
    work: Work, pairs: int, descending: bool, at_end: int
) -> None:
    items = items_of(Order(PLAIN, Sections.of(work, pairs, descending, at_end)))
    every = work.heads * work.batch
    left = every
    while left > 0:
        first, taken = every - left, pairs if left - pairs >= at_end else left
        left -= taken
        here = range(first, first + taken)
        part = items[first * work.tiles : here.stop * work.tiles]
        tiles = range(work.tiles)[::-1] if descending else range(work.tiles)
        expected = [(tile, pair) for tile in tiles for pair in here]
        assert [(i.q_tile, i.batch * work.heads + i.head) for i in part] == expected


def test_a_table_gives_each_class_an_order_of_its_own() -> None:
    work = Work(3, 2, 2)
    classes = ClassTable([0, 1, 1, 0], 2, 1)
    table = OrderTable([2, 0, 1, 1, 2, 0], 3, classes)
    items = items_of(Order(PLAIN, Sections.of(work, 4), table))
    for batch in range(2):
        for head in range(2):
            tiles = [i.q_tile for i in items if (i.batch, i.head) == (batch, head)]
            assert tiles == ([2, 0, 1] if batch == head else [1, 2, 0])


@given(st.data())
def test_numbers_of_items_may_take_31_bits(data: st.DataObject) -> None:
    heads, batch = data.draw(st.integers(1, 128)), data.draw(st.integers(1, 1 << 12))
    tiles = data.draw(st.integers(1, MOST // (heads * batch)))
    work, pairs = Work(tiles, heads, batch), data.draw(st.integers(1, 1 << 20))
    order = Order(PLAIN, Sections.of(work, pairs, descending=True))
    number = data.draw(st.integers(0, work.items - 1))
    pairs = min(pairs, heads * batch)
    section, rest = divmod(number, pairs * tiles)
    own = min(pairs, heads * batch - section * pairs)
    place, pair = divmod(rest, own)
    pair += section * pairs
    assert order.item(number) == (tiles - 1 - place, pair % heads, pair // heads)


@given(WORK, st.integers(1, 40), st.booleans(), st.data())
def test_a_kernel_gets_the_sections_as_integers_of_32_bits(
    work: Work, pairs: int, descending: bool, data: st.DataObject
) -> None:
    sections = Sections.of(work, pairs, descending)
    numbers = sections.numbers()
    assert section_numbers(work, pairs, descending) == tuple(numbers)
    assert len(numbers) == len(NUMBERS) == len(set(NUMBERS))
    assert all(-(1 << 31) <= number < 1 << 31 for number in numbers)
    number = data.draw(st.integers(0, work.items - 1))
    again = Order(PLAIN, Sections.from_numbers(numbers))
    assert again.item(number) == Order(PLAIN, sections).item(number)


def test_the_last_section_has_tiles_for_all_blocks_twice() -> None:
    assert pairs_at_end(64, 132, pairs=1) == 5
    assert pairs_at_end(64, 132, pairs=8) == 8
    assert pairs_at_end(0, 1, pairs=1) == 2


def test_sections_are_as_large_as_the_cache_and_hold_whole_groups() -> None:
    assert pairs_in_cache(1000, 10, 20) == 5
    assert pairs_in_cache(1000, 10, 20, heads_per_kv_head=3) == 15
    assert pairs_in_cache(1000, 1 << 20, 20, heads_per_kv_head=3) == 3  # one that does not fit
    assert pairs_in_cache(1000, 0, 20) >= 1


@pytest.mark.parametrize("work", [Work(0, 1, 1), Work(1 << 16, 1 << 15, 1)])
def test_no_items_or_too_many_are_a_bug_of_the_caller(work: Work) -> None:
    with pytest.raises(AssertionError):
        Sections.of(work, 1)
