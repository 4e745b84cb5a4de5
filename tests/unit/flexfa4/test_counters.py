"""Counters: snapshots that do not move, and their differences."""

from __future__ import annotations

import dataclasses

import pytest

import flexfa4
from flexfa4.counters import Stats, count, stats


def test_a_snapshot_stays_as_it_was_and_a_difference_says_what_happened_since() -> None:
    before = stats()
    count("plans")
    count("plans")
    count("traces")
    assert stats() - before == Stats(traces=1, plans=2)
    assert before - before == Stats()


def test_a_snapshot_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats().calls = 0


def test_a_counter_that_does_not_exist_cannot_be_counted() -> None:
    with pytest.raises(KeyError):
        count("call")  # type: ignore[arg-type]


def test_the_public_function_is_this_one() -> None:
    assert flexfa4.stats is stats and flexfa4.Stats is Stats
