"""min and max of floats, by the pseudocode of the PTX ISA."""

from __future__ import annotations

import itertools
import math

import pytest

from tests import float_rules as rules
from tests.float_rules import BF16, F16, F32, F64
from tests.ptx_programs import run_instruction
from tests.ptx_rules import evaluate

FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64, "f16x2": F16, "bf16x2": BF16}
FLAGS = [
    "".join(flags) for flags in itertools.product(("", ".ftz"), ("", ".NaN"), ("", ".xorsign.abs"))
]
BRAIN_FLAGS = [flags for flags in FLAGS if "ftz" not in flags]
OPCODES = [
    f"{op}{flags}.{kind}"
    for op in ("min", "max")
    for kind, all_flags in (("f32", FLAGS), ("f16", FLAGS), ("bf16", BRAIN_FLAGS), ("f64", [""]))
    for flags in all_flags
]
ROWS = 320


def canonical(of: rules.Format) -> int:
    return of.sign - 1


def first_of_two(of: rules.Format, words: list[str], a: int, b: int) -> int:
    """The lesser or greater of two numbers, as bits."""
    x, y = rules.decode(of, a), rules.decode(of, b)
    if math.isnan(x) or math.isnan(y):
        both = math.isnan(x) and math.isnan(y)
        return canonical(of) if both or "NaN" in words else b if math.isnan(x) else a
    # -0 is less than +0
    key_a, key_b = (x, math.copysign(1, x)), (y, math.copysign(1, y))
    return a if (key_a > key_b) == (words[0] == "max") else b


def expected(of: rules.Format, words: list[str], row: tuple[int, ...]) -> int:
    read = [
        rules.encode(of, rules.flushed(of, rules.decode(of, bits)))
        if "ftz" in words and rules.decode(of, bits) == rules.decode(of, bits)
        else bits
        for bits in row
    ]
    if "abs" in words:
        read = [bits & ~of.sign for bits in read]
    result = read[0]
    for bits in read[1:]:
        result = first_of_two(of, words, result, bits)
    if "xorsign" in words and result != canonical(of):
        result |= (row[0] ^ row[1]) & of.sign
    return result


@pytest.mark.parametrize("opcode", OPCODES)
def test_extremes_follow_the_pseudocode(opcode: str) -> None:
    words = opcode.split(".")
    of = FORMATS[words[-1]]
    stream = rules.operands(of, opcode)
    rows = [tuple(itertools.islice(stream, 2)) for _ in range(ROWS)]
    rows += [(0, of.sign), (of.sign, 0), (0, 0), (canonical(of), 0), (1, of.sign | 1)]
    for row, found in zip(rows, evaluate(opcode, rows), strict=True):
        wanted = expected(of, words, row)
        if of is F64 and wanted == canonical(of):
            assert (found & ~of.sign) > of.infinity
        else:
            assert found == wanted, f"{opcode} of {list(map(hex, row))}: {found:#x}"


@pytest.mark.parametrize("flags", ["", ".NaN", ".abs", ".ftz.NaN.abs"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_extremes_of_three_are_those_of_two_twice(op: str, flags: str) -> None:
    opcode = f"{op}{flags}.f32"
    stream = rules.operands(F32, opcode)
    rows = [tuple(itertools.islice(stream, 3)) for _ in range(ROWS)]
    found = run_instruction(
        f"{opcode} d, a, b, c;",
        inputs={f"{name}:b32": [row[i] for row in rows] for i, name in enumerate("abc")},
        outputs="d:b32",
        threads=ROWS,
    )["d"]
    for row, result in zip(rows, found, strict=True):
        assert result == expected(F32, opcode.split("."), row), list(map(hex, row))


@pytest.mark.parametrize("opcode", ["min.f16x2", "max.NaN.f16x2", "max.xorsign.abs.bf16x2"])
def test_extremes_of_pairs_are_two(opcode: str) -> None:
    words = opcode.split(".")
    of = FORMATS[words[-1]]
    stream = rules.operands(of, opcode)
    rows = [tuple(itertools.islice(stream, 4)) for _ in range(ROWS)]
    found = evaluate(opcode, [(a | c << 16, b | d << 16) for a, b, c, d in rows])
    for (a, b, c, d), result in zip(rows, found, strict=True):
        assert result == expected(of, words, (a, b)) | expected(of, words, (c, d)) << 16
