"""Products whose registers no wgmma.fence orders."""

from __future__ import annotations

import pytest

from flexfa4.emulator.decode import decode
from flexfa4.emulator.failures.program import UnfencedProductError
from flexfa4.emulator.ptx import parse
from tests.kernel_texts import kernel_text

FENCE = "wgmma.fence.sync.aligned;\n"
WAIT = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n"
OF_SHARED = (
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1, %r2, %r3, %r4}, %d1, %d2, %p1,"
    " 1, 1, 0, 0;\n"
)
OF_REGISTERS = (
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1, %r2, %r3, %r4},"
    " {%r5, %r6, %r7, %r8}, %d2, %p1, 1, 1, 0;\n"
)
SCALED = "mul.f32 %r1, %r1, %r9;\n"
PACKED = "cvt.rn.f16x2.f32 %r7, %r10, %r11;\n"
ROUND = "LOOP:\n{}@%p2 bra LOOP;\n"

ORDERED = {
    "computed before the fence": SCALED + PACKED + FENCE + OF_REGISTERS,
    "products of one accumulator": SCALED + FENCE + OF_SHARED + OF_SHARED,
    "other registers are computed": FENCE + OF_SHARED + PACKED + "mul.f32 %r10, %r1, %r1;\n",
    "A in registers is computed for a product of shared memory": FENCE + PACKED + OF_SHARED,
    "what was computed before is copied": SCALED + FENCE + "mov.b32 %r2, %r1;\n" + OF_SHARED,
    "constants": SCALED + FENCE + "mov.b32 %r1, 0f00000000;\n" + OF_SHARED,
    "descriptors are computed": FENCE + "add.s64 %d1, %d1, 2;\n" + OF_SHARED,
    "a fence in each round": ROUND.format(FENCE + OF_SHARED + WAIT + SCALED),
    "the accumulator is read only": ROUND.format(OF_SHARED + WAIT + "add.f32 %r10, %r10, %r1;\n"),
}
UNORDERED = {
    "a scaled accumulator": (FENCE + SCALED + OF_SHARED, "%r1"),
    "A in registers": (FENCE + PACKED + OF_REGISTERS, "%r7"),
    "a copy of what is computed": (
        FENCE + "mul.f32 %r20, %r1, %r9; mov.b32 %r3, %r20;\n" + OF_SHARED,
        "%r3",
    ),
    "a constant for some threads": (
        FENCE + SCALED + "@%p3 mov.b32 %r1, 0f00000000;\n" + OF_SHARED,
        "%r1",
    ),
    "from the round before": (FENCE + ROUND.format(OF_SHARED + WAIT + SCALED), "%r1"),
    "a fence on one way only": (
        SCALED + "@%p2 bra NEXT;\n" + FENCE + "NEXT:\n" + OF_SHARED,
        "%r1",
    ),
}


def load(code: str) -> bytes:
    """Decode a kernel."""
    return decode(parse(kernel_text(code + "ret;", "sm_90a")))


@pytest.mark.parametrize("name", ORDERED)
def test_registers_that_a_fence_orders_are_taken(name: str) -> None:
    assert load(ORDERED[name])


@pytest.mark.parametrize("name", UNORDERED)
def test_a_register_that_is_computed_behind_the_fence_is_reported(name: str) -> None:
    code, register = UNORDERED[name]
    with pytest.raises(UnfencedProductError, match=rf"\A{register} is computed") as caught:
        load(code)
    assert caught.value.where is not None and "wgmma.mma_async" in caught.value.where.text
