"""Sums, products, quotients and roots of f64, against exact fractions."""

from __future__ import annotations

import itertools

import pytest

from tests import float_rules as rules
from tests.float_rules import F64, NAN
from tests.ptx_rules import evaluate

MODES = ("rn", "rz", "rm", "rp")
ARITY = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "mad": 3, "div": 2, "rcp": 1, "sqrt": 1}
ROWS = 192
INVALID = 0xFFF8 << 48


def rows_of(op: str, seed: str) -> list[tuple[int, ...]]:
    stream = rules.operands(F64, seed)
    rows = [tuple(itertools.islice(stream, ARITY[op])) for _ in range(ROWS)]
    return rows + [(row[0], row[0] ^ F64.sign, *row[2:]) for row in rows[:16] if ARITY[op] > 1]


@pytest.mark.parametrize("opcode", [f"{op}.{mode}.f64" for op in ARITY for mode in MODES])
def test_f64_is_rounded_once(opcode: str) -> None:
    op, mode, _ = opcode.split(".")
    rows = rows_of(op, opcode)
    for row, found in zip(rows, evaluate(opcode, rows), strict=True):
        numbers = [rules.decode(F64, bits) for bits in row]
        wanted = rules.computed(F64, "fma" if op == "mad" else op, numbers, mode)
        if wanted == NAN:
            assert (found & ~F64.sign) > F64.infinity, (opcode, list(map(hex, row)))
        else:
            assert found == wanted, f"{opcode} of {list(map(hex, row))}: {found:#x}"


def test_rounding_modes_end_with_their_instruction() -> None:
    one, tiny = 0x3FF0 << 48, 1
    for mode in MODES:
        up = mode == "rp"
        assert evaluate(f"add.{mode}.f64", [(one, tiny)]) == [one + up]
        assert evaluate("add.f64", [(one, tiny)]) == [one]


@pytest.mark.parametrize(
    ("opcode", "row", "result"),
    [
        ("add.f64", (0x7FF8000000000005, 0xFFF0000000000003), 0xFFF8000000000003),
        ("mul.f64", (0x7FF0000000000005, 0x3FF0 << 48), 0x7FF8000000000005),
        ("fma.rn.f64", (0x7FF8000000000001, 0x3FF0 << 48, 0x7FF8000000000002), 0x7FF8000000000002),
        ("div.rn.f64", (0x7FF8000000000001, 0x7FF8000000000002), 0x7FF8000000000001),
        ("add.f64", (0x7FF0 << 48, 0xFFF0 << 48), INVALID),
        ("sqrt.rn.f64", (0xBFF0 << 48,), INVALID),
    ],
)
def test_f64_keeps_the_nan_of_an_operand(opcode: str, row: tuple[int, ...], result: int) -> None:
    assert evaluate(opcode, [row]) == [result]
