"""Arithmetic of f16 and bf16, alone and in pairs, against exact fractions."""

from __future__ import annotations

import itertools

import pytest

from tests import float_rules as rules
from tests.float_rules import BF16, F16, NAN
from tests.ptx_rules import evaluate

FORMATS = {"f16": F16, "bf16": BF16, "f16x2": F16, "bf16x2": BF16}
ARITY = {"add": 2, "sub": 2, "mul": 2, "fma": 3}
ROWS = 320

SCALAR = [
    *(f"{op}.rn{ftz}{sat}.f16" for op in ARITY for ftz in ("", ".ftz") for sat in ("", ".sat")),
    *(f"{op}.rn.bf16" for op in ARITY),
    *("add.f16", "add.bf16", "fma.rn.relu.f16", "fma.rn.ftz.relu.f16", "fma.rn.relu.bf16"),
]
PACKED = ["add.f16x2", "mul.rn.ftz.f16x2", "fma.rn.sat.f16x2", "fma.rn.relu.bf16x2", "mul.bf16x2"]

CASES = {
    # subnormal or not, by rounding; sums of which f32 holds no exact value
    F16: [(0x3BFF, 0x0400, 0), (0x3BFE, 0x0401, 0x8000), (0x7BFF, 0x7BFF, 0x0001)],
    BF16: [(0x3F7F, 0x0080, 0), (0x0101, 0x3001, 0x0001), (0x7F7F, 0x3F81, 0x8001)],
}


def rows_of(of: rules.Format, op: str, seed: str) -> list[tuple[int, ...]]:
    stream = rules.operands(of, seed)
    rows = [tuple(itertools.islice(stream, ARITY[op])) for _ in range(ROWS)]
    return [case[: ARITY[op]] for case in CASES[of]] + rows


def expected(of: rules.Format, words: list[str], row: tuple[int, ...]) -> int:
    numbers = [rules.decode(of, bits) for bits in row]
    ftz = "ftz" in words
    if ftz:
        numbers = [rules.flushed(of, number) for number in numbers]
    bits = rules.computed(of, words[0], numbers, ftz=ftz)
    bits = rules.clamped(of, bits, sat="sat" in words, relu="relu" in words)
    return 0x7FFF if bits == NAN else bits


@pytest.mark.parametrize("opcode", SCALAR)
def test_halves_are_rounded_once(opcode: str) -> None:
    words = opcode.split(".")
    of = FORMATS[words[-1]]
    rows = rows_of(of, words[0], opcode)
    for row, found in zip(rows, evaluate(opcode, rows), strict=True):
        wanted = expected(of, words, row)
        assert found == wanted, f"{opcode} of {list(map(hex, row))}: {found:#x}, not {wanted:#x}"


@pytest.mark.parametrize("opcode", PACKED)
def test_pairs_of_halves_are_two_operations(opcode: str) -> None:
    words = opcode.split(".")
    of = FORMATS[words[-1]]
    low, high = rows_of(of, words[0], opcode), rows_of(of, words[0], f"{opcode} upper")
    pairs = [
        tuple(a | b << 16 for a, b in zip(one, two, strict=True))
        for one, two in zip(low, high, strict=True)
    ]
    for one, two, found in zip(low, high, evaluate(opcode, pairs), strict=True):
        assert found == expected(of, words, one) | expected(of, words, two) << 16, (one, two)
