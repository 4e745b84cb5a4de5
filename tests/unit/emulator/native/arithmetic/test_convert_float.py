"""Conversions between f16, bf16, f32 and f64, against exact fractions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import pytest

from tests import float_rules as rules
from tests.float_rules import BF16, F16, F32, F64, NAN
from tests.ptx_programs import run_instruction
from tests.ptx_rules import evaluate

FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}
MODES = ("rn", "rz", "rm", "rp")
NARROWING = [
    f"cvt.{mode}{flags}.{to}.{of}"
    for mode in MODES
    for to, of, all_flags in (
        ("f16", "f32", ("", ".sat")),
        ("bf16", "f32", ("", ".ftz")),
        ("f32", "f64", ("", ".ftz", ".sat")),
        ("f16", "f64", ("", ".sat")),
        ("bf16", "f64", ("",)),
        ("f16", "bf16", ("",)),
        ("bf16", "f16", ("",)),
    )
    for flags in all_flags
]
WIDENING = ["cvt.f32.f16", "cvt.ftz.f32.bf16", "cvt.f64.f32", "cvt.sat.f64.f16", "cvt.f64.bf16"]
WIDENING += ["cvt.f32.bf16", "cvt.sat.f32.f16", "cvt.ftz.sat.f64.f32", "cvt.f64.f16"]


def expected(words: list[str], bits: int) -> int:
    to, of = FORMATS[words[-2]], FORMATS[words[-1]]
    number = rules.decode(of, bits)
    mode = next((mode for mode in MODES if mode in words), "rn")
    if "ftz" in words and of is F32:
        number = rules.flushed(of, number)
    if "sat" in words:
        number = 0.0 if math.isnan(number) else max(0.0, min(1.0, number))
        number = 0.0 if number == 0 else number
    if "ftz" in words and to is F32 and number and math.isfinite(number):
        number = math.copysign(0, number) if rules.is_tiny(to, Fraction(number), mode) else number
    return rules.encode(to, number, mode)


def is_nan(of: rules.Format, bits: int) -> bool:
    return bits & (of.sign - 1) > of.infinity


@pytest.mark.parametrize("opcode", NARROWING + WIDENING)
def test_numbers_are_rounded_once(opcode: str) -> None:
    words = opcode.split(".")
    to, of = FORMATS[words[-2]], FORMATS[words[-1]]
    stream = rules.operands(of, opcode)
    values = list(itertools.islice(stream, 400))
    # values of the result's format, and just beside the middle of two of them
    unit = 1 << max(of.mantissa - to.mantissa, 1)
    for bits in itertools.islice(rules.operands(to, opcode), 200):
        number = rules.decode(to, bits)
        if math.isfinite(number) and (exact := rules.encode(of, number)) != NAN:
            values += [exact, exact | unit >> 1, exact | unit >> 1 | 1, (exact | unit >> 1) - 1]
    values = [bits & (2 * of.sign - 1) for bits in values]
    for bits, found in zip(values, evaluate(opcode, [(b,) for b in values]), strict=True):
        wanted = expected(words, bits)
        if wanted == NAN:
            assert is_nan(to, found), (opcode, hex(bits), hex(found))
        else:
            assert found == wanted, f"{opcode} of {bits:#x}: {found:#x}, not {wanted:#x}"


@pytest.mark.parametrize(
    ("opcode", "bits", "result"),
    [
        ("cvt.rn.f16.f32", 0xFFC12345, 0x7FFF),
        ("cvt.f32.f16", 0xFE01, 0x7FFFFFFF),
        ("cvt.f32.bf16", 0xFF81, 0xFF810000),  # bits move
        ("cvt.f32.f32", 0x7F800001, 0x7F800001),
        ("cvt.ftz.f32.f32", 0x7F800001, 0x7FFFFFFF),
        ("cvt.f64.f32", 0xFF800001, 0xFFF8000020000000),  # f64 keeps what there is room for
        ("cvt.rn.f32.f64", 0x7FF0000020000000, 0x7FC00001),
        ("cvt.rn.bf16.f64", 0xFFF0000000000001, 0xFFC0),
        ("cvt.f64.f16", 0x7C01, 0x7FF8040000000000),
    ],
)
def test_nan_becomes_what_hardware_makes_of_it(opcode: str, bits: int, result: int) -> None:
    assert evaluate(opcode, [(bits,)]) == [result]


@pytest.mark.parametrize("of", FORMATS.values())
@pytest.mark.parametrize(
    ("mode", "rule"),
    [("rni", round), ("rzi", math.trunc), ("rmi", math.floor), ("rpi", math.ceil)],
)
def test_rounding_to_an_integer_keeps_the_sign_of_zero(
    mode: str, rule: Callable[[float], int], of: rules.Format
) -> None:
    values = [
        bits
        for bits in itertools.islice(rules.operands(of, mode), 300)
        if math.isfinite(rules.decode(of, bits))
    ] + [rules.encode(of, sign * (n + 0.5)) for n in range(4) for sign in (1, -1)]
    opcode = f"cvt.{mode}.{of.name}.{of.name}"
    for bits, found in zip(values, evaluate(opcode, [(b,) for b in values]), strict=True):
        number = rules.decode(of, bits)
        wanted = math.copysign(float(rule(number)), number)
        assert found == rules.encode(of, wanted), (opcode, hex(bits), hex(found))


def test_an_f16_may_come_from_a_wider_register() -> None:
    found = run_instruction(
        "cvt.f32.f16 d, a;", inputs={"a:b32": 0xABCD3C00}, outputs="d:f32", threads=32
    )["d"]
    assert set(found) == {1.0}
