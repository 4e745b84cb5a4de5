"""mma.sync: every shape and type, roundings, saturation, aliases."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from flexfa4.emulator.failures.machine import NotAlignedError
from flexfa4.emulator.ptx.table import READER
from tests.fragments import (
    DTYPES,
    exact,
    integers,
    matrix_of_d,
    registers_of_a,
    registers_of_b,
    registers_of_d,
)
from tests.matrix_programs import held, multiply, names
from tests.ptx_programs import run_instruction, run_program

FP8, INT8 = ("e4m3", "e5m2"), ("s8", "u8")
OPCODES = [
    f"mma.sync.aligned.m16n8k{k}.row.col{saturation}.{d}.{a}.{b}.{d}"
    for sizes, results, pairs, saturations in (
        ((8, 16), ("f16", "f32"), [("f16", "f16")], [""]),
        ((8, 16), ("f32",), [("bf16", "bf16")], [""]),
        ((4, 8), ("f32",), [("tf32", "tf32")], [""]),
        ((16, 32), ("f16", "f32"), list(itertools.product(FP8, FP8)), [""]),
        ((16, 32), ("s32",), list(itertools.product(INT8, INT8)), ["", ".satfinite"]),
    )
    for k, d, (a, b), saturation in itertools.product(sizes, results, pairs, saturations)
]
F16 = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16"
F32 = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
TF32 = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"


def types_of(opcode: str) -> tuple[int, str, str, str]:
    """Return k and the types of D, A and B."""
    parts = opcode.split(".")
    return int(parts[3].split("k")[1]), parts[-4], parts[-3], parts[-2]


def test_these_are_all_forms_of_the_table() -> None:
    forms = [form for form in READER.forms if form.name == "mma.sync.aligned"]
    assert sum(len(READER.operations(opcode)) == 1 for opcode in OPCODES) == len(OPCODES)
    assert {id(READER.operations(opcode)[0].form) for opcode in OPCODES} == set(map(id, forms))


@pytest.mark.parametrize("opcode", OPCODES)
def test_products_of_integers_are_exact(opcode: str) -> None:
    k, d_type, a_type, b_type = types_of(opcode)
    a, b = integers(a_type, 16, k, 1), integers(b_type, 8, k, 2)
    c = integers("s8", 16, 8, 3).to(DTYPES[d_type])
    expected = exact(a, b) + c.to(torch.float64)
    if d_type == "f16":
        assert expected.abs().max() < 2048
    assert torch.equal(multiply(opcode, a, b, c), expected.to(c.dtype))


@pytest.mark.parametrize("saturate", [False, True])
def test_sums_of_integers_wrap_or_saturate(saturate: bool) -> None:
    a = torch.full((16, 32), 127, dtype=torch.int8)
    b = torch.full((8, 32), 127, dtype=torch.int8)
    a[8:] = -128
    c = torch.full((16, 8), 2**31 - 1, dtype=torch.int32)
    c[8:] = -(2**31)
    suffix = ".satfinite" if saturate else ""
    found = multiply(f"mma.sync.aligned.m16n8k32.row.col{suffix}.s32.s8.s8.s32", a, b, c)
    above, below = 32 * 127 * 127, 32 * -128 * 127
    if saturate:
        assert torch.equal(found, c)
    else:
        assert found[0, 0] == -(2**31) - 1 + above
        assert found[8, 0] == 2**31 + below


@pytest.mark.parametrize("opcode", [F16, F32])
def test_the_sum_is_rounded_once(opcode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(16, 16, generator=generator).half()
    b = torch.randn(8, 16, generator=generator).half()
    c = torch.randn(16, 8, generator=generator).to(DTYPES[types_of(opcode)[1]])
    found = multiply(opcode, a, b, c)
    expected = exact(a, b) + c.double()
    # f64 sums of at most 17 numbers of 22 bits differ from the exact one far below half a unit
    assert torch.equal(found, expected.to(c.dtype))


def test_tf32_has_ten_bits_of_mantissa() -> None:
    low = 0x1FFF
    a, b = integers("tf32", 16, 8, 1), integers("tf32", 8, 8, 2)
    c = torch.zeros(16, 8)
    rough_a, rough_b = ((x.view(torch.int32) | low).view(torch.float32) for x in (a, b))
    assert torch.equal(multiply(TF32, rough_a, rough_b, c), exact(a, b).float())


@pytest.mark.parametrize("opcode", [F16, F32])
def test_infinity_times_zero_is_the_canonical_nan(opcode: str) -> None:
    a, b = torch.zeros(16, 16).half(), torch.zeros(8, 16).half()
    a[0, 0], a[1, 0], a[2, 3] = math.inf, 65504, math.nan
    b[1, 0], b[2, 0] = 2, -2
    c = torch.zeros(16, 8, dtype=DTYPES[types_of(opcode)[1]])
    found = multiply(opcode, a, b, c)
    assert math.isnan(found[0, 0])
    assert found[0, 1] == math.inf
    assert found[0, 2] == -math.inf
    assert found[1, 1] == (math.inf if c.dtype == torch.float16 else 2 * 65504)
    half = c.dtype == torch.float16
    bits = found.view(torch.int16 if half else torch.int32)
    assert set(bits[found.isnan()].tolist()) == {0x7FFF if half else 0x7FFFFFFF}
    assert found[2].isnan().all()
    assert (found[3:] == 0).all()


def test_d_may_be_any_of_the_operands() -> None:
    a, b = integers("f16", 16, 16, 1), integers("f16", 8, 16, 2)
    c = integers("s8", 16, 8, 3).half()
    expected = (exact(a, b) + c.double()).half()
    inputs = {
        **held("a", registers_of_a(a)),
        **held("b", registers_of_b(b)),
        **held("c", registers_of_d(c)),
    }
    for d in (["c0", "c1"], ["c1", "c0"], ["a3", "b0"]):
        found = run_instruction(
            f"{F16} {{{d[0]}, {d[1]}}}, {names('a', 4)}, {names('b', 2)}, {names('c', 2)};",
            inputs,
            f"{d[0]}:b32 {d[1]}:b32",
            target="sm_90a",
        )
        assert torch.equal(matrix_of_d([found[name] for name in d], torch.float16), expected)


def test_a_product_is_counted_by_its_opcode() -> None:
    zero = "mov.b32 a, 0; "
    operands = "{d0, d1, d2, d3}, {a, a, a, a}, {a, a}, {d0, d1, d2, d3}"
    _, run = run_program(
        zero + f"{F32} {operands}; {F32} {operands};",
        outputs="d0:b32 d1:b32 d2:b32 d3:b32",
        registers=".reg .b32 a;",
        threads=64,
    )
    assert run.matrices == {F32: 4}


def test_the_whole_warp_takes_part() -> None:
    operands = "{d, d, d, d}, {d, d, d, d}, {d, d}, {d, d, d, d}"
    code = f"mov.u32 d, %laneid; setp.lt.u32 p, d, 16; @p {F32} {operands};"
    with pytest.raises(NotAlignedError, match="0xffff"):
        run_instruction(code, outputs="d:b32", registers=".reg .pred p;")
