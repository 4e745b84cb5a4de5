"""Loads and stores of tensor memory: which thread has which cell.

The layouts are those of the PTX ISA's figures, written down as lane and column of each register.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch

from flexfa4.emulator.errors import EmulationError
from flexfa4.emulator.failures.matrices import (
    TensorBoundsError,
    TensorLanesError,
    UninitialisedTensorError,
)
from flexfa4.emulator.kernel import load

COLUMNS = 128


def cell_of(shape: str, thread: int, register: int) -> tuple[int, int]:
    """Return lane and column, from the address on; columns are of 32 bits."""
    row, quarter = divmod(thread, 4)
    match shape:
        case "32x32b":
            return thread, register
        case "16x64b":  # neighbouring threads have rows 8 apart
            return row + 8 * (thread & 1), (thread >> 1 & 1) + 2 * register
        case "16x128b":
            return row + 8 * (register & 1), quarter + 4 * (register >> 1)
        case "16x256b":
            column = 2 * quarter + (register & 1) + 8 * (register >> 2)
            return row + 8 * (register >> 1 & 1), column
    raise AssertionError(shape)


PER_TIME = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}
SHAPES = [(shape, times) for shape in PER_TIME for times in (1, 2, 8)]


def registers(shape: str, times: int) -> int:
    return PER_TIME[shape] * times


def vector(count: int) -> str:
    return "{" + ", ".join(f"%v{i}" for i in range(count)) + "}"


def kernel_text(inside: str, target: str = "sm_100a", warps: int = 4) -> str:
    """A kernel in which each warp does something with its part of tensor memory.

    %d1 and %d2 are the addresses of a row for this thread, of 128 words, in input and output;
    %r10 is the address of the warp's part of tensor memory; %r0 is the thread.
    """
    return f"""
.version 9.0
.target {target}
.address_size 64
.visible .entry program(.param .u64 input, .param .u64 output)
{{
    .reg .pred %p<4>;
    .reg .b32 %r<20>;
    .reg .b32 %v<128>;
    .reg .b64 %d<8>;
    .shared .align 4 .b32 address;
    mov.u32 %r0, %tid.x;
    shr.u32 %r2, %r0, 5;
    ld.param.u64 %d1, [input];
    ld.param.u64 %d2, [output];
    mul.wide.u32 %d3, %r0, 512;
    add.u64 %d1, %d1, %d3;
    add.u64 %d2, %d2, %d3;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra ALLOCATED;
    mov.u32 %r4, 128;
    tcgen05.alloc.cta_group::1.sync.aligned.b32 [address], %r4;
ALLOCATED:
    barrier.sync 0;
    ld.shared.b32 %r8, [address];
    and.b32 %r9, %r2, 3;
    shl.b32 %r9, %r9, 21;
    add.u32 %r10, %r8, %r9;
{inside}
    barrier.sync 0;
    @%p1 bra DONE;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r8, 128;
DONE:
    ret;
}}
"""


def fill() -> str:
    """Store the thread's row of the input in its lane, all 128 columns."""
    lines = [f"    ld.global.b32 %v{i}, [%d1+{4 * i}];" for i in range(COLUMNS)]
    lines.append(f"    tcgen05.st.sync.aligned.32x32b.x128.b32 [%r10], {vector(COLUMNS)};")
    lines.append("    tcgen05.wait::st.sync.aligned;")
    return "\n".join(lines)


def write_out(count: int) -> str:
    return "\n".join(f"    st.global.b32 [%d2+{4 * i}], %v{i};" for i in range(count))


def run(inside: str, cells: torch.Tensor, target: str = "sm_100a", **options: Any) -> torch.Tensor:
    result = torch.zeros(128, COLUMNS, dtype=torch.int32)
    load(kernel_text(inside, target)).run(grid=1, block=128, args=[cells, result], **options)
    return result


def cells() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-(2**31), 2**31, (128, COLUMNS), generator=generator).int()


def loaded(memory: torch.Tensor, shape: str, times: int, lane: int, column: int) -> torch.Tensor:
    """What the threads of all warps get, [128, registers]."""
    count = registers(shape, times)
    out = torch.zeros(128, count, dtype=torch.int32)
    for thread in range(128):
        for register in range(count):
            row, col = cell_of(shape, thread % 32, register)
            out[thread, register] = memory[thread // 32 * 32 + lane + row, column + col]
    return out


@pytest.mark.parametrize("shape,times", SHAPES)
def test_a_load_gives_each_thread_its_cells(shape: str, times: int) -> None:
    lane = 0 if shape == "32x32b" else 16
    count = registers(shape, times)
    inside = f"""
{fill()}
    add.u32 %r11, %r10, {lane << 16 | 5};
    tcgen05.ld.sync.aligned.{shape}.x{times}.b32 {vector(count)}, [%r11];
    tcgen05.wait::ld.sync.aligned;
{write_out(count)}
"""
    memory = cells()
    out = run(inside, memory)
    assert torch.equal(out[:, :count], loaded(memory, shape, times, lane, 5))


@pytest.mark.parametrize("shape,times", SHAPES)
def test_a_store_is_the_reverse_of_a_load(shape: str, times: int) -> None:
    """Cells go through registers to another place, and are read there by 32x32b."""
    lane = 0 if shape == "32x32b" else 16
    count = registers(shape, times)
    inside = f"""
{fill()}
    add.u32 %r11, %r10, {lane << 16};
    tcgen05.ld.sync.aligned.{shape}.x{times}.b32 {vector(count)}, [%r11];
    tcgen05.st.sync.aligned.{shape}.x{times}.b32 [%r11 + 64], {vector(count)};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x128.b32 {vector(128)}, [%r10];
{write_out(128)}
"""
    memory = cells()
    expected = memory.clone()
    lanes = 32 if shape == "32x32b" else 16
    width = times * {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8}[shape]
    for warp in range(4):
        rows = slice(32 * warp + lane, 32 * warp + lane + lanes)
        expected[rows, 64 : 64 + width] = memory[rows, :width]
    assert torch.equal(run(inside, memory), expected)


def test_the_halves_of_16x32bx2_have_columns_of_their_own() -> None:
    inside = f"""
{fill()}
    tcgen05.ld.sync.aligned.16x32bx2.x4.b32 {vector(4)}, [%r10 + 8], 20;
    tcgen05.st.sync.aligned.16x32bx2.x4.b32 [%r10 + 64], 32, {vector(4)};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x128.b32 {vector(128)}, [%r10];
{write_out(128)}
"""
    memory = cells()
    expected = memory.clone()
    for warp in range(4):
        rows = slice(32 * warp, 32 * warp + 16)
        expected[rows, 64:68] = memory[rows, 8:12]
        expected[rows, 96:100] = memory[rows, 28:32]
    assert torch.equal(run(inside, memory), expected)


@pytest.mark.parametrize("shape,times", [("32x32b", 4), ("16x256b", 1)])
def test_pack_joins_the_low_halves_of_two_columns(shape: str, times: int) -> None:
    count = registers(shape, times)
    inside = f"""
{fill()}
    tcgen05.ld.sync.aligned.{shape}.x{times}.pack::16b.b32 {vector(count)}, [%r10];
    tcgen05.st.sync.aligned.{shape}.x{times}.unpack::16b.b32 [%r10 + 64], {vector(count)};
    tcgen05.wait::st.sync.aligned;
{write_out(count)}
    tcgen05.ld.sync.aligned.32x32b.x32.b32 {vector(32)}, [%r10 + 64];
"""
    inside += "\n".join(f"    st.global.b32 [%d2+{256 + 4 * i}], %v{i};" for i in range(32))
    memory = cells()
    low = memory & 0xFFFF
    joined = low[:, ::2] | low[:, 1::2] << 16
    out = run(inside, memory)
    assert torch.equal(out[:, :count], loaded(joined, shape, times, 0, 0))
    lanes = 32 if shape == "32x32b" else 16
    for warp in range(4):
        rows = slice(32 * warp, 32 * warp + lanes)
        assert torch.equal(out[rows, 64 : 64 + 8], low[rows, :8])


# ---- loads with a reduction ---------------------------------------------------------------------


def bits(number: float) -> int:
    return struct.unpack("<i", struct.pack("<f", number))[0]


NAN = 0x7FC00000
ROW = [bits(x) for x in (1.5, -7.0, 3.0, -0.0)]
WITH_NAN = [NAN, *ROW[1:]]

REDUCTIONS = [
    ("min.f32", ROW, bits(-7.0)),
    ("max.f32", ROW, bits(3.0)),
    ("max.abs.f32", ROW, bits(7.0)),
    ("min.abs.f32", ROW, bits(0.0)),
    ("max.f32", WITH_NAN, bits(3.0)),
    ("max.NaN.f32", WITH_NAN, 0x7FFFFFFF),
    ("min.abs.NaN.f32", WITH_NAN, 0x7FFFFFFF),
    ("max.f32", [NAN] * 4, 0x7FFFFFFF),
    ("min.f32", [bits(0.0), bits(-0.0)] * 2, bits(-0.0)),
    ("max.f32", [bits(-0.0), bits(0.0)] * 2, bits(0.0)),
    ("min.s32", [5, -3, 2, 7], -3),
    ("max.u32", [5, -3, 2, 7], -3),
    ("min.u32", [5, -3, 2, 7], 2),
]


@pytest.mark.parametrize("operation,row,expected", REDUCTIONS)
def test_a_load_can_reduce_its_columns(operation: str, row: list[int], expected: int) -> None:
    inside = f"""
{fill()}
    tcgen05.ld.red.sync.aligned.32x32b.x4.{operation} {vector(4)}, %v4, [%r10];
{write_out(5)}
"""
    memory = torch.zeros(128, COLUMNS, dtype=torch.int32)
    memory[:, :4] = torch.tensor(row).int()
    out = run(inside, memory, target="sm_103a")
    assert torch.equal(out[:, :4], memory[:, :4])
    assert set(out[:, 4].tolist()) == {expected}


# ---- order, and mistakes ------------------------------------------------------------------------


def test_a_store_is_seen_after_its_wait_only() -> None:
    inside = f"""
{fill()}
    mov.b32 %v0, 77;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r10], {{%v0}};
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%v1}}, [%r10];
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%v2}}, [%r10];
    st.global.b32 [%d2], %v1;
    st.global.b32 [%d2+4], %v2;
"""
    memory = cells()
    out = run(inside, memory, schedule="late", check=("uninitialised",))
    assert torch.equal(out[:, 0], memory[:, 0])
    assert set(out[:, 1].tolist()) == {77}


def failure(inside: str) -> EmulationError:
    with pytest.raises(EmulationError) as caught:
        run(inside, cells())
    return caught.value


def test_a_warp_reaches_its_own_lanes_only() -> None:
    error = failure("    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v0}, [%r8];")
    assert isinstance(error, TensorLanesError)
    warp = int(error.fields["warp"])  # which one comes first is for the schedule
    assert warp in (1, 2, 3)
    assert f"by warp {warp}" in str(error)
    assert f"from lane {32 * warp} on" in str(error)


def test_columns_end_where_tensor_memory_does() -> None:
    """Far beyond it too, where 32 bits do not hold the last column."""
    for split in (502, 2**32 - 10):
        load = f"tcgen05.ld.sync.aligned.16x32bx2.x4.b32 {vector(4)}, [%r10 + 8], {split};"
        error = failure(f"{fill()}\n    {load}")
        assert isinstance(error, TensorBoundsError)
        assert f"columns {8 + split}-{8 + split + 3}" in str(error)


def test_cells_have_to_be_written_before_they_are_read() -> None:
    error = failure("    tcgen05.ld.sync.aligned.32x32b.x2.b32 {%v0, %v1}, [%r10+6];")
    assert isinstance(error, UninitialisedTensorError)
    assert "column 6" in str(error)
    inside = "    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v0}, [%r10];\n" + write_out(1)
    out = run(inside, cells(), check=())
    assert set(out[:, 0].tolist()) == {-1}
