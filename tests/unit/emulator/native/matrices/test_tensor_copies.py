"""tcgen05.cp and tcgen05.shift: which bytes of shared memory go to which cells."""

from __future__ import annotations

import pytest
import torch

from flexfa4.emulator.failures.matrices import MatrixLaneError
from tests.tensor_core_programs import Layout, Program, descriptor, put

ALL = tuple(range(32))


def copy(shape: str, layout: Layout, to: int = 0, group: int = 1) -> str:
    return f"""
{descriptor("%d9", layout, 0)}
    add.u32 %r14, %r8, {to};
    tcgen05.cp.cta_group::{group}.{shape} [%r14], %d9;
"""


def source(rows: int, nbytes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, nbytes), generator=generator).to(torch.uint8)


def cells() -> torch.Tensor:
    return torch.arange(128 * 32).reshape(1, 128, 32).int()


# shape: rows, bytes of a row, and the row that each lane gets, None for those that stay
SHAPES: dict[str, tuple[int, int, list[int | None]]] = {
    "128x256b": (128, 32, list(range(128))),
    "128x128b": (128, 16, list(range(128))),
    "64x128b.warpx2::02_13": (64, 16, [*range(64), *range(64)]),
    "64x128b.warpx2::01_23": (
        64,
        16,
        [*range(32), *range(32), *range(32, 64), *range(32, 64)],
    ),
    "32x128b.warpx4": (32, 16, [*range(32)] * 4),
    "4x256b": (4, 32, [lane // 32 if lane % 32 == 0 else None for lane in range(128)]),
}


@pytest.mark.parametrize("swizzle", [0, 6, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_copy_writes_the_lanes_of_its_shape(shape: str, swizzle: int) -> None:
    rows, nbytes, lanes = SHAPES[shape]
    layout = Layout.compact(swizzle, False, rows, 1)
    data = source(rows, nbytes)
    image = torch.zeros(1, 65536, dtype=torch.uint8)
    put(image[0], 0, layout, data)
    before = cells()
    out, _ = Program(copy(shape, layout, 4), stored=ALL).run(image, before)
    expected = before[0].clone()
    words = data.view(torch.int32)
    for lane, row in enumerate(lanes):
        if row is not None:
            expected[lane, 4 : 4 + nbytes // 4] = words[row]
    assert torch.equal(out[0], expected)


def test_4x256b_fills_one_lane_of_each_32() -> None:
    layout = Layout.compact(0, False, 4, 1)
    data = source(4, 32)
    image = torch.zeros(1, 65536, dtype=torch.uint8)
    put(image[0], 0, layout, data)
    before = cells()
    out, _ = Program(copy("4x256b", layout, 31 << 16), stored=ALL).run(image, before)
    expected = before[0].clone()
    expected[[31, 63, 95, 127], :8] = data.view(torch.int32)
    assert torch.equal(out[0], expected)


def test_each_block_of_a_pair_copies_from_its_own_memory() -> None:
    layout = Layout.compact(0, False, 32, 1)
    data = torch.stack([source(32, 16, seed) for seed in range(2)])
    image = torch.zeros(2, 65536, dtype=torch.uint8)
    for block in range(2):
        put(image[block], 0, layout, data[block])
    program = Program(copy("32x128b.warpx4", layout, group=2), loaded=4, group=2)
    out, _ = program.run(image)
    for block in range(2):
        assert torch.equal(out[block, :, :4], data[block].view(torch.int32).repeat(4, 1))


@pytest.mark.parametrize("name,size,shift", [("b4x16_p64", 4, 2), ("b6x16_p32", 6, 0)])
def test_packed_numbers_get_a_byte_each(name: str, size: int, shift: int) -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 1 << size, (128, 32), generator=generator)
    data = torch.zeros(128, 2, 16, dtype=torch.uint8)
    for row in range(128):
        for piece in range(2):
            whole = sum(int(n) << size * i for i, n in enumerate(numbers[row, 16 * piece :][:16]))
            packed = whole.to_bytes(2 * size, "little")
            data[row, piece, : 2 * size] = torch.tensor(list(packed), dtype=torch.uint8)
    layout = Layout.compact(0, False, 128, 1)
    image = torch.full((1, 65536), 255, dtype=torch.uint8)
    put(image[0], 0, layout, data.reshape(128, 32))
    out, _ = Program(copy(f"128x256b.b8x16.{name}", layout), loaded=8).run(image)
    expected = (numbers << shift).to(torch.uint8).view(torch.int32)
    assert torch.equal(out[0, :, :8], expected)


def test_a_shift_moves_31_rows_down_by_a_lane() -> None:
    before = cells()
    body = "    add.u32 %r14, %r8, 4194308;\n    tcgen05.shift.cta_group::1.down [%r14];\n"
    out, _ = Program(body, stored=ALL).run(torch.zeros(1, 65536, dtype=torch.uint8), before)
    expected = before[0].clone()
    expected[64:95, 4:12] = before[0, 65:96, 4:12]
    assert torch.equal(out[0], expected)


@pytest.mark.parametrize(
    "body",
    [
        copy("128x256b", Layout.compact(0, False, 128, 1), 1 << 16),
        "    add.u32 %r14, %r8, 65536;\n    tcgen05.shift.cta_group::1.down [%r14];\n",
    ],
)
def test_the_lane_has_to_be_one_where_the_shape_begins(body: str) -> None:
    image = torch.zeros(1, 65536, dtype=torch.uint8)
    with pytest.raises(MatrixLaneError):
        Program(body, stored=ALL).run(image, cells())
