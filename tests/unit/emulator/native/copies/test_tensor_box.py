"""Boxes: swizzles, packed elements, what is outside of the tensor, and rows that are left out.

As on an H200, but for packed elements and swizzles of other pieces than 16 bytes, which it has not:
these are as the PTX ISA has them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.emulator import EmulationError
from flexfa4.emulator.failures.copies import (
    CoordinateError,
    ReductionTypeError,
    TensorMapFieldError,
)
from tests.copy_programs import (
    alone,
    as_loaded,
    load2,
    load_box,
    numbers,
    pattern,
    store2,
    store_box,
)
from tests.tensor_maps import B4, B4_PADDED, B6_PADDED, Boxed, Packed


# a row may be narrower than the pattern
@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("at", [0, 128, 1024 + 384])
def test_swizzles_permute_pieces_by_the_bits_of_their_addresses(
    times: int, at: int, width: int
) -> None:
    swizzle = max(32, min(128, width * times))
    boxed = Boxed(numbers((32, 64), torch.float16), (width // 2, 20), swizzle=swizzle)
    assert load_box(boxed, (0, 3), at) == as_loaded(boxed, (0, 3), at)


@pytest.mark.parametrize("swizzle,width", [(32, 32), (64, 64), (128, 128), (128, 32), (64, 16)])
def test_a_stored_box_is_swizzled_like_a_loaded_one(swizzle: int, width: int) -> None:
    boxed = Boxed(numbers((32, 64), torch.float16), (width // 2, 12), swizzle=swizzle)
    room, stored = pattern(boxed, (0, 5), 384)
    store_box(boxed, (0, 5), room, at=384)
    assert torch.equal(boxed.tensor, stored)


# the tables of the PTX ISA, "Swizzling Modes": which 16 bytes of a line of 128 are where
PAIRS = ["01234567", "23016745", "45670123", "67452301"]


@pytest.mark.parametrize("flips", [False, True])
def test_pieces_of_32_bytes_are_permuted_and_flipped_as_in_the_table(flips: bool) -> None:
    data = torch.arange(16 * 8).reshape(8, 16)  # of 8 bytes each
    boxed = Boxed(
        numbers((8, 16), torch.int64).copy_(data), (16, 8), (1,) * 5, 128, atom=32, flips=flips
    )
    room = torch.frombuffer(bytearray(load_box(boxed, (0, 0))), dtype=torch.int64)
    for line in range(8):
        expected = []
        for piece in map(int, PAIRS[line % 4]):
            halves = [16 * line + 2 * piece, 16 * line + 2 * piece + 1]
            expected += halves[::-1] if flips and line % 2 else halves
        assert room[16 * line :][:16].tolist() == expected


@pytest.mark.parametrize("at", [128, 1024 + 384])
@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("flips", [False, True])
def test_pieces_of_32_bytes_are_permuted_by_the_bits_of_their_addresses(
    flips: bool, width: int, at: int
) -> None:
    data = numbers((32, 64), torch.float16)
    boxed = Boxed(data, (width // 2, 20), swizzle=128, atom=32, flips=flips)
    assert load_box(boxed, (48, 3), at) == as_loaded(boxed, (48, 3), at)


@pytest.mark.parametrize("atom", [32, 64])
@pytest.mark.parametrize("width", [32, 128])
def test_a_box_is_stored_from_larger_pieces(atom: int, width: int) -> None:
    boxed = Boxed(numbers((32, 64), torch.float16), (width // 2, 12), swizzle=128, atom=atom)
    room, stored = pattern(boxed, (0, 25), 384)
    store_box(boxed, (0, 25), room, at=384)
    assert torch.equal(boxed.tensor, stored)


def test_pieces_of_64_bytes_are_stored_as_in_the_table() -> None:
    boxed = Boxed(numbers((4, 32), torch.int32), (32, 4), swizzle=128, atom=64)
    lines = [list(range(32 * line, 32 * line + 32)) for line in range(4)]
    swapped = [line[16:] + line[:16] if n % 2 else line for n, line in enumerate(lines)]
    store_box(
        boxed, (0, 0), bytes(torch.tensor(swapped).int().view(torch.uint8).flatten().tolist())
    )
    assert boxed.tensor.tolist() == lines


@pytest.mark.parametrize("swizzle,width", [(0, 64), (0, 112), (32, 16), (64, 64), (128, 96)])
@pytest.mark.parametrize("first", [(0, 0), (32, 5), (-16, 30), (240, -2), (256, 0)])
def test_elements_of_4_bits_are_copied_two_a_byte(
    first: tuple[int, int], swizzle: int, width: int
) -> None:
    data = numbers((32, 256), torch.uint8)[:, :250]
    boxed = Boxed(data, (width, 5), swizzle=swizzle, packed=B4)
    assert load_box(boxed, first) == as_loaded(boxed, first)


def test_elements_of_4_bits_are_stored() -> None:
    boxed = Boxed(numbers((32, 256), torch.uint8), (64, 5), swizzle=64, packed=B4)
    room, stored = pattern(boxed, (224, 30), 128)
    store_box(boxed, (224, 30), room, at=128)
    assert torch.equal(boxed.tensor, stored)


@pytest.mark.parametrize("packed", [B4_PADDED, B6_PADDED])
@pytest.mark.parametrize("swizzle,atom", [(0, 16), (128, 16), (128, 32)])
@pytest.mark.parametrize("step", [-1, 0, 1, 2])
def test_16_elements_may_take_16_bytes(packed: Packed, swizzle: int, atom: int, step: int) -> None:
    width = 16 * packed.bits
    data = numbers((32, 2 * width), torch.uint8)
    boxed = Boxed(data, (width, 9), swizzle=swizzle, packed=packed, atom=atom)
    first = (step * width, 25 + step)
    assert load_box(boxed, first, 128) == as_loaded(boxed, first, 128)


def padded(**changes: Any) -> Boxed:
    setting: dict[str, Any] = {"box": (64, 2), "packed": B4_PADDED} | changes
    return Boxed(numbers((32, 128), torch.uint8), **setting)


@pytest.mark.parametrize(
    "boxed,code,error,report",
    [
        (padded(), load2(at=0, first="64, 0"), CoordinateError, "a multiple of 128 elements"),
        (padded(packed=B4), load2(at=0, first="16, 0"), CoordinateError, "here of 32 elements"),
        (padded(), store2(at=0, first="0, 0"), TensorMapFieldError, "elements with padding"),
        (
            padded(packed=B4, swizzle=128, atom=32, flips=True),
            store2(at=0, first="0, 0"),
            TensorMapFieldError,
            "a swizzle that swaps halves, in a copy to global",
        ),
        (
            padded(packed=B4, swizzle=128, atom=64),
            load2(at=0, first="0, 0"),
            TensorMapFieldError,
            "pieces of 64 bytes, in a copy to shared",
        ),
        (
            padded(packed=B4),
            store2(at=0, first="0, 0")
            .replace("cp.async", "cp.reduce.async")
            .replace(".shared::cta", ".shared::cta.add"),
            ReductionTypeError,
            "elements of type b4x16",
        ),
    ],
)
def test_a_copy_that_a_map_is_not_for_is_refused(
    boxed: Boxed, code: str, error: type[EmulationError], report: str
) -> None:
    with pytest.raises(error, match=report):
        alone(code, boxed)


@pytest.mark.parametrize(
    "first", [(-8, 0), (-8, -2), (-16, 0), (56, 0), (56, 29), (64, 0), (8, 40), (8, -9), (-8, 29)]
)
@pytest.mark.parametrize("swizzle", [0, 32])
def test_what_is_outside_of_the_tensor_is_zero_and_counts(
    first: tuple[int, int], swizzle: int
) -> None:
    boxed = Boxed(numbers((32, 64), torch.bfloat16), (16, 8), swizzle=swizzle)
    assert load_box(boxed, first) == as_loaded(boxed, first)


@pytest.mark.parametrize("first", [(56, 0), (0, 29), (56, 31), (64, 0), (0, 32)])
def test_what_is_outside_of_the_tensor_is_not_stored(first: tuple[int, int]) -> None:
    boxed = Boxed(numbers((32, 64), torch.float16), (16, 8))
    room, stored = pattern(boxed, first)
    store_box(boxed, first, room)
    assert torch.equal(boxed.tensor, stored)


def test_a_tensor_may_end_inside_of_a_piece() -> None:
    data = numbers((8, 64), torch.float16)[:, :19]
    boxed = Boxed(data, (16, 4), swizzle=32)
    assert load_box(boxed, (16, 2)) == as_loaded(boxed, (16, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_map_may_fill_with_nan(dtype: torch.dtype) -> None:
    boxed = Boxed(numbers((4, 16), dtype), (16, 2), nan=True)
    nan = bytes([0xF7, 0x7F]) * (dtype.itemsize // 2)
    assert load_box(boxed, (8, 3)) == as_loaded(boxed, (8, 3), fill=nan)


@pytest.mark.parametrize("steps", [(1, 2), (1, 3), (2, 1), (8, 8)])
@pytest.mark.parametrize("row", [0, 1, -3, 27])
def test_a_map_may_leave_out_rows_but_no_columns(steps: tuple[int, int], row: int) -> None:
    data = numbers((32, 64), torch.float16)
    boxed = Boxed(data, (16, 8), steps=(*steps, 1, 1, 1))
    assert load_box(boxed, (8, row)) == as_loaded(boxed, (8, row))
