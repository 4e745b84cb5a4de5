"""The composition of a message: four parts in order, a caret below the source, and pickling."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
import torch

from flexfa4 import errors
from flexfa4.errors import FlexFA4Error, Where, describe
from flexfa4.flex import errors as flex_errors


class WrongColourError(FlexFA4Error):
    """A class of this test."""

    found = "{thing} is {colour}"
    allowed = "green\nor blue"
    instead = "{thing}=green"


def test_a_message_says_what_was_found_where_what_is_allowed_and_what_to_write() -> None:
    error = WrongColourError(where="the roof", thing="tile", colour="red")
    assert str(error) == (
        "tile is red\n  where:   the roof\n  allowed: green\n           or blue\n"
        "  instead: tile=green"
    )
    assert error.fields == {"thing": "tile", "colour": "red"} and error.where == "the roof"


def test_without_a_place_the_message_has_no_line_for_it() -> None:
    assert "where" not in str(WrongColourError(thing="tile", colour="red"))


def test_braces_in_what_the_user_wrote_are_kept() -> None:
    assert str(WrongColourError(thing="{x}", colour="{0}")).startswith("{x} is {0}\n")


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (Where("m.py", 3), "m.py:3"),
        (Where("m.py", 3, function="f"), "m.py:3, in f"),
        (Where("m.py", 3, "    \n"), "m.py:3"),
        (Where("m.py", 3, "  a + b", 6, 1), "m.py:3\n    a + b\n        ^"),
        (Where("m.py", 3, "a + b", 0, 5), "m.py:3\n    a + b\n    ^^^^^"),
        # never beyond the end of the line, never nothing
        (Where("m.py", 3, "a + b", 4, 9), "m.py:3\n    a + b\n        ^"),
        (Where("m.py", 3, "a + b", 5, 0), "m.py:3\n    a + b\n         ^"),
        # a column inside the indentation
        (Where("m.py", 3, "    a", 0, 2), "m.py:3\n    a\n    ^"),
    ],
)
def test_a_place_shows_its_line_with_a_caret(where: Where, text: str) -> None:
    assert str(where) == text


def test_a_place_is_indented_inside_a_message() -> None:
    error = WrongColourError(where=Where("m.py", 3, "a + b", 0, 1), thing="a", colour="red")
    assert "\n  where:   m.py:3\n      a + b\n      ^\n  allowed:" in str(error)


@pytest.mark.parametrize("where", [None, "the roof", Where("m.py", 3, "a + b", 0, 1, "f")])
def test_an_error_survives_pickling(where: Any) -> None:
    error = errors.ArgumentError(
        where=where, name="scale", found_value="nan", expected="a number", rewrite="scale=None"
    )
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.ArgumentError and str(copy) == str(error)
    assert copy.where == where and copy.fields == error.fields


class Thing:
    """Something without a shape."""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (None, "None"),
        (True, "True"),
        (float("nan"), "nan"),
        ("text", "'text'"),
        ([1, 2], "a list"),
        (Thing(), "a Thing"),
        (OSError(), "an OSError"),
        (torch.zeros(2, 3), "a Tensor of shape (2, 3)"),
    ],
)
def test_values_are_named_by_themselves_or_by_their_type(value: Any, text: str) -> None:
    assert describe(value) == text


def test_a_long_value_is_shortened() -> None:
    assert len(describe("x" * 1000)) < 50 and len(describe(10**1000)) < 50


@pytest.mark.parametrize(
    ("group", "member"),
    [
        (errors.TraceError, errors.TracedBoolError),
        (errors.TextError, errors.UnknownNameError),
        (errors.OutOfRangeError, errors.MaskOutOfRangeError),
        (FlexFA4Error, errors.BackendError),
    ],
)
def test_groups_can_be_caught_as_one(group: type[Exception], member: type[Exception]) -> None:
    assert issubclass(member, group)


CATALOGUE = [
    kind
    for chapter in (errors, flex_errors)
    for kind in vars(chapter).values()
    if isinstance(kind, type) and issubclass(kind, FlexFA4Error)
]


def test_every_class_has_a_docstring_and_says_something_in_each_part() -> None:
    for kind in CATALOGUE:
        assert kind.__doc__
        if kind.found != FlexFA4Error.found:
            assert kind.allowed and kind.instead


def test_a_class_says_what_was_found_in_its_own_words() -> None:
    passed_through = {kind for kind in CATALOGUE if re.fullmatch(r"{\w+}", kind.found)}
    assert passed_through == {errors.TextSyntaxError}  # whose words are the grammar's tables
