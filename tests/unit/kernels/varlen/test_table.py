"""What the host knows of a table of work items."""

from __future__ import annotations

import random

from flexfa4.kernels.varlen.table import ENTRY, HEADER, MOST_GROUPS, Sizes, groups_of


def test_every_way_of_dividing_the_queries_has_a_number_of_tiles_within_the_bounds() -> None:
    rng = random.Random(0)
    for _ in range(300):
        lengths = [rng.choice([0, 1, rng.randrange(300), 64]) for _ in range(rng.randrange(1, 9))]
        if not sum(lengths):
            continue
        tile = rng.choice([16, 64, 100])
        tiles = sum(-(-length // tile) for length in lengths)
        sizes = Sizes(len(lengths), sum(lengths), 7, tile)
        assert sizes.least <= tiles <= sizes.most


def test_the_bounds_are_met() -> None:
    assert Sizes(1, 128, 1, 64).least == 2  # by one sequence of 128
    assert Sizes(3, 131, 1, 64).most == 5  # by 129, 1 and 1
    assert Sizes(9, 2, 1, 64).most == 2  # by two of 1 and seven of none


def test_a_table_has_room_for_its_entries_and_what_its_kernel_needs() -> None:
    sizes = Sizes(3, 131, 50, 64)
    assert sizes.numbers == HEADER + ENTRY * sizes.most + 4 + 3


def test_groups_are_a_power_of_two_and_fit_the_cache_as_long_as_they_may() -> None:
    assert [groups_of(n, 100) for n in (1, 100, 101, 200, 201, 400, 401)] == [1, 1, 2, 2, 4, 4, 8]
    assert groups_of(1 << 30, 1) == groups_of(1 << 30, 0) == MOST_GROUPS
