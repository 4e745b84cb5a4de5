"""Operands as they are written; what they mean is for `flexfa4.emulator.ptx.binding`.

What this module deliberately does not do: look up names.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexfa4.emulator.ptx.errors import PtxError
from flexfa4.emulator.ptx.scanner import NUMBER, WORD, Cursor, Token


@dataclass(frozen=True, slots=True)
class Name:
    """A name, and a number that is added to it."""

    token: Token
    plus: int = 0
    negated: bool = False
    paired: bool = False


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its sign."""

    token: Token
    negative: bool
    paired: bool = False

    @property
    def text(self) -> str:
        """The number as it is written."""
        return f"{'-' if self.negative else ''}{self.token.text}"


@dataclass(frozen=True, slots=True)
class Braces:
    """Operands in braces."""

    token: Token
    elements: tuple[Name | Number, ...]
    paired: bool = False


@dataclass(frozen=True, slots=True)
class Brackets:
    """An address in square brackets, with coordinates for a tensor map."""

    token: Token
    base: Token | None
    offset: int
    coordinates: tuple[Name | Number, ...] | None = None
    paired: bool = False


@dataclass(frozen=True, slots=True)
class Parentheses:
    """Variables in parentheses: what a call passes or returns."""

    token: Token
    elements: tuple[Name | Number, ...]
    paired: bool = False


Written = Name | Number | Braces | Brackets | Parentheses
LONGEST = 70
"""Characters of the longest integer literal: 64 digits in base 2, with prefix and suffix."""

_AN_OPERAND = "a register, a number, an address in brackets or a vector in braces"


def read_operands(cursor: Cursor) -> list[Written]:
    """Read the operands of an instruction up to its semicolon, and that too."""
    operands: list[Written] = []
    if cursor.accept(";"):
        return operands
    if cursor.token.text == "}":
        raise cursor.mistake("an instruction", "`;`")
    start = cursor.position
    while True:
        operands.append(_read_operand(cursor, paired=False))
        while cursor.accept("|"):
            operands.append(_read_operand(cursor, paired=True))
        if cursor.accept(";"):
            return operands
        if not cursor.accept(","):
            raise _unended(cursor, start)


def _unended(cursor: Cursor, start: int) -> PtxError:
    """Return the error of operands that neither a comma nor a semicolon follows."""
    opcode, first = cursor.tokens[max(start - 1, 0)], cursor.tokens[start]
    if cursor.position == start + 1 and cursor.line(opcode) < cursor.line(first):
        cursor.position = start  # what was taken for an operand is the next instruction
        return cursor.mistake("an instruction", "`;`")
    return cursor.mistake("an instruction", "`,` or `;`")


def _read_operand(cursor: Cursor, paired: bool) -> Written:
    token = cursor.token
    if token.text == "[":
        return _read_address(cursor, paired)
    if token.text in ("{", "("):
        cursor.advance()
        closing = "}" if token.text == "{" else ")"
        elements = _read_list(cursor, closing)
        return (Braces if token.text == "{" else Parentheses)(token, elements, paired)
    if token.text == "!":
        cursor.advance()
        name = cursor.expect_kind(WORD, "an instruction", "a predicate register")
        return Name(name, negated=True, paired=paired)
    return _read_scalar(cursor, paired)


def _read_scalar(cursor: Cursor, paired: bool = False) -> Name | Number:
    token = cursor.advance()
    if token.kind == WORD:
        plus = read_integer(cursor) if cursor.token.text in ("+", "-") else 0
        return Name(token, plus, paired=paired)
    negative = token.text == "-"
    if negative:
        token = cursor.advance()
    if token.kind == NUMBER:
        return Number(token, negative, paired)
    cursor.position -= 1
    raise cursor.mistake("an instruction", _AN_OPERAND)


def _read_list(cursor: Cursor, closing: str) -> tuple[Name | Number, ...]:
    elements: list[Name | Number] = []
    if cursor.accept(closing):
        return ()
    while True:
        elements.append(_read_scalar(cursor))
        if cursor.accept(closing):
            return tuple(elements)
        cursor.expect(",", "a list of operands")


def _read_address(cursor: Cursor, paired: bool) -> Brackets:
    opening = cursor.expect("[", "an address")
    base = cursor.advance() if cursor.token.kind == WORD else None
    offset = 0
    if base is None or cursor.token.text in ("+", "-"):
        offset = read_integer(cursor)
    coordinates = None
    if cursor.accept(","):
        cursor.expect("{", "the coordinates of a tensor map")
        coordinates = _read_list(cursor, "}")
    cursor.expect("]", "an address")
    return Brackets(opening, base, offset, coordinates, paired)


def read_integer(cursor: Cursor) -> int:
    """Read an integer with its sign; ``+-4`` is minus 4, as compilers write it."""
    cursor.accept("+")
    negative = cursor.accept("-")
    token = cursor.expect_kind(NUMBER, "a number", "an integer")
    value = integer(token.text)
    if value is None:
        cursor.position -= 1
        raise cursor.mistake("a number", "an integer")
    return -value if negative else value


def integer(text: str) -> int | None:
    """Return the value of an integer literal; None for floats and what no type can hold."""
    if text[:2] in ("0f", "0F", "0d", "0D") or "." in text or len(text) > LONGEST:
        return None
    return int(text.removesuffix("U"), 0 if text[:2] in ("0x", "0X", "0b", "0B") else 10)
