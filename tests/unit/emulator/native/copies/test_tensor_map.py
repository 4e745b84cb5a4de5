"""Tensor maps: where they may be, and fields that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.emulator import load
from flexfa4.emulator.failures.copies import TensorMapFieldError
from tests.copy_programs import (
    DECLARE,
    LOAD,
    REGISTERS,
    START,
    WAIT,
    alone,
    load2,
    numbers,
)
from tests.tensor_maps import B4, B4_PADDED, B6_PADDED, Boxed, aligned_bytes


def test_a_map_among_the_parameters_is_read_there() -> None:
    data = numbers((8, 16), torch.int32)
    text = (
        ".version 8.8\n.target sm_100a\n.address_size 64\n"
        + DECLARE
        + ".visible .entry k(.param .align 64 .b8 map[128], .param .u64 out)\n{"
        + REGISTERS
        + ".reg .b64 m, o;"
        + START
        + "@!first bra JOIN; mbarrier.init.shared.b64 [b], 1;"
        "mbarrier.arrive.expect_tx.shared.b64 _, [b], 64; mov.b64 m, map; cvta.param.u64 m, m;"
        + LOAD.format(rank=2, at=0, coordinates="0, 3").replace("[map,", "[m,")
        + "JOIN: bar.sync 0;"
        + WAIT
        + "ld.param.u64 o, [out]; shl.b32 k, t, 2; mul.wide.u32 x, k, 1; add.u64 o, o, x;"
        "add.u32 k, k, a; setp.lt.u32 more, t, 16; @!more ret;"
        "ld.shared.b32 c0, [k]; st.global.b32 [o], c0; ret;}"
    )
    out = torch.zeros(16, dtype=torch.int32)
    run = load(text).run(
        grid=1, block=32, args=[Boxed(data, (16, 1)).encode(), out], allocations=[data]
    )
    assert out.tolist() == data[3].tolist()
    assert run.traffic.tensor_loaded == 64


# a field of a word: its shift, its width, and a value that it cannot have


FIELDS = [
    (1, 4, 3, 5, "rank 6"),
    (1, 7, 4, 14, "element type 14"),
    (1, 11, 2, 1, "an interleaved layout"),
    (1, 0, 4, 1, "bits .3:0. of word 1 of 1"),
    (1, 19, 2, 1, "a swizzle of 32 in pieces of 32 bytes"),
    (1, 19, 2, 3, "a swizzle of 32 in pieces of 64 bytes"),
    (1, 22, 1, 1, "control bits"),
    (1, 16, 1, 1, "tf32 of elements of type f16"),
    (3, 48, 1, 1, "unused places"),
    (6, 47, 1, 1, "unused places"),
    (7, 32, 1, 1, "unused places"),
    (0, 0, 4, 8, "address 0x"),
    (0, 0, 64, 0, "address 0x0"),
    (6, 56, 8, 16, "a box of 34 bytes"),
    (6, 56, 8, 23, "a box of 48 bytes along axis 0 with a swizzle of 32"),
]


@pytest.mark.parametrize("word,shift,width,value,report", FIELDS)
def test_a_map_of_unknown_meaning_is_refused(
    word: int, shift: int, width: int, value: int, report: str
) -> None:
    boxed = Boxed(numbers((16, 64), torch.float16), (16, 8), swizzle=32)
    encoded = bytearray(boxed.encode())
    old = int.from_bytes(encoded[8 * word :][:8], "little")
    new = old & ~(((1 << width) - 1) << shift) | value << shift
    encoded[8 * word : 8 * word + 8] = new.to_bytes(8, "little")
    with pytest.raises(TensorMapFieldError, match=report):
        alone(load2(at=0, first="0, 0"), boxed, memory={"map": aligned_bytes(bytes(encoded))})


@pytest.mark.parametrize(
    "changes,report",
    [
        (
            {"tensor": numbers((16, 192), torch.uint8)[:, :80]},
            "size 0xa0 with elements of type b4x16_p64",
        ),
        ({"box": (32, 8)}, "a box of 64 elements of type b4x16_p64"),
        (
            {"tensor": numbers((16, 208), torch.uint8)[:, 16:144]},
            "address 0x[0-9a-f]+ with elements",
        ),
        ({"tensor": numbers((16, 208), torch.uint8)[:, :128]}, "stride 0xd0 with elements"),
        ({"swizzle": 64}, "a swizzle of 64 with elements"),
        ({"swizzle": 128, "atom": 32, "flips": True}, "a swizzle of 128 that swaps halves"),
        ({"nan": True}, "NaN as fill of elements of type b4x16_p64"),
        ({"packed": B4, "swizzle": 32}, "a box of 64 bytes along axis 0 with a swizzle of 32"),
        ({"packed": B4, "nan": True}, "NaN as fill of elements of type b4x16"),
        ({"packed": B6_PADDED, "box": (48, 8)}, "a box of 64 elements of type b6x16_p32"),
    ],
)
def test_packed_elements_have_rules_of_their_own(changes: dict[str, Any], report: str) -> None:
    tensor = numbers((16, 192), torch.uint8)
    setting: dict[str, Any] = {"tensor": tensor, "box": (64, 8), "packed": B4_PADDED} | changes
    boxed = Boxed(**setting)
    with pytest.raises(TensorMapFieldError, match=report):
        alone(load2(at=0, first="0, 0"), boxed)


def test_a_tensor_of_4_bit_elements_has_whole_bytes() -> None:
    encoded = bytearray(Boxed(numbers((16, 64), torch.uint8), (32, 8), packed=B4).encode())
    encoded[32] -= 1  # of word 4
    with pytest.raises(TensorMapFieldError, match="size 0x7f with elements of type b4x16"):
        alone(load2(at=0, first="0, 0"), memory={"map": aligned_bytes(bytes(encoded))})


def test_integers_are_not_filled_with_nan() -> None:
    boxed = Boxed(numbers((16, 64), torch.int32), (16, 8), nan=True)
    with pytest.raises(TensorMapFieldError, match="NaN as fill of elements of type s32"):
        alone(load2(at=0, first="0, 0"), boxed)
