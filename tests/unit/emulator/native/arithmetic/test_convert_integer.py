"""Conversions between integers, and between integers and floats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import pytest

from flexfa4.emulator.ptx.table import READER
from tests import float_rules as rules
from tests.float_rules import BF16, F16, F32, F64
from tests.ptx_programs import run_instruction
from tests.ptx_rules import agree, evaluate, signed

SIGNED, UNSIGNED = ("s8", "s16", "s32", "s64"), ("u8", "u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}
MODES = ("rn", "rz", "rm", "rp")


def limits(type_: str) -> tuple[int, int]:
    bits = int(type_[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if type_ in SIGNED else (0, (1 << bits) - 1)


def clamped(value: int, type_: str) -> int:
    low, high = limits(type_)
    return max(low, min(high, value))


def samples(type_: str) -> list[int]:
    low, high = limits(type_)
    around = [0, 1, 100, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31, 2**32, 2**53 + 1]
    values = [sign * (value + step) for value in around for step in (-1, 0, 1) for sign in (1, -1)]
    odd = [2**62 + 2**38 + 1, 2**62 + 2**38, 2**63 - 1, 2**24 + 1, 2**24 + 3, 65519, 65520, 65521]
    return [value for value in (*values, *odd, low, high, -(2**24) - 1) if low <= value <= high]


def held(type_: str) -> str:
    """The type of the least register that holds a type."""
    return f"b{max(16, int(type_[1:]))}"


def always_fits(of: str, to: str) -> bool:
    (low, high), (lowest, highest) = limits(of), limits(to)
    return lowest <= low and high <= highest


@pytest.mark.parametrize("sat", ["", ".sat"])
@pytest.mark.parametrize("to", INTEGERS)
@pytest.mark.parametrize("of", INTEGERS)
def test_integers_are_cut_or_clamped(of: str, to: str, sat: str) -> None:
    values = samples(of)
    if sat and always_fits(of, to):  # the PTX ISA has no such form: there is nothing to clamp
        assert not READER.operations(f"cvt.sat.{to}.{of}")
        return
    bits = int(held(of)[1:])
    found = run_instruction(
        f"cvt{sat}.{to}.{of} d, a;",
        inputs={f"a:{held(of)}": [value & (1 << bits) - 1 for value in values]},
        outputs=f"d:{held(to)}",
        threads=-(-len(values) // 32) * 32,
    )["d"]
    size, register = int(to[1:]), int(held(to)[1:])
    for value, result in zip(values, found, strict=True):
        wanted = clamped(value, to) if sat else value
        wanted = signed(wanted, size) if to in SIGNED else wanted & (1 << size) - 1
        assert result == wanted & (1 << register) - 1, (value, hex(result))


@pytest.mark.parametrize(
    ("opcode", "register", "value", "result"),
    [
        ("cvt.s32.s8", "b32", 0x1234_56F0, 0xFFFF_FFF0),  # the low bits of a wider source
        ("cvt.u32.u16", "b64", 0xFFFF_FFFF_8001, 0x8001),
        ("cvt.s64.s16", "b32", 0x0001_8000, -0x8000 & (1 << 64) - 1),
    ],
)
def test_the_low_bits_of_a_wider_source_count(
    opcode: str, register: str, value: int, result: int
) -> None:
    size = "b64" if "64" in opcode.split(".")[1] else "b32"
    found = run_instruction(
        f"{opcode} d, a;", inputs={f"a:{register}": value}, outputs=f"d:{size}", threads=32
    )["d"]
    assert set(found) == {result}


@pytest.mark.parametrize(
    ("opcode", "result"),
    [("cvt.s8.s32", (1 << 64) - 128), ("cvt.u8.s32", 0x80), ("cvt.s16.s32", 0x80)],
)
def test_results_extend_to_a_wider_register(opcode: str, result: int) -> None:
    found = run_instruction(f"{opcode} d, a;", inputs={"a:b32": 0x80}, outputs="d:b64", threads=32)[
        "d"
    ]
    assert set(found) == {result}


@pytest.mark.parametrize("sat", ["", ".sat"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("to", ["f16", "f32", "f64"])
@pytest.mark.parametrize("of", ["s16", "s32", "u32", "s64", "u64"])
def test_floats_of_integers_are_rounded_once(of: str, to: str, mode: str, sat: str) -> None:
    values, size = samples(of), int(of[1:])
    rows = [(value & (1 << size) - 1,) for value in values]
    found = evaluate(f"cvt.{mode}{sat}.{to}.{of}", rows)
    for value, result in zip(values, found, strict=True):
        exact = Fraction(max(0, min(1, value)) if sat else value)
        assert result == rules.encode(FORMATS[to], exact, mode), (value, hex(result))


@pytest.mark.parametrize("mode", MODES)
def test_bf16_of_integers(mode: str) -> None:
    values = samples("s64")
    found = evaluate(f"cvt.{mode}.bf16.s64", [(value & (1 << 64) - 1,) for value in values])
    assert found == [rules.encode(BF16, Fraction(value), mode) for value in values]


ROUNDINGS: dict[str, Callable[[float], int]] = {
    "rni": round,
    "rzi": math.trunc,
    "rmi": math.floor,
    "rpi": math.ceil,
}


@pytest.mark.parametrize("to", ["s16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("of", FORMATS)
@pytest.mark.parametrize("mode", ROUNDINGS)
def test_integers_of_floats_are_clamped(mode: str, of: str, to: str) -> None:
    format_ = FORMATS[of]
    stream = rules.operands(format_, f"{mode} {to}")
    halves = [sign * (n + 0.5) for n in range(6) for sign in (1, -1)]
    edges = [2.0**31, 2.0**32, 2.0**63, 2.0**64, -(2.0**31), -(2.0**63), 65504.0]
    values = [*itertools.islice(stream, 200), *(rules.encode(format_, v) for v in halves + edges)]
    low, high = limits(to)
    wide = of == "f64" or to.endswith("64")
    nan = 1 << int(to[1:]) - 1 if wide else 0  # PTX ISA, "cvt"
    for bits, result in zip(
        values, evaluate(f"cvt.{mode}.{to}.{of}", [(b,) for b in values]), strict=True
    ):
        number = rules.decode(format_, bits)
        if math.isnan(number):
            wanted = nan
        elif math.isinf(number):
            wanted = high if number > 0 else low
        else:
            wanted = clamped(ROUNDINGS[mode](number), to)
        assert result == wanted & (1 << int(to[1:])) - 1, (number, hex(result))


def test_subnormal_numbers_are_flushed_before_rounding() -> None:
    rows = [(1,), (0x80000001,)]
    assert evaluate("cvt.rpi.s32.f32", rows) == [1, 0]
    assert evaluate("cvt.rpi.ftz.s32.f32", rows) == [0, 0]
    assert evaluate("cvt.rmi.s32.f32", rows) == [0, 0xFFFFFFFF]


def test_truncation_agrees_on_random_integers() -> None:
    agree("cvt.u32.u64", lambda a: a)
    agree("cvt.s64.s32", lambda a: a)
