"""Options of launches."""

from __future__ import annotations

from typing import Any

import pytest

from flexfa4.emulator.failures.options import OptionError
from flexfa4.emulator.options import CHECKS, SCHEDULES, Options


def test_everything_is_checked_unless_said_otherwise() -> None:
    assert Options.of().check == frozenset(CHECKS)
    assert Options.of(check=()).check == frozenset()
    assert Options.of(check="races").check == {"races"}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_are_known_by_their_names(schedule: str) -> None:
    assert Options.of(schedule).schedule == schedule


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"schedule": "fast"}, "one of eager, late, random, priority"),
        ({"seed": -1}, r"a whole number from 0"),
        ({"seed": 1.5}, r"a whole number from 0"),
        ({"check": ["raceS"]}, "some of races, uninitialised"),
        ({"check": None}, "some of races, uninitialised"),
        ({"check": 3}, "some of races, uninitialised"),
        ({"workers": 0}, "a whole number from 1 to 1024"),
        ({"workers": True}, "a whole number from 1 to 1024"),
        ({"sms": 0}, "or None"),
        ({"max_instructions": 0}, "a whole number from 1, or None"),
        ({"max_instructions": 1e6}, "a whole number from 1, or None"),
    ],
)
def test_other_values_are_errors_that_say_what_is_allowed(
    given: dict[str, Any], allowed: str
) -> None:
    with pytest.raises(OptionError, match=allowed):
        Options.of(**given)
