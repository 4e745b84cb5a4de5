"""Tensor maps: what their bytes say, and bytes that say nothing known."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.emulator.host.errors import TensorMapError
from flexfa4.emulator.host.tensor_map import ATOMS, ELEMENT_TYPES, SWIZZLES, TensorMap

CODES = {element.name: code for code, element in ELEMENT_TYPES.items()}
# what CuTe-DSL 4.8.1 wrote for a float16 matrix of 512 rows of 320 in rows of 384, in boxes of
# 32 rows of 64 with 128-byte swizzle; for a matrix of 64 by 64 that it was told to read as TF32;
# for one of 256 rows of 512 elements of 4 bits, in padded boxes of 128 by 128; and for TF32 along
# the major axis of a product, in boxes of 32 by 32 whose swizzle keeps 32 bytes together
HALF = (0x55870F31A040, 0x30_0024_6312, 0, 0, 0x1FF_0000_013F, 0, 0x3F << 56, 0x1F)
TF32 = (0x5630014BA440, 0x10_0005_0392, 0, 0, 0x3F_0000_003F, 0, 0x0F << 56, 0x1F)
FOUR = (0x5583D4CCFB40, 0x10_0004_6612, 0, 0, 0xFF_0000_01FF, 0, 0x7F << 56, 0x7F)
ATOM = (0x5622B7FD0B80, 0x40_002D_63A2, 0x2000, 0, 0x7F_0000_00FF, 0, 0x1F << 56, 0x1F)


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
    start: int = 2
    fetched: int = 2
    nan: bool = False
    steps: tuple[int, ...] = ()
    atom: int = 0

    def bytes(self) -> bytes:
        bits = self.address | self.start << 64 | (len(self.sizes) - 1) << 68
        bits |= (self.code & 15) << 71 | self.swizzle << 77 | self.nan << 79
        bits |= (self.code >> 4) << 80 | self.fetched << 81 | self.atom << 83 | self.hint << 85
        for axis, stride in enumerate(self.strides):
            bits |= (stride >> 4 & 0xFFFF_FFFF) << (96 + 32 * axis)
            bits |= (stride >> 36) << (224 + 4 * axis)
        for axis, size in enumerate(self.sizes):
            bits |= (size - 1) << (256 + 32 * axis)
        for axis, extent in enumerate(self.box):
            bits |= (extent - 1) << (440 + 8 * axis)
        for axis, step in enumerate(self.steps):
            bits |= (step - 1) << (416 + 3 * axis)
        return (bits | self.extra).to_bytes(128, "little")


PADDED = Fields(0x1000, CODES["b4x16_p64"], (256, 32), (256,), (128, 8))
PLAIN = Fields(0x1000, CODES["f32"], (64, 32), (256,), (16, 8))


@st.composite
def fields(draw: st.DrawFn) -> Fields:
    rank = draw(st.integers(1, 5))
    code = draw(st.sampled_from(list(ELEMENT_TYPES)))
    element = ELEMENT_TYPES[code]
    unit = 128 if element.padded else 2 if element.nbits < 8 else 1  # of elements
    swizzle = draw(st.sampled_from([0, 3]) if element.padded else st.integers(0, 3))
    most = 256 * element.nbits // 8
    widest = SWIZZLES[swizzle] or most
    inner = draw(st.integers(1, min(widest, most) // 16)) * 128 // element.nbits
    size, stride, extent = st.integers(1, 2**32), st.integers(0, 2**36 - 1), st.integers(1, 256)
    return Fields(
        address=draw(st.integers(1, 2**58)) * (32 if element.padded else 16),
        code=code,
        sizes=(draw(st.integers(1, 2**32 // unit)) * unit, *(draw(size) for _ in range(rank - 1))),
        strides=tuple(
            draw(stride) // 2 * 32 if element.padded else draw(stride) * 16 for _ in range(rank - 1)
        ),
        box=(128 if element.padded else inner, *(draw(extent) for _ in range(rank - 1))),
        swizzle=swizzle,
        hint=draw(st.integers(0, 1)),
        start=draw(st.sampled_from([0, 2])),
        fetched=draw(st.integers(0, 3)),
        nan=element.nbits >= 8 and draw(st.booleans()),
        steps=tuple(draw(st.integers(1, 8)) for _ in range(rank)),
        atom=draw(st.sampled_from([0, 1, 3] if element.padded else range(4)))
        if swizzle == 3
        else 0,
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
    assert (read.atom, read.flips) == ATOMS[written.atom]
    assert (read.steps, read.fills_nan) == (written.steps[1:], written.nan)


def test_maps_of_the_compiler_are_read() -> None:
    half, tf32 = TensorMap.decode(packed(HALF)), TensorMap.decode(packed(TF32))
    assert half == TensorMap(
        HALF[0], ELEMENT_TYPES[CODES["f16"]], (320, 512), (2, 768), (64, 32), 128, (1,), False
    )
    assert half.box_nbytes == 64 * 32 * 2
    assert half.span == 511 * 768 + 320 * 2
    four, atoms = TensorMap.decode(packed(FOUR)), TensorMap.decode(packed(ATOM))
    assert (four.element.name, four.sizes, four.box) == ("b4x16_p64", (512, 256), (128, 128))
    assert (four.box_nbytes, four.span, four.swizzle) == (64 * 128, 256 * 256, 128)
    assert (atoms.element.name, atoms.swizzle, atoms.atom, atoms.flips) == ("tf32", 128, 32, False)
    assert tf32.element.name == "tf32"
    assert (tf32.sizes, tf32.strides, tf32.box) == ((64, 64), (4, 256), (16, 32))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (replace(PLAIN, address=0x1008), "address 0x1008"),
        (replace(PLAIN, address=0), "address 0"),
        (replace(PLAIN, code=14), "element type 14"),
        (replace(PLAIN, sizes=(1,) * 6), "rank 6"),
        (replace(PLAIN, box=(17, 8)), "a box of 68 bytes"),
        (replace(PLAIN, box=(16, 8), swizzle=1), "with swizzle 32"),
        (replace(PLAIN, extra=1 << (64 + 11)), "control bits"),
        (replace(PLAIN, start=1), "start bits 0x1"),
        (replace(PLAIN, atom=1), "swizzle 0 in pieces of 32 bytes"),
        (replace(PLAIN, swizzle=2, atom=3), "swizzle 64 in pieces of 64 bytes"),
        (replace(PLAIN, extra=1 << (64 + 22)), "control bits"),
        (replace(PLAIN, code=CODES["b4x16"], sizes=(63, 32), box=(32, 8)), "63 of b4x16"),
        (replace(PLAIN, code=CODES["b4x16"], box=(32, 8), nan=True), "NaN as fill of b4x16"),
        (replace(PADDED, sizes=(192, 32)), "192 of b4x16_p64"),
        (replace(PADDED, box=(64, 8)), "a box of 64 of b4x16_p64"),
        (replace(PADDED, address=0x1010), "address 0x1010 with b4x16_p64"),
        (replace(PADDED, strides=(272,)), "stride 0x110 with b4x16_p64"),
        (replace(PADDED, swizzle=2), "a box of 128 bytes along axis 0 with swizzle 64"),
        (replace(PADDED, swizzle=3, atom=2), "swizzle 128 that swaps halves"),
        (replace(PADDED, code=CODES["b6x16_p32"], box=(64, 8)), "a box of 64 of b6x16_p32"),
        (replace(PLAIN, extra=1 << (64 + 31)), "control bits"),
        (replace(PLAIN, extra=1 << (384 + 47)), "words"),
        (replace(PLAIN, extra=1 << (192 + 48)), "words"),
        (replace(PLAIN, extra=1 << (448 + 32)), "words"),
    ],
)
def test_fields_without_a_meaning_are_refused(broken: Fields, message: str) -> None:
    TensorMap.decode(PLAIN.bytes())
    with pytest.raises(TensorMapError, match=message):
        TensorMap.decode(broken.bytes())


def test_rows_that_are_left_out_are_not_among_the_bytes_of_a_box() -> None:
    assert TensorMap.decode(replace(PLAIN, steps=(4, 3)).bytes()).box_nbytes == 3 * 16 * 4
    assert TensorMap.decode(PLAIN.bytes()).box_nbytes == 8 * 16 * 4


@pytest.mark.parametrize("count", [0, 64, 127, 129])
def test_a_map_has_128_bytes(count: int) -> None:
    with pytest.raises(TensorMapError, match=f"{count} bytes"):
        TensorMap.decode(bytes(count))
