"""The 128 bytes of a tensor map, as tensor copies read them, and what they mean.

CuTe-DSL's host code writes tensor maps itself, without the driver, so the layout below was found
by comparing the maps of tensors that differ in one property; the driver's documentation names the
fields (``cuTensorMapEncodeTiled``) but not their places.  Of the upper bits of strides only those
of axis 1 were seen; the others follow it in order.  Places where only zeros were ever seen
have no known meaning: a map with anything else there is refused, and not read as if it had not.

word (64 bits)
    0     address of the tensor
    1     [3:0] 2; [6:4] rank - 1; [10:7] element type; [14:13] swizzle; [16] TF32 of an f32 type;
          [18] 1; [21] the tensor spans 128 KiB or more, a hint; [63:32] stride of axis 1
    2     [31:0] stride of axis 2; [63:32] stride of axis 3
    3     [31:0] stride of axis 4; [35:32] [39:36] [43:40] [47:44] bits 35:32 of those four strides
    4     [31:0] size of axis 0; [63:32] size of axis 1
    5     [31:0] size of axis 2; [63:32] size of axis 3
    6     [31:0] size of axis 4; [55:32] element strides; [63:56] box of axis 0
    7     [7:0] [15:8] [23:16] [31:24] box of axes 1 to 4
    8-15  unused

Strides count 16 bytes; sizes, boxes and element strides are stored less one.  Axis 0 is the one
whose elements lie side by side.

This module does not write maps, and does not copy anything.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from flexfa4.emulator.host.errors import TensorMapError

NBYTES: Final = 128
ALIGNMENT: Final = 64  # of a map in memory
MAX_RANK: Final = 5
MAX_BOX: Final = 256


@dataclass(frozen=True)
class ElementType:
    """What a tensor map says of an element: its name in PTX's manner, and its bytes."""

    name: str
    nbytes: int


TF32: Final = 1 << 4  # bit 16, above the code
# "b" types stand for all integers of that size, and b8 for both fp8 types too
ELEMENT_TYPES: Final = {
    0: ElementType("b8", 1),
    1: ElementType("b16", 2),
    2: ElementType("b32", 4),
    4: ElementType("b64", 8),
    6: ElementType("f16", 2),
    7: ElementType("f32", 4),
    7 | TF32: ElementType("tf32", 4),
    9: ElementType("f64", 8),
    10: ElementType("bf16", 2),
}
SWIZZLES: Final = (0, 32, 64, 128)  # bytes of a row of the pattern, by the field's value
# word 1 without rank, type, swizzle, the hint and the stride; and its value
CONSTANT_BITS: Final = 0xFFFF_FFFF & ~(0x7 << 4 | 0xF << 7 | 0x3 << 13 | 1 << 16 | 1 << 21)
CONSTANT: Final = 1 << 18 | 2


@dataclass(frozen=True)
class TensorMap:
    """A tensor in global memory and the box of it that one copy moves.

    Attributes:
        address: of the first element.
        element: type of the elements.
        sizes: elements along each axis; axis 0 is contiguous.
        strides: bytes from one index to the next, along each axis; that of axis 0 is an element's.
        box: elements along each axis that one copy moves.
        swizzle: 0, or the bytes of a row in the swizzled order of shared memory: 32, 64, 128.
    """

    address: int
    element: ElementType
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    @property
    def rank(self) -> int:
        """Number of axes, 1 to 5."""
        return len(self.sizes)

    @property
    def box_nbytes(self) -> int:
        """Bytes in shared memory that one copy fills or reads."""
        nbytes = self.element.nbytes
        for extent in self.box:
            nbytes *= extent
        return nbytes

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last one."""
        reach = sum(
            (size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True)
        )
        return reach + self.element.nbytes

    @classmethod
    def decode(cls, data: bytes) -> TensorMap:
        """Read a map.

        Args:
            data: its 128 bytes, in the order of memory.

        Raises:
            TensorMapError: for bytes that no encoder writes.
        """
        words = _words(data)
        rank = _bits(words[1], 4, 3) + 1
        code = _bits(words[1], 7, 4) | (TF32 if _bits(words[1], 16, 1) else 0)
        element = ELEMENT_TYPES.get(code)
        if element is None:
            raise TensorMapError(found_value=f"element type {code}", wanted=_known_types())
        if rank > MAX_RANK:
            raise TensorMapError(found_value=f"rank {rank}", wanted="a rank from 1 to 5")
        _check_unused(words, rank)
        lows = [words[1] >> 32, words[2], words[2] >> 32, words[3]]
        highs = [_bits(words[3], 32 + 4 * axis, 4) for axis in range(MAX_RANK - 1)]
        strides = [(h << 32 | low & 0xFFFF_FFFF) << 4 for h, low in zip(highs, lows, strict=True)]
        sizes = [words[4], words[4] >> 32, words[5], words[5] >> 32, words[6]]
        box = [words[6] >> 56, *(_bits(words[7], 8 * axis, 8) for axis in range(MAX_RANK - 1))]
        decoded = cls(
            address=words[0],
            element=element,
            sizes=tuple((size & 0xFFFF_FFFF) + 1 for size in sizes[:rank]),
            strides=(element.nbytes, *strides[: rank - 1]),
            box=tuple(extent + 1 for extent in box[:rank]),
            swizzle=SWIZZLES[_bits(words[1], 13, 2)],
        )
        decoded._check()
        return decoded

    def _check(self) -> None:
        """Refuse what ``cuTensorMapEncodeTiled`` refuses."""
        inner = self.box[0] * self.element.nbytes
        rules = (
            (self.address % 16 == 0, f"address {self.address:#x}", "a multiple of 16"),
            (self.address != 0, "address 0", "the address of a tensor"),
            (inner % 16 == 0, f"a box of {inner} bytes along axis 0", "a multiple of 16 bytes"),
            (
                not self.swizzle or inner <= self.swizzle,
                f"a box of {inner} bytes along axis 0 with swizzle {self.swizzle}",
                "a box no wider than the swizzle",
            ),
        )
        for holds, found, wanted in rules:
            if not holds:
                raise TensorMapError(found_value=found, wanted=wanted)


def _words(data: bytes) -> tuple[int, ...]:
    if len(data) != NBYTES:
        raise TensorMapError(found_value=f"{len(data)} bytes", wanted=f"{NBYTES} bytes")
    return struct.unpack("<16Q", data)


def _bits(word: int, start: int, count: int) -> int:
    return word >> start & ((1 << count) - 1)


def _known_types() -> str:
    return "an element type of " + ", ".join(
        f"{code} ({element.name})" for code, element in ELEMENT_TYPES.items()
    )


def _check_unused(words: tuple[int, ...], rank: int) -> None:
    """Refuse bits whose meaning is not known; words past 7 are never read."""
    constant = words[1] & CONSTANT_BITS
    if constant != CONSTANT:
        raise TensorMapError(
            found_value=f"control bits {constant:#x}", wanted=f"control bits {CONSTANT:#x}"
        )
    if element_strides := _bits(words[6], 32, 24):
        raise TensorMapError(
            found_value=f"element strides {element_strides:#x}", wanted="element strides of 1"
        )
    if words[3] >> 48 or words[7] >> 32:
        raise TensorMapError(
            found_value=f"words {words[3]:#x} and {words[7]:#x}", wanted="zeros in unused bits"
        )
