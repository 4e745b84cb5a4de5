"""Choices between two values."""

from __future__ import annotations

import pytest

from tests.ptx_rules import agree, evaluate

TYPES = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
MINUS_ZERO, NAN, MINUS_ONE = 0x80000000, 0x7FC00000, 0xBF800000
SMALLEST, MINUS_SMALLEST = 0x00000001, 0x80000001


@pytest.mark.parametrize("kind", TYPES)
def test_selp_takes_the_first_value_where_the_predicate_holds(kind: str) -> None:
    agree(f"selp.{kind}", lambda a, b, c: a if c else b)


@pytest.mark.parametrize("kind", TYPES)
def test_slct_takes_the_first_value_where_an_integer_is_not_negative(kind: str) -> None:
    agree(f"slct.{kind}.s32", lambda a, b, c: a if c >= 0 else b)


@pytest.mark.parametrize("kind", ["b16", "s32", "f64"])
@pytest.mark.parametrize("ftz", ["", ".ftz"])
@pytest.mark.parametrize(
    ("c", "first"),
    [
        (0, True),
        (MINUS_ZERO, True),
        (MINUS_ONE, False),
        (NAN, False),
        (NAN | MINUS_ZERO, False),
        (SMALLEST, True),
    ],
)
def test_slct_by_a_float_takes_the_second_value_for_negative_numbers_and_nan(
    kind: str, ftz: str, c: int, first: bool
) -> None:
    assert evaluate(f"slct{ftz}.{kind}.f32", [(7, 9, c)]) == [7 if first else 9]


def test_slct_with_ftz_takes_negative_subnormal_numbers_for_zero() -> None:
    rows = [(7, 9, MINUS_SMALLEST)]
    assert evaluate("slct.b32.f32", rows) == [9]
    assert evaluate("slct.ftz.b32.f32", rows) == [7]
