"""Operands as they are written."""

from __future__ import annotations

import pytest

from flexfa4.emulator.ptx.errors import SyntaxMistakeError, TruncatedError
from flexfa4.emulator.ptx.operands import (
    Braces,
    Brackets,
    Name,
    Number,
    Parentheses,
    Written,
    integer,
    read_operands,
)
from flexfa4.emulator.ptx.scanner import Cursor


def read(text: str) -> list[Written]:
    return read_operands(Cursor(text))


def test_names_numbers_and_signs() -> None:
    name, plus, number, negated = read("%r1, sym+4, -0x10, !%p;")
    assert isinstance(name, Name) and (name.token.text, name.plus) == ("%r1", 0)
    assert isinstance(plus, Name) and plus.plus == 4
    assert isinstance(number, Number) and number.text == "-0x10"
    assert isinstance(negated, Name) and negated.negated


@pytest.mark.parametrize(
    ("text", "base", "offset"),
    [
        ("[%r1]", "%r1", 0),
        ("[%r1+8]", "%r1", 8),
        ("[%rd1+-8]", "%rd1", -8),
        ("[%rd1-8]", "%rd1", -8),
        ("[ tmem + 0x8 ]", "tmem", 8),
        ("[16]", None, 16),
    ],
)
def test_an_address_is_a_base_and_an_offset(text: str, base: str | None, offset: int) -> None:
    (address,) = read(text + ";")
    assert isinstance(address, Brackets) and address.coordinates is None
    assert (address.base and address.base.text, address.offset) == (base, offset)


def test_a_tensor_map_has_coordinates() -> None:
    (address,) = read("[%rd1, {%r1, 0}];")
    assert isinstance(address, Brackets) and address.coordinates is not None
    assert [item.token.text for item in address.coordinates] == ["%r1", "0"]


def test_vectors_pairs_and_arguments() -> None:
    vector, first, second, arguments, empty = read("{%r1, _}, %r2|%p1, (a, b), ();")
    assert isinstance(vector, Braces) and len(vector.elements) == 2
    assert (first.paired, second.paired) == (False, True)
    assert isinstance(arguments, Parentheses) and len(arguments.elements) == 2
    assert isinstance(empty, Parentheses) and not empty.elements


def test_an_instruction_may_have_no_operands() -> None:
    assert read(";") == []


@pytest.mark.parametrize(
    ("text", "value"),
    [("10", 10), ("007", 7), ("0x1F", 31), ("0b11", 3), ("0x7771U", 0x7771), ("0f3F800000", None)],
)
def test_integers_are_read_in_each_base(text: str, value: int | None) -> None:
    assert integer(text) == value


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("%r1 %r2;", SyntaxMistakeError),
        ("%r1, ;", SyntaxMistakeError),
        ("[%r1;", SyntaxMistakeError),
        ("[%r1+1.5];", SyntaxMistakeError),
        ("{%r1;", SyntaxMistakeError),
        ("!5;", SyntaxMistakeError),
        ("%r1, %r2", TruncatedError),
        ("[%r1+", TruncatedError),
    ],
)
def test_wrong_operands_are_mistakes(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        read(text)
