"""Approximations: the nearest number to the exact value, and the values that the PTX ISA fixes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from tests import float_rules as rules
from tests.float_rules import BF16, F16, F32, NAN
from tests.ptx_rules import evaluate

ZERO, MINUS_ZERO, INFINITY, MINUS_INFINITY = 0, 0x80000000, 0x7F800000, 0xFF800000
ONE, CANONICAL, SUBNORMAL, MINUS_ONE = 0x3F800000, 0x7FFFFFFF, 0x00012345, 0xBF800000


def exp2(x: float) -> float:
    return math.inf if x > 1000 else math.exp2(x)


def log2(x: float) -> float:
    if math.isnan(x) or x < 0:
        return math.nan
    return -math.inf if x == 0 else math.log2(x)


def reciprocal(x: float) -> float:
    return math.copysign(math.inf, x) if x == 0 else 1 / x


def root(x: float) -> float:
    return math.nan if x < 0 else math.sqrt(x)


def periodic(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: math.nan if math.isinf(x) else function(x)


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "ex2": exp2,
    "lg2": log2,
    "sin": periodic(math.sin),
    "cos": periodic(math.cos),
    "tanh": math.tanh,
    "rcp": reciprocal,
    "sqrt": root,
    "rsqrt": lambda x: root(x) if math.isnan(root(x)) else reciprocal(root(x)),
}
F32_OPCODES = [
    f"{name}.approx{ftz}.f32" for name in FUNCTIONS for ftz in ("", ".ftz") if name != "tanh"
] + ["tanh.approx.f32"]
HALF_OPCODES = ["ex2.approx.f16", "tanh.approx.f16", "ex2.approx.ftz.bf16", "tanh.approx.bf16"]


def nearest(of: rules.Format, opcode: str, bits: int) -> int:
    x = rules.decode(of, bits)
    ftz = ".ftz" in opcode
    x = rules.flushed(of, x) if ftz else x
    result = rules.encode(of, FUNCTIONS[opcode.split(".")[0]](x))
    if result == NAN:
        return of.sign - 1
    return result & of.sign if ftz and result & (of.infinity) == 0 else result


@pytest.mark.parametrize("opcode", F32_OPCODES)
def test_f32_gets_the_nearest_number(opcode: str) -> None:
    values = list(itertools.islice(rules.operands(F32, opcode), 1000))
    found = evaluate(opcode, [(bits,) for bits in values])
    wrong = [
        (hex(bits), hex(result))
        for bits, result in zip(values, found, strict=True)
        if result != nearest(F32, opcode, bits)
    ]
    assert not wrong


@pytest.mark.parametrize("opcode", HALF_OPCODES)
def test_halves_get_the_nearest_number_for_every_input(opcode: str) -> None:
    of = BF16 if opcode.endswith("bf16") else F16
    values = range(0, 1 << 16, 7)
    found = evaluate(opcode, [(bits,) for bits in values])
    wrong = [
        (hex(bits), hex(result))
        for bits, result in zip(values, found, strict=True)
        if result != nearest(of, opcode, bits)
    ]
    assert not wrong


@pytest.mark.parametrize("opcode", ["ex2.approx.f16x2", "tanh.approx.bf16x2"])
def test_pairs_are_two_halves(opcode: str) -> None:
    of = BF16 if "bf16" in opcode else F16
    values = list(itertools.islice(rules.operands(of, opcode), 256))
    found = evaluate(opcode, [(a | b << 16,) for a, b in itertools.pairwise(values)])
    for (a, b), result in zip(itertools.pairwise(values), found, strict=True):
        assert result == nearest(of, opcode, a) | nearest(of, opcode, b) << 16


# PTX ISA: the tables of special values of each instruction
FIXED = {
    "ex2.approx.ftz.f32": {
        MINUS_INFINITY: ZERO,
        0x80012345: ONE,
        MINUS_ZERO: ONE,
        ZERO: ONE,
        SUBNORMAL: ONE,
        INFINITY: INFINITY,
        0x7FC00000: CANONICAL,
        0xC2FE0000: ZERO,  # 2^-127 is subnormal
        0xC2FC0000: 0x00800000,  # 2^-126
        0x43000000: INFINITY,  # 2^128
    },
    "ex2.approx.f32": {0xC2FE0000: 0x00400000, 0xC3150000: 0x00000001},
    "lg2.approx.ftz.f32": {
        MINUS_INFINITY: CANONICAL,
        MINUS_ONE: CANONICAL,
        0x80012345: MINUS_INFINITY,
        MINUS_ZERO: MINUS_INFINITY,
        ZERO: MINUS_INFINITY,
        SUBNORMAL: MINUS_INFINITY,
        ONE: ZERO,
        INFINITY: INFINITY,
    },
    "lg2.approx.f32": {0x00000001: 0xC3150000},
    "rcp.approx.ftz.f32": {
        MINUS_INFINITY: MINUS_ZERO,
        0x80012345: MINUS_INFINITY,
        MINUS_ZERO: MINUS_INFINITY,
        SUBNORMAL: INFINITY,
        INFINITY: ZERO,
        0x7F000000: ZERO,  # 1 / 2^127 is subnormal
    },
    "rcp.approx.f32": {0x7F000000: 0x00400000},
    "rsqrt.approx.ftz.f32": {
        MINUS_INFINITY: CANONICAL,
        MINUS_ONE: CANONICAL,
        MINUS_ZERO: MINUS_INFINITY,
        SUBNORMAL: INFINITY,
        INFINITY: ZERO,
    },
    "sqrt.approx.ftz.f32": {MINUS_ONE: CANONICAL, MINUS_ZERO: MINUS_ZERO, SUBNORMAL: ZERO},
    "sin.approx.ftz.f32": {INFINITY: CANONICAL, MINUS_ZERO: MINUS_ZERO, SUBNORMAL: ZERO},
    "cos.approx.ftz.f32": {INFINITY: CANONICAL, ZERO: ONE, SUBNORMAL: ONE},
    "tanh.approx.f32": {
        MINUS_INFINITY: MINUS_ONE,
        SUBNORMAL: SUBNORMAL,
        MINUS_ZERO: MINUS_ZERO,
        INFINITY: ONE,
        0x7FC00001: CANONICAL,
    },
}


@pytest.mark.parametrize("opcode", FIXED)
def test_special_values_are_those_of_the_isa(opcode: str) -> None:
    inputs = FIXED[opcode]
    found = evaluate(opcode, [(bits,) for bits in inputs])
    assert dict(zip(inputs, map(hex, found), strict=True)) == {
        bits: hex(result) for bits, result in inputs.items()
    }


@pytest.mark.parametrize("name", ["rcp", "rsqrt"])
def test_f64_has_twenty_bits_of_mantissa(name: str) -> None:
    function = FUNCTIONS[name]
    values = [1.0, 3.0, 0.7, 1e-300, 1e300, 2.0**-1022]
    bits = [rules.encode(rules.F64, value) for value in values]
    for value, result in zip(
        values, evaluate(f"{name}.approx.ftz.f64", [(b | 0xFFFFFFFF,) for b in bits]), strict=True
    ):
        assert result & 0xFFFFFFFF == 0
        exact = function(rules.decode(rules.F64, rules.encode(rules.F64, value) >> 32 << 32))
        assert math.isclose(rules.decode(rules.F64, result), exact, rel_tol=2.0**-20)
