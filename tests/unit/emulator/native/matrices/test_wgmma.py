"""wgmma: every type, shape and layout of the factors; groups, waits and schedules; refusals."""

from __future__ import annotations

import itertools

import pytest
import torch

from flexfa4.emulator import EmulationError
from flexfa4.emulator.failures.machine import NotAlignedError, NotUniformError
from flexfa4.emulator.failures.matrices import SharedDescriptorError
from flexfa4.emulator.failures.memory import OutOfBoundsError, UninitialisedReadError
from flexfa4.emulator.failures.program import UnfencedProductError
from flexfa4.emulator.failures.warp_matrices import (
    WarpgroupError,
    WgmmaFenceError,
    WgmmaScaleError,
    WgmmaTransposeError,
)
from flexfa4.emulator.ptx.table import READER
from tests.fragments import DTYPES, exact, integers
from tests.matrix_programs import (
    DECLARE,
    FENCE,
    NONE,
    ROWS,
    SW32,
    SW64,
    SW128,
    THREADS,
    Factors,
    factors,
    wgmma,
)
from tests.ptx_programs import run_program
from tests.tensor_core_programs import Layout

SCHEDULES = ["eager", "late", "random", "priority"]
FP8, INT8 = ("e4m3", "e5m2"), ("s8", "u8")
TYPES = [
    *((d, "f16", "f16") for d in ("f32", "f16")),
    ("f32", "bf16", "bf16"),
    ("f32", "tf32", "tf32"),
    *((d, a, b) for d in ("f32", "f16") for a, b in itertools.product(FP8, FP8)),
    *(("s32", a, b) for a, b in itertools.product(INT8, INT8)),
]


def test_these_are_all_forms_of_the_table() -> None:
    wanted = {id(form) for form in READER.forms if form.name.startswith("wgmma.mma_async")}
    found = {id(o.form) for types in TYPES for o in READER.operations(wgmma(16, *types))}
    assert found == wanted


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize("d,a,b", TYPES)
def test_products_of_integers_are_exact(d: str, a: str, b: str, in_registers: bool) -> None:
    product = factors(wgmma(24, d, a, b), a=None if in_registers else (SW128, False))
    found, _ = product.run()
    expected = exact(product.a, product.b)
    assert d != "f16" or expected.abs().max() < 2048
    assert torch.equal(found, expected.to(found.dtype))


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_n_is_any_multiple_of_eight(n: int) -> None:
    product = factors(wgmma(n, "f32", "bf16", "bf16"))
    found, _ = product.run()
    assert torch.equal(found, exact(product.a, product.b).float())


@pytest.mark.parametrize("n", [8, 24, 32, 48, 96, 224, 256])
def test_integers_have_their_own_sizes(n: int) -> None:
    product = factors(wgmma(n, "s32", "s8", "u8"))
    found, _ = product.run()
    assert torch.equal(found, exact(product.a, product.b).to(torch.int32))


LAYOUTS = [(swizzle, mn) for swizzle in (NONE, SW32, SW64, SW128) for mn in (False, True)]


@pytest.mark.parametrize("b", LAYOUTS)
@pytest.mark.parametrize("a", [*LAYOUTS, None])
def test_factors_lie_in_any_layout(a: tuple[int, bool] | None, b: tuple[int, bool]) -> None:
    product = factors(wgmma(128, "f32", "f16", "f16"), a, b)
    found, _ = product.run(check=())
    assert torch.equal(found, exact(product.a, product.b).float())


@pytest.mark.parametrize("swizzle", [NONE, SW32, SW64, SW128])
@pytest.mark.parametrize("type_", ["tf32", "e4m3"])
def test_types_of_other_sizes_lie_along_k(type_: str, swizzle: int) -> None:
    product = factors(wgmma(40, "f32", type_, type_), (swizzle, False), (swizzle, False))
    found, _ = product.run()
    assert torch.equal(found, exact(product.a, product.b).float())


@pytest.mark.parametrize("mn", [False, True])
def test_strides_may_leave_gaps(mn: bool) -> None:
    layout = Layout(NONE, 512, 1152, mn) if mn else Layout(NONE, 144, 288)
    product = factors(wgmma(16, "f32", "f16", "f16"), (NONE, False), signs=(1, 1))
    product = Factors(product.opcode, product.a, product.b, product.a_layout, layout)
    found, _ = product.run()
    assert torch.equal(found, exact(product.a, product.b).float())


def test_a_step_along_k_moves_the_start_within_a_swizzled_line() -> None:
    a, b = integers("f16", ROWS, 64, 1), integers("f16", 32, 64, 2)
    layout = Layout.compact(SW128, False, ROWS, 2)
    whole = Factors(wgmma(32, "f32", "f16", "f16"), a, b, layout, layout)
    step = "add.u64 a_desc, a_desc, 2; add.u64 b_desc, b_desc, 2; setp.eq.u32 old, 0, 0;"
    found, _ = whole.run("{fence} {product}" + (step + "{product}") * 3 + "{done}")
    assert torch.equal(found, exact(a, b).float())


@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1), (-1, -1)])
@pytest.mark.parametrize("d", ["f32", "f16"])
def test_signs_and_the_old_result(d: str, signs: tuple[int, int]) -> None:
    old = integers("s8", ROWS, 16, 5).to(DTYPES[d])
    product = factors(wgmma(16, d, "f16", "f16"), old=old, signs=signs)
    found, _ = product.run()
    expected = exact(product.a, product.b) * signs[0] * signs[1] + old.double()
    assert torch.equal(found, expected.to(found.dtype))


@pytest.mark.parametrize("saturate", [False, True])
def test_sums_of_integers_wrap_or_saturate(saturate: bool) -> None:
    old = torch.full((ROWS, 8), 2**31 - 1, dtype=torch.int32)
    product = Factors(
        wgmma(8, "s32", "u8", "u8", ".satfinite" if saturate else ""),
        torch.full((ROWS, 32), 255, dtype=torch.uint8),
        torch.full((8, 32), 255, dtype=torch.uint8),
        Layout.compact(NONE, False, ROWS, 1),
        Layout.compact(NONE, False, 8, 1),
        old=old,
        signs=None,
    )
    found, _ = product.run()
    wrapped = torch.full_like(old, -(2**31) - 1 + 32 * 255 * 255)
    assert torch.equal(found, old if saturate else wrapped)


@pytest.mark.parametrize("schedule,seed", [("eager", 0), ("late", 0), *(
    (schedule, seed) for schedule in ("random", "priority") for seed in range(4))])  # fmt: skip
def test_every_schedule_computes_the_same(schedule: str, seed: int) -> None:
    product = factors(wgmma(64, "f32", "f16", "f16"), a=None)
    code = (
        "{fence} {product} wgmma.commit_group.sync.aligned; setp.eq.u32 old, 0, 0;"
        "{product} wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;"
        "wgmma.wait_group.sync.aligned 0;"
    )
    found, _ = product.run(code, schedule=schedule, seed=seed)
    assert torch.equal(found, 2 * exact(product.a, product.b).float())


def test_registers_are_read_and_written_when_the_product_happens() -> None:
    product = factors(wgmma(8, "f32", "f16", "f16"), a=None)
    early = "{fence} {product} mov.b32 a0, 0; mov.b32 a1, 0; mov.b32 a2, 0; mov.b32 a3, 0; {done}"
    expected = exact(product.a, product.b).float()
    assert torch.equal(product.run(early, schedule="eager")[0], expected)
    assert (product.run(early, schedule="late")[0] == 0).all()
    unread = "{fence} {product} mov.b32 t, d0; {done} mov.b32 d0, t;"
    assert not torch.equal(product.run(unread, schedule="late")[0], expected)


def test_a_wait_for_all_but_some_lets_these_wait() -> None:
    product = factors(wgmma(8, "f32", "f16", "f16"))
    group = "{product} wgmma.commit_group.sync.aligned;"
    wait = "wgmma.wait_group.sync.aligned {};"
    # the second product adds; what stands after the wait for one is the first
    code = (
        "{fence}" + group + "setp.eq.u32 old, 0, 0;" + group + wait.format(1) + "mov.b32 t, d0;"
        + wait.format(0) + "mov.b32 d0, t;"
    )  # fmt: skip
    once = exact(product.a, product.b).float()
    found, _ = product.run(code, schedule="late")
    assert torch.equal(found[:, 1::2], 2 * once[:, 1::2])
    # d0 is of rows 0 to 7 of each warp; the last warp's first product is what all waited for
    assert torch.equal(found[48:56, ::2], once[48:56, ::2])


def test_a_product_is_counted_once_for_its_warpgroup() -> None:
    product = factors(wgmma(8, "f32", "f16", "f16"))
    _, run = product.run("{fence} {product} {product} {done}")
    assert run.matrices == {product.opcode: 2}


FAILURES: list[tuple[str, type[EmulationError], str]] = [
    ("or.b64 b_desc, b_desc, 0x2000000000000; {fence} {product}", SharedDescriptorError, "b_desc"),
    ("or.b64 a_desc, a_desc, 0x4000; {fence} {product}", SharedDescriptorError, "a_desc"),
    ("mov.b64 b_desc, 0x3fff; {fence} {product} {done}", OutOfBoundsError, "shared"),
    ("mov.u32 t, %laneid; setp.eq.u32 old, t, 3; {fence} {product}", NotUniformError, "lane"),
    (
        "mov.u32 t, %laneid; setp.lt.u32 more, t, 16; {fence} @more {product}",
        NotAlignedError,
        "0xffff",
    ),
    ("{product} {done}", UnfencedProductError, "d0 is computed"),
    (
        "mov.b32 d0, 0; mov.b32 d1, 0; mov.b32 d2, 0; mov.b32 d3, 0; {product} {done}",
        WgmmaFenceError,
        "no wgmma.fence",
    ),
]


@pytest.mark.parametrize("code,error,text", FAILURES)
def test_a_wrong_operand_is_refused(code: str, error: type[EmulationError], text: str) -> None:
    with pytest.raises(error, match=text):
        factors(wgmma(8, "f32", "f16", "f16")).run(code)


@pytest.mark.parametrize("threads", [32, 96, 160])
def test_a_warpgroup_is_whole(threads: int) -> None:
    start = "mov.u32 d, %tid.x; setp.ge.u32 p, d, 128; cvt.u64.u32 a, d;"
    others = "@!p bra J;" if threads > THREADS else ""
    product = f"{wgmma(8, 'f32', 'f16', 'f16')} {{d, d, d, d}}, a, a, p, 1, 1, 0, 0; J:"
    with pytest.raises(WarpgroupError, match=f"block of {threads // 32} warps"):
        run_program(
            start + others + FENCE + product,
            registers=".reg .b32 d; .reg .b64 a; .reg .pred p;",
            threads=threads,
            target="sm_90a",
        )


@pytest.mark.parametrize("signs", [(2, 1), (1, 0)])
def test_a_scale_is_a_sign(signs: tuple[int, int]) -> None:
    with pytest.raises(WgmmaScaleError):
        factors(wgmma(8, "f32", "f16", "f16"), signs=signs).run()


def test_a_transposition_is_a_flag() -> None:
    product = factors(wgmma(8, "f32", "f16", "f16"))
    text = product.instruction(4).replace("{", "{{").replace("}", "}}").removesuffix("0;") + "2;"
    with pytest.raises(WgmmaTransposeError, match="trans_b is 2"):
        product.run("{fence}" + text)


def test_bytes_that_nobody_wrote_are_not_multiplied() -> None:
    opcode = wgmma(8, "f32", "f16", "f16")
    text = f"{FENCE} {opcode} {{d, d, d, d}}, a, a, p, 1, 1, 0, 0;"
    with pytest.raises(UninitialisedReadError):
        run_program(
            "mov.u32 d, room; shr.u32 d, d, 4; cvt.u64.u32 a, d; setp.ne.u32 p, d, d;" + text,
            declare=DECLARE, registers=".reg .b32 d; .reg .b64 a; .reg .pred p;",
            threads=THREADS, target="sm_90a",
        )  # fmt: skip
