"""Tensor maps: what their bytes say, and bytes that say nothing known."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.emulator.host.errors import TensorMapError
from flexfa4.emulator.host.tensor_map import ELEMENT_TYPES, SWIZZLES, TensorMap

CODES = {element.name: code for code, element in ELEMENT_TYPES.items()}
# what CuTe-DSL 4.8.1 wrote for a float16 matrix of 512 rows of 320 in rows of 384, in boxes of
# 32 rows of 64 with 128-byte swizzle; and for a matrix of 64 by 64 that it was told to read as TF32
HALF = (0x55870F31A040, 0x30_0024_6312, 0, 0, 0x1FF_0000_013F, 0, 0x3F << 56, 0x1F)
TF32 = (0x5630014BA440, 0x10_0005_0392, 0, 0, 0x3F_0000_003F, 0, 0x0F << 56, 0x1F)


def packed(words: tuple[int, ...]) -> bytes:
    return struct.pack("<16Q", *words, *[0] * (16 - len(words)))


@dataclass(frozen=True)
class Fields:
    """A map as its fields; packed a field at a time, unlike the words that the module takes."""

    address: int
    code: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]  # of axes 1 and up, in bytes
    box: tuple[int, ...]
    swizzle: int = 0
    hint: int = 0
    extra: int = 0  # bits added over the whole map

    def bytes(self) -> bytes:
        bits = self.address | 2 << 64 | (len(self.sizes) - 1) << 68 | (self.code & 15) << 71
        bits |= self.swizzle << 77 | (self.code >> 4) << 80 | 1 << 82 | self.hint << 85
        for axis, stride in enumerate(self.strides):
            bits |= (stride >> 4 & 0xFFFF_FFFF) << (96 + 32 * axis)
            bits |= (stride >> 36) << (224 + 4 * axis)
        for axis, size in enumerate(self.sizes):
            bits |= (size - 1) << (256 + 32 * axis)
        for axis, extent in enumerate(self.box):
            bits |= (extent - 1) << (440 + 8 * axis)
        return (bits | self.extra).to_bytes(128, "little")


PLAIN = Fields(0x1000, CODES["f32"], (64, 32), (256,), (16, 8))


@st.composite
def fields(draw: st.DrawFn) -> Fields:
    rank = draw(st.integers(1, 5))
    code = draw(st.sampled_from(list(ELEMENT_TYPES)))
    nbytes = ELEMENT_TYPES[code].nbytes
    swizzle = draw(st.integers(0, 3))
    widest = SWIZZLES[swizzle] or 256 * nbytes
    inner = draw(st.integers(1, min(widest, 256 * nbytes) // 16)) * 16 // nbytes
    size, stride, extent = st.integers(1, 2**32), st.integers(0, 2**36 - 1), st.integers(1, 256)
    return Fields(
        address=draw(st.integers(1, 2**59)) * 16,
        code=code,
        sizes=tuple(draw(size) for _ in range(rank)),
        strides=tuple(draw(stride) * 16 for _ in range(rank - 1)),
        box=(inner, *(draw(extent) for _ in range(rank - 1))),
        swizzle=swizzle,
        hint=draw(st.integers(0, 1)),
    )


@given(fields())
def test_every_field_is_read_from_its_place(written: Fields) -> None:
    read = TensorMap.decode(written.bytes())
    element = ELEMENT_TYPES[written.code]
    assert (read.address, read.element, read.rank) == (
        written.address,
        element,
        len(written.sizes),
    )
    assert (read.sizes, read.box) == (written.sizes, written.box)
    assert read.strides == (element.nbytes, *written.strides)
    assert read.swizzle == SWIZZLES[written.swizzle]


def test_maps_of_the_compiler_are_read() -> None:
    half, tf32 = TensorMap.decode(packed(HALF)), TensorMap.decode(packed(TF32))
    assert half == TensorMap(
        HALF[0], ELEMENT_TYPES[CODES["f16"]], (320, 512), (2, 768), (64, 32), 128
    )
    assert half.box_nbytes == 64 * 32 * 2
    assert half.span == 511 * 768 + 320 * 2
    assert tf32.element.name == "tf32"
    assert (tf32.sizes, tf32.strides, tf32.box) == ((64, 64), (4, 256), (16, 32))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (replace(PLAIN, address=0x1008), "address 0x1008"),
        (replace(PLAIN, address=0), "address 0"),
        (replace(PLAIN, code=8), "element type 8"),
        (replace(PLAIN, sizes=(1,) * 6), "rank 6"),
        (replace(PLAIN, box=(17, 8)), "a box of 68 bytes"),
        (replace(PLAIN, box=(16, 8), swizzle=1), "with swizzle 32"),
        (replace(PLAIN, extra=1 << (64 + 11)), "control bits"),
        (replace(PLAIN, extra=1 << (384 + 32)), "element strides"),
        (replace(PLAIN, extra=1 << (192 + 48)), "words"),
        (replace(PLAIN, extra=1 << (448 + 32)), "words"),
    ],
)
def test_fields_without_a_meaning_are_refused(broken: Fields, message: str) -> None:
    TensorMap.decode(PLAIN.bytes())
    with pytest.raises(TensorMapError, match=message):
        TensorMap.decode(broken.bytes())


@pytest.mark.parametrize("count", [0, 64, 127, 129])
def test_a_map_has_128_bytes(count: int) -> None:
    with pytest.raises(TensorMapError, match=f"{count} bytes"):
        TensorMap.decode(bytes(count))
