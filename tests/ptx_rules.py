"""Holding instructions to rules: Python functions that say what the PTX ISA says.

    agree("add.sat.s32", lambda a, b: saturated(a + b))

A rule takes the operands that the instruction reads, in their order, and returns what it writes, a
tuple where that is several.  Integers are numbers with the sign of their type, predicates 0 or 1,
everything else is bits; results count modulo the size of the register.  The types of operands are
those that the table of instructions has for the opcode.

What this module deliberately does not do: know any instruction.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flexfa4.emulator.ptx.forms import Access, Operation, Role
from flexfa4.emulator.ptx.table import READER
from flexfa4.emulator.ptx.types import PRED, Kind, ScalarType
from tests.ptx_programs import run_instruction

THREADS = 1024  # of a block, so that one launch tries many rows
SPECIAL_ROWS, RANDOM_ROWS = 768, 256

Row = tuple[int, ...]

# bits of floats that are special, by the size of the type; those of 16 bits are f16's and bf16's
_SPECIAL_FLOATS = {
    16: (0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x83FF, 0x3F80, 0x7F80, 0x7FC0, 0x807F),
    32: (0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFF800001, 0x807FFFFF),
    64: (0x3FF0 << 48, 0xBFF0 << 48, 0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8 << 48, 0x800F << 48),
}


def signed(value: int, bits: int) -> int:
    """Read the low bits of a number as one with a sign."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def agree(
    opcode: str, rule: Callable[..., Any], *, numbers: Mapping[str, int] | None = None
) -> None:
    """Check an instruction against a rule, on special and on random operands."""
    operation = _operation(opcode)
    rows = operand_rows(opcode)
    found = evaluate(opcode, rows, numbers=numbers)
    types = [_type(role) for role in _read(operation)]
    written = [_type(role) for role in _written(operation)]
    for row, result in zip(rows, found, strict=True):
        values = [_number(bits, type_) for bits, type_ in zip(row, types, strict=True)]
        answer = rule(*values)
        each = answer if isinstance(answer, tuple) else (answer,)
        expected = tuple(
            value & ((1 << type_.bits) - 1) for value, type_ in zip(each, written, strict=True)
        )
        assert result == (expected if len(expected) > 1 else expected[0]), (
            f"{opcode} of {', '.join(map(hex, values))} should be {', '.join(map(hex, expected))}"
        )


def evaluate(
    opcode: str, rows: Sequence[Row], *, numbers: Mapping[str, int] | None = None
) -> list[Any]:
    """Run an instruction on rows of operands; return the bits that it writes for each row.

    Args:
        opcode: with all modifiers.
        rows: bits of the operands that it reads; predicates are 0 or 1.
        numbers: operands that the text has to have as numbers.
    """
    operation = _operation(opcode)
    read, written = _read(operation), _written(operation)
    words = ""
    for role in operation.roles:
        word = str((numbers or {})[role.name]) if role.access is Access.NUMBER else role.name
        words += f"{'|' if role.paired else ', ' if words else ''}{word}"
    results: list[Any] = []
    for start in range(0, len(rows), THREADS):
        batch = rows[start : start + THREADS]
        found = run_instruction(
            f"{opcode} {words};",
            inputs={
                f"{role.name}:{_bits_name(role)}": [row[column] for row in batch]
                for column, role in enumerate(read)
            },
            outputs=" ".join(f"{role.name}:{_bits_name(role)}" for role in written),
            threads=min(THREADS, -(-len(batch) // 32) * 32),
        )
        columns = [found[role.name] for role in written]
        results += [
            tuple(map(int, values)) if len(values) > 1 else int(values[0])
            for values in zip(*columns, strict=True)
        ]
    return results


def operand_rows(opcode: str) -> list[Row]:
    """Return rows of operands, special ones and random ones; always the same for an opcode."""
    generator = random.Random(opcode)
    columns = [_special(_type(role)) for role in _read(_operation(opcode))]
    combinations = list(itertools.islice(itertools.product(*columns), 1 << 16))
    if len(combinations) > SPECIAL_ROWS:
        rows = [tuple(map(generator.choice, columns)) for _ in range(SPECIAL_ROWS)]
    else:
        rows = combinations
    types = [_type(role) for role in _read(_operation(opcode))]
    return rows + [
        tuple(generator.getrandbits(type_.bits) for type_ in types) for _ in range(RANDOM_ROWS)
    ]


def _special(type_: ScalarType) -> list[int]:
    """Return numbers at which instructions of a type may go wrong."""
    if type_ is PRED:
        return [0, 1]
    bits = type_.bits
    around = [0, 1 << (bits - 1), 1 << bits, 8, 16, 24, 31, 32, 33, 63, 64, 255, 256]
    found = {(value + step) % (1 << bits) for value in around for step in (-1, 0, 1)}
    found |= set(_SPECIAL_FLOATS.get(bits, ())) | {0x5A5A5A5A5A5A5A5A % (1 << bits)}
    if type_.name.endswith("x2"):
        found |= {half << 16 | half ^ 0x8000 for half in _SPECIAL_FLOATS[16]}
    return sorted(found)


def _number(bits: int, type_: ScalarType) -> int:
    if type_.kind is Kind.INTEGER and type_.name.startswith("s"):
        return signed(bits, type_.bits)
    return bits


def _operation(opcode: str) -> Operation:
    return READER.operations(opcode)[0]


def _read(operation: Operation) -> list[Role]:
    return [role for role in operation.roles if role.access is Access.READ]


def _written(operation: Operation) -> list[Role]:
    return [role for role in operation.roles if role.access is Access.WRITE]


def _type(role: Role) -> ScalarType:
    assert role.type is not None
    return role.type


def _bits_name(role: Role) -> str:
    type_ = _type(role)
    return "pred" if type_ is PRED else f"b{type_.bits}"
