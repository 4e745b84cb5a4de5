"""How many registers the instructions of matrices and tensor memory take."""

from __future__ import annotations

import pytest

from flexfa4.emulator.ptx.architectures import BLACKWELL
from flexfa4.emulator.ptx.table import READER


@pytest.mark.parametrize(
    ("text", "operand", "count"),
    [
        # 128 lanes of 32 threads: rows times columns over the threads (PTX ISA, "tcgen05.ld")
        ("tcgen05.ld.sync.aligned.32x32b.x1.b32", "d", 1),
        ("tcgen05.ld.sync.aligned.32x32b.x128.b32", "d", 128),
        ("tcgen05.ld.sync.aligned.16x64b.x8.b32", "d", 8),
        ("tcgen05.ld.sync.aligned.16x128b.x16.b32", "d", 32),
        ("tcgen05.ld.sync.aligned.16x256b.x16.b32", "d", 64),
        ("tcgen05.ld.sync.aligned.16x32bx2.x4.b32", "d", 4),
        ("tcgen05.ld.red.sync.aligned.32x32b.x32.max.f32", "d", 32),
        ("tcgen05.st.sync.aligned.16x256b.x8.b32", "b", 32),
        # 64 x n results of 128 threads
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", "d", 4),
        ("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", "d", 128),
        ("wgmma.mma_async.sync.aligned.m64n128k16.f16.f16.f16", "d", 32),
        ("wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.u8", "d", 32),
        # fragments of a warp
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "a", 4),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "b", 2),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "c", 4),
        ("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", "d", 2),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "a", 4),
        ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32", "b", 2),
        ("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32", "a", 4),
        ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "d", 4),
        ("ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8", "d", 4),
        ("stmatrix.sync.aligned.m8n8.x2.shared.b16", "b", 2),
    ],
)
def test_vectors_have_the_length_that_the_shape_says(text: str, operand: str, count: int) -> None:
    operation = READER.operations(text)[0]
    assert operation.roles[operation.positions[operand]].count == count


def test_accumulators_of_wgmma_are_read_and_written() -> None:
    operation = READER.operations("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16")[0]
    assert operation.roles[0].access.value == "read and written"


@pytest.mark.parametrize(("group", "masks"), [(1, 4), (2, 8)])
def test_each_cta_has_128_bits_of_disabled_lanes(group: int, masks: int) -> None:
    operations = READER.operations(f"tcgen05.mma.cta_group::{group}.kind::tf32")
    counts = {
        operation.roles[operation.positions["disabled_lanes"]].count
        for operation in operations
        if "disabled_lanes" in operation.positions
    }
    assert counts == {masks}


def test_tensor_memory_is_blackwells_and_wgmma_hoppers() -> None:
    for form in READER.forms:
        if form.name.startswith("tcgen05."):
            assert form.targets <= BLACKWELL
        if form.name.startswith("wgmma."):
            assert not form.targets & BLACKWELL


def test_transposes_are_for_16_bit_types_and_operands_in_shared_memory() -> None:
    def names(text: str) -> set[tuple[str, ...]]:
        return {tuple(role.name for role in o.roles) for o in READER.operations(text)}

    head = ("d", "a_desc", "b_desc", "scale_d", "scale_a", "scale_b")
    assert names("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16") == {
        (*head, "trans_a", "trans_b"),
        ("d", "a", *head[2:], "trans_b"),
    }
    assert names("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3") == {
        head,
        ("d", "a", *head[2:]),
    }
