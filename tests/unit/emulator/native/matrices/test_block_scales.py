"""Products with block scales in tensor memory, against sums of scaled numbers in float64."""

from __future__ import annotations

import pytest
import torch

from flexfa4.emulator.failures.matrices import ScaleCopiesError, UninitialisedTensorError
from tests.tensor_core_programs import Layout, Program, instruction_descriptor, product, put

B_AT = 32768
SCALES_A, SCALES_B = 64, 68  # columns
COLUMNS = 128
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]).double()

# kind, scales of a row, whether they are ue8m0, codes of the type, numbers along K
KINDS = {
    "mxf8f6f4": ("mxf8f6f4.block_scale", 1, True, 0, 32),
    "mxf4": ("mxf4.block_scale.scale_vec::2X", 2, True, 1, 64),
    "mxf4nvf4 2X": ("mxf4nvf4.block_scale.block32", 2, True, 1, 64),
    "mxf4nvf4 4X": ("mxf4nvf4.block_scale.block16", 4, False, 1, 64),
    "mxf4nvf4 4X ue8m0": ("mxf4nvf4.block_scale.scale_vec::4X", 4, True, 1, 64),
}


def integers(*shape: int, low: int, high: int, seed: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def factor(rows: int, depth: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A factor as 32 bytes a row, and its numbers."""
    if depth == 64:
        codes = integers(rows, depth, low=0, high=16, seed=seed)
        return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), E2M1[codes]
    numbers = integers(rows, depth, low=-8, high=9, seed=seed).to(torch.float8_e4m3fn)
    return numbers, numbers.double()


def scales(rows: int, count: int, ue8m0: bool, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes [rows, count] and numbers."""
    if ue8m0:
        codes = integers(rows, count, low=124, high=131, seed=seed)
        return codes, 2.0 ** (codes - 127)
    codes = integers(rows, count, low=0, high=0x7F, seed=seed)
    return codes, codes.to(torch.uint8).view(torch.float8_e4m3fn).double()


def scale_cells(cells: torch.Tensor, column: int, codes: torch.Tensor, first: int) -> None:
    """Put scales into tensor memory [128, columns], a copy in each 32 lanes."""
    for row in range(codes.shape[0]):
        word = sum(int(code) << 8 * (first + i) for i, code in enumerate(codes[row]))
        for part in range(0, 128, 32):
            cells[part + row % 32, column + row // 32] |= _signed(word)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def scaled(numbers: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return numbers * by.repeat_interleave(numbers.shape[1] // by.shape[1], 1)


def stored(n: int) -> tuple[int, ...]:
    return (*range(SCALES_A, SCALES_A + 4), *range(SCALES_B, SCALES_B + -(-n // 32)))


def address_of_scales() -> str:
    return f"    add.u32 %r16, %r8, {SCALES_A};\n    add.u32 %r17, %r8, {SCALES_B};\n"


@pytest.mark.parametrize("n", [8, 48])
@pytest.mark.parametrize("name", KINDS)
def test_each_block_along_k_has_its_scale(name: str, n: int) -> None:
    kind, count, ue8m0, code, depth = KINDS[name]
    layouts = (Layout.compact(2, False, 128, 1), Layout.compact(2, False, n, 1))
    a_bytes, a = factor(128, depth, 1)
    b_bytes, b = factor(n, depth, 2)
    image = torch.zeros(1, 65536, dtype=torch.uint8)
    put(image[0], 0, layouts[0], a_bytes)
    put(image[0], B_AT, layouts[1], b_bytes)
    first_a = {1: 3, 2: 2, 4: 0}[count]
    first_b = {1: 1, 2: 0, 4: 0}[count]
    cells = torch.zeros(1, 128, COLUMNS, dtype=torch.int32)
    a_codes, a_scales = scales(128, count, ue8m0, 3)
    b_codes, b_scales = scales(n, count, ue8m0, 4)
    scale_cells(cells[0], SCALES_A, a_codes, first_a)
    scale_cells(cells[0], SCALES_B, b_codes, first_b)
    other = first_b << 4 | ue8m0 << 23 | first_a << 29
    idesc = instruction_descriptor(128, n, a=code, b=code, d=0, other=other)
    body = address_of_scales() + product(
        f"tcgen05.mma.cta_group::1.kind::{kind}",
        idesc,
        (layouts[0], 0),
        (layouts[1], B_AT),
        accumulate=False,
        between=", [%r16], [%r17]",
    )
    program = Program(body, columns=COLUMNS, stored=stored(n), loaded=n)
    out, _ = program.run(image, cells)
    expected = (scaled(a, a_scales) @ scaled(b, b_scales).T).float()
    assert torch.equal(out.view(torch.float32)[0, :, :n], expected)


@pytest.mark.parametrize("m", [256, 128])
def test_blocks_of_a_pair_read_scales_of_their_own(m: int) -> None:
    """With M = 128 each half of the lanes has the scales of its half of N."""
    n = 64
    layouts = (Layout.compact(2, False, 128, 1), Layout.compact(2, False, 32, 1))
    a_bytes, a = factor(m, 64, 1)
    b_bytes, b = factor(n, 64, 2)
    a_codes, a_scales = scales(m, 4, False, 3)
    b_codes, b_scales = scales(n, 4, False, 4)
    image = torch.zeros(2, 65536, dtype=torch.uint8)
    cells = torch.zeros(2, 128, COLUMNS, dtype=torch.int32)
    for block in range(2):
        rows = slice(block * m // 2, (block + 1) * m // 2)
        put(image[block], 0, layouts[0], a_bytes[rows])
        put(image[block], B_AT, layouts[1], b_bytes[block * 32 : block * 32 + 32])
        scale_cells(cells[block], SCALES_A, a_codes[rows], 0)
        if m == 256:
            scale_cells(cells[block], SCALES_B, b_codes, 0)
            continue
        halves = [torch.zeros(128, COLUMNS, dtype=torch.int32) for _ in range(2)]
        for half in range(2):
            scale_cells(halves[half], SCALES_B, b_codes[32 * half : 32 * half + 32], 0)
            lanes = slice(64 * half, 64 * half + 64)
            cells[block, lanes] |= halves[half][lanes]
    idesc = instruction_descriptor(m, n, a=1, b=1, d=0)
    body = address_of_scales() + product(
        "tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.block16",
        idesc,
        (layouts[0], 0),
        (layouts[1], B_AT),
        accumulate=False,
        between=", [%r16], [%r17]",
    )
    shown = n if m == 256 else n // 2
    program = Program(body, columns=COLUMNS, stored=stored(64), loaded=shown, group=2)
    out, _ = program.run(image, cells)
    whole = (scaled(a, a_scales) @ scaled(b, b_scales).T).float()
    result = out.view(torch.float32)[:, :, :shown]
    if m == 256:
        assert torch.equal(result.reshape(256, n), whole)
    else:
        assert torch.equal(result[:, :64].reshape(128, 32), whole[:, :32])
        assert torch.equal(result[:, 64:].reshape(128, 32), whole[:, 32:])


# ---- K = 96, of sm_103a -------------------------------------------------------------------------

NEXT = 16384
"""How far the buffer lies in which lines go on that reach beyond 128 bytes."""


def put_48_bytes(window: torch.Tensor, start: int, rows: torch.Tensor) -> None:
    """Write rows of 48 bytes that begin anywhere in lines of 128 bytes."""
    layout = Layout(2, 0, 1024)
    line = start % 128
    for row in range(rows.shape[0]):
        for byte in range(48):
            at = line + byte
            buffer = start - line + (NEXT if at >= 128 else 0)
            window[layout.address(buffer, row, at % 128, 1)] = rows[row, byte]


class GoingOn(Layout):
    """A layout whose leading address is absolute; the window begins at 1024."""

    @property
    def bits(self) -> int:
        return super().bits | 1 << 52


@pytest.mark.parametrize("line", [0, 48, 96, 112])
@pytest.mark.parametrize("block,first", [(16, 0), (16, 2), (32, 0), (32, 3)])
def test_rows_of_48_bytes_may_go_on_in_another_buffer(line: int, block: int, first: int) -> None:
    n, depth, count = 32, 96, 96 // block
    a_codes = integers(128, depth, low=0, high=16, seed=1)
    b_codes = integers(n, depth, low=0, high=16, seed=2)
    image = torch.zeros(1, 65536, dtype=torch.uint8)
    for codes, at in ((a_codes, 0), (b_codes, B_AT)):
        put_48_bytes(image[0], at + line, (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8))
    a_scale_codes, a_scales = scales(128, count, block == 32, 3)
    b_scale_codes, b_scales = scales(n, count, block == 32, 4)
    cells = torch.zeros(1, 128, COLUMNS, dtype=torch.int32)
    for codes, column in ((a_scale_codes, SCALES_A), (b_scale_codes, SCALES_A + 8)):
        for scale in range(count):  # the bytes of further cells lie 4 columns on
            four, byte = divmod(first + scale, 4)
            scale_cells(cells[0], column + 4 * four, codes[:, scale : scale + 1], byte)
    layouts = [GoingOn(2, 1024 + at + NEXT, 1024) for at in (0, B_AT)]
    other = first << 4 | (block == 32) << 23 | first << 29 | 1 << 31
    address = f"    add.u32 %r16, %r8, {SCALES_A};\n    add.u32 %r17, %r8, {SCALES_A + 8};\n"
    body = address + product(
        f"tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block{block}",
        instruction_descriptor(128, n, a=1, b=1, d=0, other=other),
        (layouts[0], line),
        (layouts[1], B_AT + line),
        accumulate=False,
        between=", [%r16], [%r17]",
    )
    written = tuple(range(SCALES_A, SCALES_A + 16))
    program = Program(body, columns=COLUMNS, stored=written, loaded=n, target="sm_103a")
    out, run = program.run(image, cells)
    expected = (scaled(E2M1[a_codes], a_scales) @ scaled(E2M1[b_codes], b_scales).T).float()
    assert torch.equal(out.view(torch.float32)[0, :, :n], expected)
    assert run.matrices == {"tcgen05.mma cta_group::1 kind::mxf4nvf4 m128n32k96": 1}


# ---- mistakes -----------------------------------------------------------------------------------


def _one_product() -> str:
    layouts = (Layout.compact(2, False, 128, 1), Layout.compact(2, False, 32, 1))
    idesc = instruction_descriptor(128, 32, a=1, b=1, d=0)
    return address_of_scales() + product(
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16",
        idesc,
        (layouts[0], 0),
        (layouts[1], B_AT),
        accumulate=False,
        between=", [%r16], [%r17]",
    )


def test_copies_of_scales_that_differ_are_found() -> None:
    cells = torch.zeros(1, 128, COLUMNS, dtype=torch.int32)
    cells[0, 32, SCALES_A] = 1
    image = torch.zeros(1, 65536, dtype=torch.uint8)
    program = Program(_one_product(), columns=COLUMNS, stored=stored(32))
    with pytest.raises(ScaleCopiesError, match=r"scale 0 of row 0 is 0x0 .* 0x1 from lane 32"):
        program.run(image, cells)


def test_scales_have_to_be_written() -> None:
    image = torch.zeros(1, 65536, dtype=torch.uint8)
    program = Program(_one_product(), columns=COLUMNS, stored=stored(32)[:-1])
    with pytest.raises(UninitialisedTensorError, match="lane 0, column 68"):
        program.run(image)
