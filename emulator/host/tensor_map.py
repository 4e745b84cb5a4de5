"""The 128 bytes of a tensor map, as tensor copies read them, and what they mean.

The driver's documentation names the fields (``cuTensorMapEncodeTiled``) but not their places.  The
layout below was found by comparing maps that differ in one property: maps that the driver writes
for an H200, and maps that CuTe-DSL's host code writes, which does so without the driver; what
``tensormap.replace`` changes on an H200 agrees with it.  A map with anything else in it is refused,
and not read as if it had not.

word (64 bits)
    0     address of the tensor
    1     [3:0] 0 by the driver, 2 by CuTe-DSL; [6:4] rank - 1; [10:7] element type; [12:11]
          interleave; [14:13] swizzle; [15] fill with NaN; [16] TF32 of an f32 type; [18:17] how
          much is fetched to L2, a hint; [20:19] the swizzle's atomicity; [21] the tensor spans
          128 KiB or more, a hint; [63:32] stride of axis 1
    2     [31:0] stride of axis 2; [63:32] stride of axis 3
    3     [31:0] stride of axis 4; [35:32] [39:36] [43:40] [47:44] bits 35:32 of those four strides
    4     [31:0] size of axis 0; [63:32] size of axis 1
    5     [31:0] size of axis 2; [63:32] size of axis 3
    6     [31:0] size of axis 4; [34:32] to [46:44] element strides of axes 0 to 4; [63:56] box of
          axis 0
    7     [7:0] [15:8] [23:16] [31:24] box of axes 1 to 4
    8-15  notes of the driver, which no copy reads

Strides count 16 bytes; sizes, boxes and element strides are stored less one.  Axis 0 is the one
whose elements lie side by side.

This module does not write maps, and does not copy anything: the core, which decodes the same bytes
by itself (``native/copies/tensor_map.cpp``), does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from flexfa4.emulator.host.errors import TensorMapError

NBYTES: Final = 128
ALIGNMENT: Final = 64  # of a map in memory
MAX_RANK: Final = 5
MAX_BOX: Final = 256


@dataclass(frozen=True)
class ElementType:
    """What a tensor map says of an element.

    Attributes:
        name: in PTX's manner.
        nbits: of global memory that it takes.
        packed: bytes of the tensor in each 16 bytes of shared memory; fewer leave padding.
    """

    name: str
    nbits: int
    packed: int = 16

    @property
    def nbytes(self) -> int:
        """Bytes that it takes; 0 for less than one."""
        return self.nbits // 8

    @property
    def padded(self) -> bool:
        """Whether there is padding between elements in shared memory."""
        return self.packed < 16


TF32: Final = 1 << 4  # bit 16, above the code
# "b" types stand for all integers of that size, since CuTe-DSL writes no others, and b8 for both
# fp8 types too; "ftz" types flush subnormal numbers in reductions
ELEMENT_TYPES: Final = {
    0: ElementType("b8", 8),
    1: ElementType("b16", 16),
    2: ElementType("b32", 32),
    3: ElementType("s32", 32),
    4: ElementType("b64", 64),
    5: ElementType("s64", 64),
    6: ElementType("f16", 16),
    7: ElementType("f32", 32),
    7 | TF32: ElementType("tf32", 32),
    8: ElementType("f32.ftz", 32),
    8 | TF32: ElementType("tf32.ftz", 32),
    9: ElementType("f64", 64),
    10: ElementType("bf16", 16),
    11: ElementType("b4x16", 4),
    12: ElementType("b4x16_p64", 4, 8),
    13: ElementType("b6x16_p32", 6, 12),
}
SWIZZLES: Final = (0, 32, 64, 128)  # bytes of a row of the pattern, by the field's value
# bytes that the swizzle keeps together, and whether it swaps halves, by the atomicity's value
ATOMS: Final = ((16, False), (32, False), (32, True), (64, False))
PADDED_BOX: Final = 128  # elements along axis 0 of a box with padding, and a unit of such tensors
STARTS: Final = (0, 2)  # what [3:0] of word 1 may be
# bits of the lower half of word 1 that have to be 0: interleave, and those without a known meaning
ZEROS: Final = 0x3 << 11 | 0x3FF << 22


@dataclass(frozen=True)
class TensorMap:
    """A tensor in global memory and the box of it that one copy moves.

    Attributes:
        address: of the first element.
        element: type of the elements.
        sizes: elements along each axis; axis 0 is contiguous.
        strides: bytes from one index to the next, along each axis; that of axis 0 is an element's,
            0 where elements take less than a byte.
        box: elements along each axis that one copy moves.
        swizzle: 0, or the bytes of a row in the swizzled order of shared memory: 32, 64, 128.
        steps: indices from one element that is copied to the next, along each axis but 0.
        fills_nan: elements of the box outside of the tensor are NaN, and not 0.
        atom: bytes that the swizzle keeps together: 16, 32, 64.
        flips: the swizzle swaps the halves of 16 bytes in every other line of 128.
    """

    address: int
    element: ElementType
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    steps: tuple[int, ...] = ()
    fills_nan: bool = False
    atom: int = 16
    flips: bool = False

    @property
    def rank(self) -> int:
        """Number of axes, 1 to 5."""
        return len(self.sizes)

    @property
    def box_nbytes(self) -> int:
        """Bytes that one copy moves: with those outside of the tensor, and without padding."""
        nbytes = self.element.nbits * self.box[0] // 8
        for extent, step in zip(self.box[1:], self.steps or (1,) * (self.rank - 1), strict=True):
            nbytes *= -(-extent // step)
        return nbytes

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last one."""
        rows = zip(self.sizes[1:], self.strides[1:], strict=True)
        return sum((size - 1) * stride for size, stride in rows) + self._bytes_of(self.sizes[0])

    def _bytes_of(self, elements: int) -> int:
        return elements * self.element.nbits // 8

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
        _check_unused(words)
        lows = [words[1] >> 32, words[2], words[2] >> 32, words[3]]
        highs = [_bits(words[3], 32 + 4 * axis, 4) for axis in range(MAX_RANK - 1)]
        strides = [(h << 32 | low & 0xFFFF_FFFF) << 4 for h, low in zip(highs, lows, strict=True)]
        sizes = [words[4], words[4] >> 32, words[5], words[5] >> 32, words[6]]
        box = [words[6] >> 56, *(_bits(words[7], 8 * axis, 8) for axis in range(MAX_RANK - 1))]
        atom, flips = ATOMS[_bits(words[1], 19, 2)]
        decoded = cls(
            address=words[0],
            element=element,
            sizes=tuple((size & 0xFFFF_FFFF) + 1 for size in sizes[:rank]),
            strides=(element.nbytes, *strides[: rank - 1]),
            box=tuple(extent + 1 for extent in box[:rank]),
            swizzle=SWIZZLES[_bits(words[1], 13, 2)],
            steps=tuple(_bits(words[6], 32 + 3 * axis, 3) + 1 for axis in range(1, rank)),
            fills_nan=bool(_bits(words[1], 15, 1)),
            atom=atom,
            flips=flips,
        )
        decoded._check()
        return decoded

    def _check(self) -> None:
        """Refuse what ``cuTensorMapEncodeTiled`` refuses."""
        inner = self._bytes_of(self.box[0])
        room = inner // self.element.packed * 16
        rules = (
            (self.address % 16 == 0, f"address {self.address:#x}", "a multiple of 16"),
            (self.address != 0, "address 0", "the address of a tensor"),
            (inner % 16 == 0, f"a box of {inner} bytes along axis 0", "a multiple of 16 bytes"),
            (
                not self.swizzle or room <= self.swizzle,
                f"a box of {room} bytes along axis 0 with swizzle {self.swizzle}",
                "a box no wider than the swizzle",
            ),
            (
                self.atom == 16 or self.swizzle == 128,
                f"swizzle {self.swizzle} in pieces of {self.atom} bytes",
                "pieces of 16 bytes, or swizzle 128",
            ),
            *(self._rules_of_packed() if self.element.nbits < 8 else ()),
        )
        for holds, found, wanted in rules:
            if not holds:
                raise TensorMapError(found_value=found, wanted=wanted)

    def _rules_of_packed(self) -> Iterator[tuple[bool, str, str]]:
        name = self.element.name
        unit = PADDED_BOX if self.element.padded else 2
        yield self.sizes[0] % unit == 0, f"{self.sizes[0]} of {name}", f"a multiple of {unit}"
        yield not self.fills_nan, f"NaN as fill of {name}", "NaN for floating-point types"
        if not self.element.padded:
            return
        yield self.box[0] == PADDED_BOX, f"a box of {self.box[0]} of {name}", f"{PADDED_BOX} of it"
        for what, value in (("address", self.address), *(("stride", s) for s in self.strides[1:])):
            yield value % 32 == 0, f"{what} {value:#x} with {name}", "a multiple of 32"
        yield (
            self.swizzle in (0, 128) and not self.flips,
            f"swizzle {self.swizzle}{' that swaps halves' if self.flips else ''} with {name}",
            "no swizzle, or one of 128 that does not swap halves",
        )


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


def _check_unused(words: tuple[int, ...]) -> None:
    """Refuse bits whose meaning is not known; words past 7 are never read."""
    start = _bits(words[1], 0, 4)
    if start not in STARTS:
        raise TensorMapError(found_value=f"start bits {start:#x}", wanted="start bits 0 or 0x2")
    if others := words[1] & ZEROS:
        raise TensorMapError(
            found_value=f"control bits {others:#x}", wanted="zeros there, and no interleave"
        )
    if words[3] >> 48 or words[7] >> 32 or _bits(words[6], 47, 9):
        raise TensorMapError(
            found_value=f"words {words[3]:#x}, {words[6]:#x} and {words[7]:#x}",
            wanted="zeros in unused bits",
        )
