"""Products of the tensor core: layouts, operands and data paths.

Expected values are those of torch in float64; with small integers everything is exact.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from flexfa4.emulator.errors import EmulationError
from tests.tensor_core_programs import (
    ALL,
    B_AT,
    Layout,
    Program,
    check_sum,
    float_cells,
    instruction_descriptor,
    integers,
    mma,
    old_d,
    product,
    put,
    window,
)

PAIRS = list(itertools.product((False, True), repeat=2))
SWIZZLES = {"none": 0, "32": 6, "64": 4, "128": 2}


# ---- layouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("a_mn,b_mn", PAIRS)
@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_a_product_of_f16_reads_every_layout(swizzle: str, a_mn: bool, b_mn: bool) -> None:
    code = SWIZZLES[swizzle]
    layouts = (Layout.compact(code, a_mn, 128, 2), Layout.compact(code, b_mn, 32, 2))
    idesc = instruction_descriptor(128, 32, a_mn=a_mn, b_mn=b_mn)
    check_sum(integers(128, 16).half(), integers(32, 16, seed=1).half(), layouts, idesc, "f16")


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_a_product_of_fp8_reads_every_mn_major_layout(swizzle: str) -> None:
    code = SWIZZLES[swizzle]
    layouts = (Layout.compact(code, True, 128, 1), Layout.compact(code, True, 32, 1))
    idesc = instruction_descriptor(128, 32, a=0, b=1, a_mn=True, b_mn=True)
    a = integers(128, 32).to(torch.float8_e4m3fn)
    b = integers(32, 32, seed=1).to(torch.float8_e5m2)
    check_sum(a, b, layouts, idesc, "f8f6f4")


def test_an_mn_major_matrix_of_tf32_is_swizzled_by_32_bytes() -> None:
    layouts = (Layout.compact(1, True, 128, 4), Layout.compact(1, True, 32, 4))
    idesc = instruction_descriptor(128, 32, a=2, b=2, a_mn=True, b_mn=True)
    check_sum(integers(128, 8).float(), integers(32, 8, seed=1).float(), layouts, idesc, "tf32")


def test_steps_along_k_are_added_to_the_start_of_a_swizzled_line() -> None:
    a, b = integers(128, 64).half(), integers(32, 64, seed=1).half()
    layouts = (Layout.compact(2, False, 128, 2), Layout.compact(2, False, 32, 2))
    image = window()
    put(image[0], 0, layouts[0], a)
    put(image[0], B_AT, layouts[1], b)
    body = "".join(
        product(
            mma("f16"),
            instruction_descriptor(128, 32),
            (layouts[0], 32 * step),
            (layouts[1], B_AT + 32 * step),
            accumulate=step > 0,
        )
        for step in range(4)
    )
    out, run = Program(body).run(image)
    assert torch.equal(float_cells(out)[0], a.float() @ b.float().T)
    assert run.matrices == {"tcgen05.mma cta_group::1 kind::f16 m128n32k16": 4}


def test_the_swizzle_is_of_the_whole_address() -> None:
    a, b = integers(128, 16).half(), integers(32, 16, seed=1).half()
    layouts = (Layout.compact(2, False, 128, 2), Layout.compact(2, False, 32, 2))
    image = window()
    put(image[0], 128, layouts[0], a)
    put(image[0], B_AT + 384, layouts[1], b)
    idesc = instruction_descriptor(128, 32)
    body = product(mma("f16"), idesc, (layouts[0], 128), (layouts[1], B_AT + 384), False)
    out, _ = Program(body).run(image)
    assert torch.equal(float_cells(out)[0], a.float() @ b.float().T)


# ---- modifiers and operands ---------------------------------------------------------------------

F16 = (Layout.compact(2, False, 128, 2), Layout.compact(2, False, 32, 2))


def f16_images() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b = integers(128, 16), integers(32, 16, seed=1)
    image = window()
    put(image[0], 0, F16[0], a.half())
    put(image[0], B_AT, F16[1], b.half())
    return image, a.float(), b.float()


@pytest.mark.parametrize("bits", [1 << 13, 1 << 14, 3 << 13])
def test_either_factor_can_be_negated(bits: int) -> None:
    image, a, b = f16_images()
    idesc = instruction_descriptor(128, 32, other=bits)
    d = old_d()
    body = product(mma("f16"), idesc, (F16[0], 0), (F16[1], B_AT))
    out, _ = Program(body, stored=ALL).run(image, d.view(torch.int32))
    sign = 1 if bits == 3 << 13 else -1
    assert torch.equal(float_cells(out)[0], d[0] + sign * (a @ b.T))


def test_the_old_d_can_be_scaled_down() -> None:
    image, a, b = f16_images()
    idesc = instruction_descriptor(128, 32)
    d = old_d()
    body = product(mma("f16"), idesc, (F16[0], 0), (F16[1], B_AT), after=", 3")
    out, _ = Program(body, stored=ALL).run(image, d.view(torch.int32))
    assert torch.equal(float_cells(out)[0], d[0] / 8 + a @ b.T)


def test_disabled_lanes_keep_their_d() -> None:
    image, a, b = f16_images()
    masks = (0x1, 0x80000000, 0, 0xFFFFFFFF)
    text = "".join(f"    mov.b32 %r{20 + i}, {mask};\n" for i, mask in enumerate(masks))
    body = text + product(
        mma("f16"),
        instruction_descriptor(128, 32),
        (F16[0], 0),
        (F16[1], B_AT),
        between=", {%r20, %r21, %r22, %r23}",
    )
    d = old_d()
    out, _ = Program(body, stored=ALL).run(image, d.view(torch.int32))
    expected = d[0] + a @ b.T
    disabled = [0, 63, *range(96, 128)]
    expected[disabled] = d[0, disabled]
    assert torch.equal(float_cells(out)[0], expected)


def test_a_can_lie_in_tensor_memory() -> None:
    image, _, b = f16_images()
    a = integers(128, 16, seed=3)
    cells = torch.zeros(1, 128, 64, dtype=torch.int32)
    cells[0, :, 40:48] = a.half().contiguous().view(torch.int32)
    body = product(mma("f16"), instruction_descriptor(128, 32), 40, (F16[1], B_AT), False)
    out, _ = Program(body, columns=64, stored=tuple(range(40, 48))).run(image, cells)
    assert torch.equal(float_cells(out)[0, :, :32], a.float() @ b.T)


def test_a_in_tensor_memory_can_be_shifted_by_a_row() -> None:
    image, _, b = f16_images()
    a = integers(128, 16, seed=3)
    cells = torch.zeros(1, 128, 64, dtype=torch.int32)
    cells[0, :, 40:48] = a.half().contiguous().view(torch.int32)
    opcode = mma("f16") + ".ashift"
    body = product(opcode, instruction_descriptor(128, 32), 40, (F16[1], B_AT), False)
    out, _ = Program(body, columns=64, stored=tuple(range(40, 48))).run(image, cells)
    shifted = torch.cat([a[1:], a[-1:]]).float()
    assert torch.equal(float_cells(out)[0, :, :32], shifted @ b.T)


def test_the_first_row_of_a_shifted_a_is_not_read() -> None:
    """Nobody has written it: A is the D of a product that leaves lane 0 out."""
    image, a, b = f16_images()
    masks = "".join(f"    mov.b32 %r{20 + i}, {int(i == 0)};\n" for i in range(4))
    lanes = ", {%r20, %r21, %r22, %r23}"
    idesc = instruction_descriptor(128, 32)
    at_b = (F16[1], B_AT)
    first = product(mma("f16"), idesc, (F16[0], 0), at_b, False, d=32, between=lanes)
    second = product(mma("f16") + ".ashift", idesc, 32, at_b, False)
    out, _ = Program(masks + first + second, columns=64).run(image, check=("uninitialised",))
    halves = (a @ b.T).float()[:, :8].contiguous().view(torch.float16).double()
    shifted = torch.cat([halves[1:], halves[-1:]])
    assert torch.equal(float_cells(out)[0, :, :32], (shifted @ b.double().T).float())


# ---- data paths ---------------------------------------------------------------------------------


def lanes_of_64(first: int) -> list[int]:
    return [first + row // 16 * 32 + row % 16 for row in range(64)]


@pytest.mark.parametrize("first", [0, 16])
def test_64_rows_take_16_lanes_of_each_32(first: int) -> None:
    image, a, b = f16_images()
    d = old_d()
    idesc = instruction_descriptor(64, 32)
    body = product(mma("f16"), idesc, (F16[0], 0), (F16[1], B_AT), d=first << 16)
    out, _ = Program(body, stored=ALL).run(image, d.view(torch.int32))
    expected = d[0].clone()
    expected[lanes_of_64(first)] += a[:64] @ b.T
    assert torch.equal(float_cells(out)[0], expected)


def test_64_rows_of_a_in_tensor_memory_lie_in_the_lanes_of_d() -> None:
    image, _, b = f16_images()
    a = integers(64, 16, seed=3)
    cells = torch.zeros(1, 128, 64, dtype=torch.int32)
    cells[0, lanes_of_64(16), 40:48] = a.half().contiguous().view(torch.int32)
    at = 16 << 16
    body = product(mma("f16"), instruction_descriptor(64, 32), at + 40, (F16[1], B_AT), True, d=at)
    out, _ = Program(body, columns=64, stored=tuple(range(64))).run(image, cells)
    assert torch.equal(float_cells(out)[0, lanes_of_64(16), :32], a.float() @ b.T)


def pair_images(rows: int, b_rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A pair: `rows` of A and `b_rows` of B in each block."""
    a, b = integers(2 * rows, 16), integers(2 * b_rows, 16, seed=1)
    image = window(2)
    for block in range(2):
        put(image[block], 0, F16[0], a[block * rows : (block + 1) * rows].half())
        put(image[block], B_AT, F16[1], b[block * b_rows : (block + 1) * b_rows].half())
    return image, a.float(), b.float()


def test_256_rows_are_halved_between_the_blocks_of_a_pair() -> None:
    image, a, b = pair_images(128, 16)
    d = old_d(2)
    body = product(mma("f16", 2), instruction_descriptor(256, 32), (F16[0], 0), (F16[1], B_AT))
    out, run = Program(body, stored=ALL, group=2).run(image, d.view(torch.int32))
    assert torch.equal(float_cells(out).reshape(256, 32), d.reshape(256, 32) + a @ b.T)
    assert run.matrices == {"tcgen05.mma cta_group::2 kind::f16 m256n32k16": 1}


def test_128_rows_of_a_pair_have_half_of_n_in_each_half_of_the_lanes() -> None:
    image, a, b = pair_images(64, 32)
    d = old_d(2)
    body = product(mma("f16", 2), instruction_descriptor(128, 64), (F16[0], 0), (F16[1], B_AT))
    out, _ = Program(body, stored=ALL, group=2).run(image, d.view(torch.int32))
    whole = a @ b.T
    for block in range(2):
        rows = whole[block * 64 : (block + 1) * 64]
        expected = d[block] + torch.cat([rows[:, :32], rows[:, 32:]])
        assert torch.equal(float_cells(out)[block], expected)


def test_a_pair_with_64_rows_each_reads_a_copy_of_a_in_each_half_of_the_lanes() -> None:
    image, _, b = pair_images(64, 32)
    a = integers(2, 2, 64, 16, seed=5)  # block, half: here two matrices, to see which is read
    cells = torch.zeros(2, 128, 64, dtype=torch.int32)
    cells[:, :, 40:48] = a.half().reshape(2, 128, 16).contiguous().view(torch.int32)
    body = product(mma("f16", 2), instruction_descriptor(128, 64), 40, (F16[1], B_AT), False)
    program = Program(body, columns=64, stored=tuple(range(40, 48)), group=2)
    out, _ = program.run(image, cells)
    for block in range(2):
        halves = [a[block, half].float() @ b[32 * half : 32 * half + 32].T for half in range(2)]
        assert torch.equal(float_cells(out)[block, :, :32], torch.cat(halves))


def test_disabled_lanes_of_a_pair_are_those_of_both_blocks() -> None:
    image, a, b = pair_images(128, 16)
    masks = (0, 0, 0, 2, 1, 0, 0, 0)
    text = "".join(f"    mov.b32 %r{20 + i}, {mask};\n" for i, mask in enumerate(masks))
    body = text + product(
        mma("f16", 2),
        instruction_descriptor(256, 32),
        (F16[0], 0),
        (F16[1], B_AT),
        between=", {%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27}",
    )
    d = old_d(2)
    out, _ = Program(body, stored=ALL, group=2).run(image, d.view(torch.int32))
    expected = d.reshape(256, 32) + a @ b.T
    expected[[97, 128]] = d.reshape(256, 32)[[97, 128]]
    assert torch.equal(float_cells(out).reshape(256, 32), expected)


# ---- mistakes -----------------------------------------------------------------------------------


def failure(body: str, **program: Any) -> str:
    image, _, _ = f16_images()
    with pytest.raises(EmulationError) as caught:
        Program(body, **program).run(image)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_sum_begins_with_a_written_d() -> None:
    body = product(mma("f16"), instruction_descriptor(128, 32), (F16[0], 0), (F16[1], B_AT))
    text = failure(body)
    assert text.startswith("UninitialisedTensorError")
    assert "lane 0, column 0 of block (0, 0, 0)" in text
    assert "tcgen05.mma" in text


def test_d_has_to_be_allocated() -> None:
    body = product(
        mma("f16"), instruction_descriptor(128, 32), (F16[0], 0), (F16[1], B_AT), False, d=16
    )
    text = failure(body)
    assert text.startswith("UnallocatedColumnsError")
    assert "columns 16-47" in text
    assert "columns 0-31" in text


def test_d_begins_in_a_lane_that_its_shape_allows() -> None:
    body = product(
        mma("f16"), instruction_descriptor(128, 32), (F16[0], 0), (F16[1], B_AT), d=16 << 16
    )
    assert failure(body, stored=ALL).startswith("MatrixLaneError")


def test_a_matrix_outside_of_shared_memory_is_found() -> None:
    body = product(
        mma("f16"), instruction_descriptor(128, 32), (F16[0], 65536 - 1024), (F16[1], B_AT), False
    )
    assert "tcgen05.mma" in failure(body)


def test_the_layout_has_to_fit_the_type() -> None:
    by32 = Layout(1, 16, 1024)
    body = product(mma("f16"), instruction_descriptor(128, 32), (by32, 0), (F16[1], B_AT), False)
    assert failure(body).startswith("MatrixLayoutError")


def test_the_layout_of_a_in_tensor_memory_is_k_major() -> None:
    idesc = instruction_descriptor(128, 32, a_mn=True)
    body = product(mma("f16"), idesc, 16, (F16[1], B_AT), False)
    assert failure(body).startswith("MatrixLayoutError")


def test_rows_are_shifted_where_a_block_has_128_of_them() -> None:
    idesc = instruction_descriptor(64, 32)
    body = product(mma("f16") + ".ashift", idesc, 16, (F16[1], B_AT), False)
    assert failure(body).startswith("ShiftShapeError")
