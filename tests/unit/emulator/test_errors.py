"""The root of the emulator's errors, and how a place in PTX is shown."""

from __future__ import annotations

import pytest

from flexfa4.emulator import EmulationError
from flexfa4.emulator.errors import SHOWN, Place


class OverflowError_(EmulationError):
    found = "{count} threads"
    allowed = "at most {limit}"


def test_a_message_answers_the_questions_that_its_class_has() -> None:
    error = OverflowError_(where=Place(3, "\tret;", 1, 3), count=5, limit=4)
    assert str(error).splitlines() == [
        "5 threads",
        "  where:   PTX line 3",
        "      ret;",
        "      ^^^",
        "  allowed: at most 4",
    ]
    assert error.fields == {"count": 5, "limit": 4}


@pytest.mark.parametrize("place", [Place(3), Place(3, "   ")])
def test_a_place_without_text_is_its_line(place: Place) -> None:
    assert str(place) == "PTX line 3"


@pytest.mark.parametrize("column", [0, 10, 63, 65, 200, 390])
def test_what_is_pointed_at_is_inside_the_window(column: int) -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(400))
    quoted, carets = str(Place(1, text, column, 4)).splitlines()[1:]
    start = carets.index("^")
    assert quoted[start : start + 4] == text[column : column + 4]
    assert len(quoted) <= SHOWN + 4 + 8
