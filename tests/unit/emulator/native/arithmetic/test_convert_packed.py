"""Conversions to and from packed and narrow formats, against exact fractions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest

from tests import float_rules as rules
from tests.float_rules import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, NAN, TF32
from tests.ptx_programs import run_instruction
from tests.ptx_rules import evaluate

SMALL = {of.name: of for of in (E4M3, E5M2, E2M3, E3M2, E2M1)}
PLACE = {"e4m3": 8, "e5m2": 8, "e2m3": 8, "e3m2": 8, "e2m1": 4}
HALVES = {"f16": F16, "bf16": BF16}
# what NaN becomes: the format's NaN, or its greatest number
NANS = {"f16": 0x7FFF, "bf16": 0x7FFF, "tf32": 0x3FFFF, "e4m3": 0x7F, "e5m2": 0x7F}
NANS |= {"e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 0x7}


def narrowed(
    to: rules.Format,
    number: float,
    mode: str = "rn",
    *,
    relu: bool = False,
    finite: bool = False,
    random_bits: Fraction = Fraction(0),
) -> int:
    if relu and number <= 0:
        number = 0.0
    bits = rules.encode(to, number, mode, finite=finite, random_bits=random_bits)
    return NANS[to.name] if bits == NAN else bits


def f32_values(to: rules.Format, seed: str, count: int = 300) -> list[int]:
    """f32 of all kinds, with those at and beside the middle of numbers of a format."""
    values = list(itertools.islice(rules.operands(F32, seed), count))
    half = 1 << (F32.mantissa - to.mantissa - 1)
    for bits in itertools.islice(rules.operands(to, seed), count):
        number = rules.decode(to, bits)
        if math.isfinite(number):
            exact = rules.encode(F32, number)
            values += [exact, exact | half, exact | half | 1, (exact | half) - 1]
    return values


@pytest.mark.parametrize("flags", ["", ".relu", ".satfinite", ".relu.satfinite"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("to", HALVES.values())
def test_pairs_of_halves(to: rules.Format, mode: str, flags: str) -> None:
    opcode = f"cvt.{mode}{flags}.{to.name}x2.f32"
    values = f32_values(to, opcode)
    rows = list(itertools.pairwise(values))
    relu, finite = "relu" in flags, "satfinite" in flags
    one = {
        bits: narrowed(to, rules.decode(F32, bits), mode, relu=relu, finite=finite)
        for bits in values
    }
    for (a, b), found in zip(rows, evaluate(opcode, rows), strict=True):
        assert found == one[a] << 16 | one[b], f"{opcode} of {a:#x}, {b:#x}: {found:#x}"


@pytest.mark.parametrize("flags", [".relu", ".satfinite", ".relu.satfinite"])
@pytest.mark.parametrize("to", HALVES.values())
def test_single_halves_that_clamp(to: rules.Format, flags: str) -> None:
    opcode = f"cvt.rn{flags}.{to.name}.f32"
    values = f32_values(to, opcode)
    relu, finite = "relu" in flags, "satfinite" in flags
    for bits, found in zip(values, evaluate(opcode, [(b,) for b in values]), strict=True):
        wanted = narrowed(to, rules.decode(F32, bits), relu=relu, finite=finite)
        assert found == wanted, (opcode, hex(bits))


@pytest.mark.parametrize("words", ["rna", "rna.satfinite", "rn", "rz", "rn.relu", "rz.satfinite"])
def test_tf32_is_in_the_upper_bits(words: str) -> None:
    opcode = f"cvt.{words}.tf32.f32"
    mode, relu, finite = words.split(".")[0], "relu" in words, "satfinite" in words
    values = f32_values(TF32, opcode)
    for bits, found in zip(values, evaluate(opcode, [(b,) for b in values]), strict=True):
        wanted = narrowed(TF32, rules.decode(F32, bits), mode, relu=relu, finite=finite) << 13
        assert found == wanted, f"{opcode} of {bits:#x}: {found:#x}, not {wanted:#x}"


def byte_results(opcode: str, operands: str, inputs: dict[str, list[int]]) -> list[int]:
    """Run a conversion whose result is a register of 8 bits."""
    return run_instruction(
        f"{opcode} small, {operands}; cvt.u16.u8 d, small;",
        inputs=inputs,
        outputs="d:b16",
        registers=".reg .b8 small;",
        threads=-(-len(next(iter(inputs.values()))) // 32) * 32,
    )["d"]


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("to", SMALL.values())
def test_small_formats_of_f32(to: rules.Format, relu: str) -> None:
    opcode = f"cvt.rn.satfinite{relu}.{to.name}x2.f32"
    values = f32_values(to, opcode, 150)
    rows = list(itertools.pairwise(values))[:1000]
    one = {
        bits: narrowed(to, rules.decode(F32, bits), relu=bool(relu), finite=True) for bits in values
    }
    if to is E2M1:
        columns = {"a:b32": [a for a, _ in rows], "b:b32": [b for _, b in rows]}
        results = byte_results(opcode, "a, b", columns)
    else:
        results = evaluate(opcode, rows)
    for (a, b), found in zip(rows, results, strict=True):
        wanted = one[a] << PLACE[to.name] | one[b]
        assert found == wanted, f"{opcode} of {a:#x}, {b:#x}: {found:#x}, not {wanted:#x}"


@pytest.mark.parametrize("to", SMALL.values())
def test_small_formats_of_f16(to: rules.Format) -> None:
    opcode = f"cvt.rn.satfinite.{to.name}x2.f16x2"
    values = list(itertools.islice(rules.operands(F16, opcode), 500))
    one = {bits: narrowed(to, rules.decode(F16, bits), finite=True) for bits in values}
    rows = [(a << 16 | b,) for a, b in itertools.pairwise(values)]
    if to is E2M1:
        results = byte_results(opcode, "a", {"a:b32": [row[0] for row in rows]})
    else:
        results = evaluate(opcode, rows)
    for (a, b), found in zip(itertools.pairwise(values), results, strict=True):
        assert found == one[a] << PLACE[to.name] | one[b], (opcode, hex(a), hex(b), hex(found))


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("of", SMALL.values())
def test_f16_of_small_formats_is_exact_for_every_code(of: rules.Format, relu: str) -> None:
    opcode, place = f"cvt.rn{relu}.f16x2.{of.name}x2", PLACE[of.name]
    codes = range(2 * of.sign)
    one = [narrowed(F16, rules.decode(of, code), relu=bool(relu)) for code in codes]
    pairs = [a << place | codes[-1 - a] for a in codes]
    if of is E2M1:
        found = run_instruction(
            f"cvt.u8.u16 small, a; {opcode} d, small;",
            inputs={"a:b16": pairs},
            outputs="d:b32",
            registers=".reg .b8 small;",
            threads=32,
        )["d"]
    else:
        found = evaluate(opcode, [(pair,) for pair in pairs])
    assert found == [one[a] << 16 | one[codes[-1 - a]] for a in codes]


# ---- stochastic rounding ------------------------------------------------------------------------


@pytest.mark.parametrize(("to", "size"), [(F16, 13), (BF16, 16)])
def test_random_bits_of_halves_are_those_of_their_half(to: rules.Format, size: int) -> None:
    opcode = f"cvt.rs.{to.name}x2.f32"
    stream, randoms = rules.operands(F32, opcode), rules.operands(F32, "random bits")
    rows = [(next(stream), next(stream), next(randoms) ^ 0x5A5A5A5A) for _ in range(300)]
    used = (1 << size) - 1
    for (a, b, bits), found in zip(rows, evaluate(opcode, rows), strict=True):
        upper, lower = Fraction(bits >> 16 & used, 1 << size), Fraction(bits & used, 1 << size)
        wanted = narrowed(to, rules.decode(F32, a), "rs", random_bits=upper) << 16
        wanted |= narrowed(to, rules.decode(F32, b), "rs", random_bits=lower)
        assert found == wanted, f"{a:#x}, {b:#x}, {bits:#x}: {found:#x}, not {wanted:#x}"


@pytest.mark.parametrize("to", SMALL.values())
def test_random_bits_of_four_numbers(to: rules.Format) -> None:
    stream, randoms = rules.operands(F32, f"quad {to.name}"), rules.operands(F32, "random bits")
    columns = {f"{name}:b32": [next(stream) for _ in range(256)] for name in "abef"}
    columns["r:b32"] = [next(randoms) ^ 0x5A5A5A5A for _ in range(256)]
    size = 4 * PLACE[to.name]
    found = run_instruction(
        f"cvt.rs.satfinite.{to.name}x4.f32 d, {{a, b, e, f}}, r;",
        inputs=columns,
        outputs=f"d:b{size}",
        threads=256,
    )["d"]
    for i, result in enumerate(found):
        bits = columns["r:b32"][i]
        if to is E2M1:  # the upper bytes of both halves, then the lower ones
            shared = [bits >> 24 << 8 | bits >> 8 & 0xFF, (bits >> 16 & 0xFF) << 8 | bits & 0xFF]
        else:
            shared = [bits >> 16, bits & 0xFFFF]
        wanted = 0
        for place, name in enumerate("abef"):
            random_bits = Fraction(shared[place // 2], 1 << 16)
            number = rules.decode(F32, columns[f"{name}:b32"][i])
            code = narrowed(to, number, "rs", finite=True, random_bits=random_bits)
            wanted = wanted << PLACE[to.name] | code
        assert result == wanted, (i, hex(result), hex(wanted))


# ---- scales -------------------------------------------------------------------------------------


def scale_of(number: float, mode: str, finite: bool) -> int:
    """A power of two from 2^-127 on, of the absolute value."""
    if math.isnan(number):
        return 0xFF
    magnitude = abs(number)
    if math.isinf(magnitude):
        return 0xFE if finite else 0xFF
    if magnitude < 2.0**-127:
        return 0
    fraction, exponent = math.frexp(magnitude)
    code = exponent - 1 + 127 + (mode == "rp" and fraction > 0.5)
    return code if code <= 0xFE else 0xFE if finite else 0xFF


@pytest.mark.parametrize("finite", ["", ".satfinite"])
@pytest.mark.parametrize("mode", ["rz", "rp"])
def test_scales_are_powers_of_two(mode: str, finite: str) -> None:
    opcode = f"cvt.{mode}{finite}.ue8m0x2.f32"
    fixed = [0, 1, 0x003FFFFF, 0x00400000, 0x00400001, 0x007FFFFF, 0x00800000, 0x3F800000]
    fixed += [0x3F800001, 0x7F000000, 0x7F000001, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0xC0400000]
    values = fixed + list(itertools.islice(rules.operands(F32, opcode), 300))
    rows = list(itertools.pairwise(values))
    one = {bits: scale_of(rules.decode(F32, bits), mode, bool(finite)) for bits in values}
    for (a, b), found in zip(rows, evaluate(opcode, rows), strict=True):
        assert found == one[a] << 8 | one[b], f"{a:#x}, {b:#x}: {found:#x}"


def test_scales_of_bf16_and_back() -> None:
    pairs = [(0x3F80 << 16 | 0x4040,), (0x7FC0 << 16 | 0x0040,)]
    assert evaluate("cvt.rp.satfinite.ue8m0x2.bf16x2", pairs) == [127 << 8 | 129, 0xFF00]
    codes = [(a << 8 | 255 - a,) for a in range(256)]
    found = evaluate("cvt.rn.bf16x2.ue8m0x2", codes)
    one = [0x7FFF if a == 255 else rules.encode(BF16, math.ldexp(1.0, a - 127)) for a in range(256)]
    assert found == [one[a] << 16 | one[255 - a] for a in range(256)]
