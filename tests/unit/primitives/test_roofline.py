"""Times of work that several resources share: between the slowest one's and their sum."""

from __future__ import annotations

import math
from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from flexfa4.primitives.roofline import EXECUTED, NAMES, Work, bounds_of, overlapped

AMOUNTS = st.lists(st.floats(0, 1e6), min_size=8, max_size=8)
RATES = Work(4096, 16, 128, 64, 128, 32, 128, 38)


def test_every_resource_has_a_name() -> None:
    assert set(NAMES) == {f.name for f in fields(Work)} >= set(EXECUTED)


@given(AMOUNTS, st.floats(1, 20))
def test_time_is_between_perfect_overlap_and_none(amounts: list[float], overlap: float) -> None:
    cycles = Work(*amounts).over(RATES)
    found = overlapped(cycles, overlap)
    executed = sum(cycles[name] for name in EXECUTED)
    least = max(cycles.values())
    assert least <= found <= max(executed, least) * (1 + 1e-9)
    assert overlapped(cycles, math.inf) == least
    assert found <= overlapped(cycles, 1.0) * (1 + 1e-9)


def test_copies_that_run_on_their_own_only_bound_the_time() -> None:
    cycles = Work(tensor=4096 * 100, l2=38 * 90).over(RATES)
    assert overlapped(cycles, 1.0) == 100
    cycles = Work(tensor=4096 * 100, mufu=16 * 99).over(RATES)
    assert overlapped(cycles, 1.0) == 199 and bounds_of(cycles) == ["tensor", "mufu"]
    cycles = Work(tensor=4096 * 100, shared=128 * 300).over(RATES)
    assert overlapped(cycles, 1.0) == 300 and bounds_of(cycles) == ["shared"]


def test_nothing_takes_no_time() -> None:
    assert overlapped(Work().over(RATES), 2.0) == 0
