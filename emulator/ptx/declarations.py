"""Declarations of variables, and where they lie in their state space.

Variables get their places in the order of the text, each aligned as declared.  ``extern`` arrays
without size lie behind all others of shared memory: the launch says how long they are.

What this module deliberately does not do: read code, or give state spaces a place in an address
space; offsets count from the start of what the module, function or thread has of each.
"""

from __future__ import annotations

import contextlib
import struct
from collections import Counter
from dataclasses import dataclass, field

from flexfa4.emulator.ptx.errors import DirectiveError, ImmediateError, InitialValuesError
from flexfa4.emulator.ptx.operands import integer
from flexfa4.emulator.ptx.program import Variable
from flexfa4.emulator.ptx.scanner import DIRECTIVE, NUMBER, WORD, Cursor, Token
from flexfa4.emulator.ptx.types import MEMORY_TYPES, TYPES, Kind, ScalarType

SPACES = ("global", "const", "shared", "local", "param")
"""State spaces that a variable can be declared in."""

_POINTEES = ("global", "const", "shared", "local")


@dataclass
class Layout:
    """How much of each state space is taken."""

    sizes: Counter[str] = field(default_factory=Counter)
    dynamic_align: int = 1

    def place(self, space: str, align: int, size: int) -> int:
        """Return an aligned offset behind what is taken, and take `size` bytes there."""
        offset = -(-self.sizes[space] // align) * align
        self.sizes[space] = offset + size
        return offset

    @property
    def dynamic_shared(self) -> int:
        """Where arrays without size begin, which all lie in one place."""
        return -(-self.sizes["shared"] // self.dynamic_align) * self.dynamic_align


@dataclass(frozen=True)
class Declared:
    """A declaration as written: what `Layout` needs, and the token of the name."""

    token: Token
    type: ScalarType
    align: int
    size: int | None
    initial: bytes
    addresses: tuple[tuple[int, str, int, bool], ...]

    def variable(self, space: str, layout: Layout) -> Variable:
        """Return the variable in its place."""
        if self.size is None:
            layout.dynamic_align = max(layout.dynamic_align, self.align)
            offset = 0
        else:
            offset = layout.place(space, self.align, self.size)
        return Variable(
            self.token.text,
            space,
            self.type,
            self.align,
            self.size,
            offset,
            self.initial,
            self.addresses,
        )


def read_declaration(cursor: Cursor, unsized: bool = False) -> Declared:
    """Read ``.align 16 .b8 name[64] = {1, 2}`` behind the state space, up to what follows it.

    With `unsized`, an array may have neither size nor initial values.
    """
    align = None
    type_ = None
    while cursor.token.kind == DIRECTIVE:
        token = cursor.advance()
        if token.text == ".align":
            align = _read_size(cursor, "an alignment")
            if align <= 0 or align & (align - 1):
                cursor.position -= 1
                raise cursor.mistake("an alignment", "a power of 2")
        elif token.text == ".ptr":
            _read_pointee(cursor)
        elif type_ is None and token.text[1:] in MEMORY_TYPES:
            type_ = TYPES[token.text[1:]]
        else:
            raise DirectiveError(
                where=cursor.place(token),
                directive=token.text,
                place="in the declaration of a variable",
                names=".align, .ptr and types of memory such as .b8 and .f32",
            )
    if type_ is None:
        raise cursor.mistake("a declaration", "a type such as .b8")
    name = cursor.expect_kind(WORD, "a declaration", "the name of the variable")
    count: int | None = 1
    while cursor.accept("["):
        size = None if cursor.accept("]") else _read_size(cursor, "the size of an array")
        if size is not None:
            cursor.expect("]", "the size of an array")
        count = None if size is None or count is None else count * size
    writer = _Initial(cursor, type_)
    if cursor.accept("="):
        writer.read()
        values = len(writer.data) // type_.size
        count = values if count is None else count
        if values > count:
            where = cursor.place(name)
            raise InitialValuesError(where=where, name=name.text, count=values, size=count)
    if count is None and not unsized:
        raise cursor.mistake("a declaration", "`=` and initial values, for an array without size")
    return Declared(
        name,
        type_,
        align or type_.size,
        None if count is None else count * type_.size,
        bytes(writer.data),
        tuple(writer.addresses),
    )


def _read_size(cursor: Cursor, construct: str) -> int:
    token = cursor.expect_kind(NUMBER, construct, "an integer")
    value = integer(token.text)
    if value is None:
        cursor.position -= 1
        raise cursor.mistake(construct, "an integer")
    return value


def _read_pointee(cursor: Cursor) -> None:
    """Step over the space that ``.ptr`` may name; it tells about the value, not the parameter."""
    if cursor.token.text[1:] in _POINTEES:
        cursor.advance()
    if cursor.accept(".align"):
        _read_size(cursor, "an alignment")


@dataclass
class _Initial:
    """The initial bytes of a variable, as they are read."""

    cursor: Cursor
    type: ScalarType
    data: bytearray = field(default_factory=bytearray)
    addresses: list[tuple[int, str, int, bool]] = field(default_factory=list)

    def read(self) -> None:
        """Read a value, or values in braces, which may be nested and say nothing by that."""
        depth = 0
        while True:
            if self.cursor.accept("{"):
                depth += 1
                continue
            self._read_value()
            while depth and self.cursor.accept("}"):
                depth -= 1
            if not depth:
                return
            self.cursor.expect(",", "an initialiser")

    def _read_value(self) -> None:
        token = self.cursor.token
        if token.kind == WORD:
            self._read_address()
            return
        negative = self.cursor.accept("-")
        token = self.cursor.expect_kind(NUMBER, "an initialiser", "a number")
        self.data += self._bytes(token, negative)

    def _read_address(self) -> None:
        generic = self.cursor.accept("generic")
        if generic:
            self.cursor.expect("(", "an address")
        name = self.cursor.expect_kind(WORD, "an initialiser", "the name of a variable")
        if generic:
            self.cursor.expect(")", "an address")
        plus = 0
        if self.cursor.accept("+"):
            plus = _read_size(self.cursor, "an address")
        self.addresses.append((len(self.data), name.text, plus, generic))
        self.data += bytes(self.type.size)

    def _bytes(self, token: Token, negative: bool) -> bytes:
        value = integer(token.text)
        bits = self.type.bits
        if value is None:
            return self._float_bytes(token, negative)
        value = -value if negative else value
        if -(1 << (bits - 1)) <= value < 1 << bits:
            return (value & ((1 << bits) - 1)).to_bytes(self.type.size, "little")
        raise ImmediateError(
            where=self.cursor.place(token),
            number=f"{'-' if negative else ''}{token.text}",
            what=f"an element of type {self.type}",
            expected=f"integers from -2**{bits - 1} up to 2**{bits} - 1",
        )

    def _float_bytes(self, token: Token, negative: bool) -> bytes:
        text = token.text
        sign = -1.0 if negative else 1.0
        exact = {"0f": ("<f", 8), "0d": ("<d", 16)}.get(text[:2].lower())
        if exact is not None:
            code, digits = exact
            (value,) = struct.unpack(code, int(text[2:], 16).to_bytes(digits // 2, "little"))
        else:
            value = float(text)
        if self.type.kind is Kind.FLOAT and self.type.bits in (32, 64):
            with contextlib.suppress(OverflowError):
                return struct.pack("<f" if self.type.bits == 32 else "<d", sign * value)
        raise ImmediateError(
            where=self.cursor.place(token),
            number=text,
            what=f"an element of type {self.type}",
            expected="numbers with a point in variables of type .f32 and .f64 only",
        )
