"""Sums, products, quotients and roots of f32, against exact fractions."""

from __future__ import annotations

import itertools

import pytest

from tests import float_rules as rules
from tests.float_rules import BF16, F16, F32, NAN
from tests.ptx_programs import run_instruction
from tests.ptx_rules import evaluate

MODES = ("rn", "rz", "rm", "rp")
ARITY = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "mad": 3, "div": 2, "rcp": 1, "sqrt": 1}
SATURATING = ("add", "sub", "mul", "fma", "mad")
ROWS = 320
CANONICAL = 0x7FFFFFFF

LEAST = 0x00800000  # 2^-126
CASES: dict[str, list[tuple[int, ...]]] = {
    # sums that cancel, products whose rounding decides whether they are subnormal
    "add": [(0x3F800000, 0xBF800000), (0x3F800000, 0xBF800001), (0x7F7FFFFF, 0x73000000)],
    "sub": [(0x3F800000, 0x3F800000), (0x80000000, 0x80000000), (0x3F800000, 0x33000000)],
    "mul": [
        (0x3F7FFFFF, LEAST),
        (0x3F7FFFFE, LEAST + 1),
        (0x3F7FFF9C, LEAST + 50),
        (0xBF7FFF9C, LEAST + 50),
        (0x7F7FFFFF, 0x3F800001),
    ],
    "fma": [
        (0x3F800001, 0x3F800001, 0xBF800002),
        (0x3F800001, 0x3F7FFFFF, 0xBF800000),
        (0x3F7FFF9C, LEAST + 50, 0x80000000),
        (0x5F800000, 0x5F800000, 0xFF7FFFFF),
    ],
    "div": [(0x00FFFFFE, 0x3FFFFFFF), (LEAST, 0x3F800001), (0x3F800000, 0x7F7FFFFF)],
    "rcp": [(0x7F7FFFFF,), (0x7E800000,), (0x7E800001,), (0x00200000,)],
    "sqrt": [(0x00000001,), (0x40800001,), (0xBF800000,), (0x80000000,)],
}


def rows_of(op: str, seed: str) -> list[tuple[int, ...]]:
    arity = ARITY[op]
    stream = rules.operands(F32, seed)
    rows = [tuple(itertools.islice(stream, arity)) for _ in range(ROWS)]
    cancelling = [(row[0], row[0] ^ F32.sign, *row[2:]) for row in rows[:32] if arity > 1]
    return CASES.get("fma" if op == "mad" else op, []) + cancelling + rows


def expected(op: str, row: tuple[int, ...], mode: str, ftz: bool, sat: bool) -> int:
    numbers = [rules.decode(F32, bits) for bits in row]
    if ftz:
        numbers = [rules.flushed(F32, number) for number in numbers]
    bits = rules.computed(F32, "fma" if op == "mad" else op, numbers, mode, ftz=ftz)
    bits = rules.clamped(F32, bits, sat=sat)
    return CANONICAL if bits == NAN else bits


def opcodes() -> list[str]:
    plain = [f"{op}.{mode}.f32" for op in ARITY for mode in MODES]
    flushing = [f"{op}.{mode}.ftz.f32" for op in ARITY if op != "mad" for mode in MODES]
    saturating = [f"{op}.rn.sat.f32" for op in SATURATING]
    return [*plain, *flushing, *saturating, "add.f32", "mul.ftz.sat.f32", "fma.rp.ftz.sat.f32"]


@pytest.mark.parametrize("opcode", opcodes())
def test_f32_is_rounded_once(opcode: str) -> None:
    words = opcode.split(".")
    op, mode = words[0], next((mode for mode in MODES if mode in words), "rn")
    rows = rows_of(op, opcode)
    for row, found in zip(rows, evaluate(opcode, rows), strict=True):
        wanted = expected(op, row, mode, "ftz" in words, "sat" in words)
        assert found == wanted, f"{opcode} of {list(map(hex, row))}: {found:#x}, not {wanted:#x}"


@pytest.mark.parametrize(
    "opcode",
    ["add.f32x2", "sub.rn.ftz.f32x2", "mul.rn.f32x2", "fma.rn.f32x2", "add.rm.f32x2"]
    + [f"fma.{mode}.f32x2" for mode in ("rz", "rm", "rp")],
)
def test_f32x2_is_two_operations(opcode: str) -> None:
    words = opcode.split(".")
    mode = next((mode for mode in MODES if mode in words), "rn")
    low, high = rows_of(words[0], opcode), rows_of(words[0], f"{opcode} upper")
    pairs = [
        tuple(a | b << 32 for a, b in zip(one, two, strict=True))
        for one, two in zip(low, high, strict=True)
    ]
    for one, two, found in zip(low, high, evaluate(opcode, pairs), strict=True):
        wanted = [expected(words[0], row, mode, "ftz" in words, False) for row in (one, two)]
        assert [found & 0xFFFFFFFF, found >> 32] == wanted, (list(map(hex, one + two)), hex(found))


@pytest.mark.parametrize("active", [0x00000001, 0x80000000, 0x0F0F0F0F])
def test_inactive_lanes_of_f32x2_keep_their_registers(active: int) -> None:
    kept = 0x1111111122222222
    found = run_instruction(
        "mul.rn.f32x2 d, d, b;",
        inputs={"d:b64": kept, "b:b64": 0x4000000040000000},
        outputs="d:b64",
        active=active,
    )["d"]
    doubled = kept + 0x0080000000800000  # one step of both exponents
    assert found == [doubled if active >> i & 1 else kept for i in range(32)]


@pytest.mark.parametrize("narrow", [F16, BF16])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", ["add", "sub", "fma"])
def test_narrow_operands_are_widened_first(op: str, mode: str, narrow: rules.Format) -> None:
    opcode = f"{op}.{mode}.f32.{narrow.name}"
    narrow_count = ARITY[op] - 1
    small, large = rules.operands(narrow, opcode), rules.operands(F32, opcode)
    rows = [(*itertools.islice(small, narrow_count), next(large)) for _ in range(ROWS)]
    formats = [narrow] * narrow_count + [F32]
    for row, found in zip(rows, evaluate(opcode, rows), strict=True):
        numbers = [rules.decode(of, bits) for of, bits in zip(formats, row, strict=True)]
        bits = rules.computed(F32, op, numbers, mode)
        assert found == (CANONICAL if bits == NAN else bits), (opcode, list(map(hex, row)))


def test_an_approximate_quotient_loses_great_divisors() -> None:
    infinity, two_to_127, quotient = 0x7F800000, 0x7F000000, "div.approx.ftz.f32"
    rows = [(0x40400000, two_to_127), (0xC0400000, two_to_127), (infinity, two_to_127)]
    assert evaluate(quotient, rows) == [0, 0x80000000, CANONICAL]
    assert evaluate(quotient, [(0x40400000, 0x7E800000)]) == [0x01400000]  # 3 / 2^126
