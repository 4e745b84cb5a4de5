"""Tensor maps as hosts encode them, and the boxes that they describe, for tests of tensor copies.

Written from the layout that the CUDA driver writes (cuTensorMapEncodeTiled); nothing here is shared
with the code that decodes maps.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

CODES = {
    torch.uint8: 0, torch.uint16: 1, torch.uint32: 2, torch.int32: 3, torch.uint64: 4,
    torch.int64: 5, torch.float16: 6, torch.float32: 7, torch.float64: 9, torch.bfloat16: 10,
}  # fmt: skip
FLUSHED_F32, TF32 = 8, 7 | 1 << 16
"""Codes of f32 whose sums flush subnormal numbers, and of tf32, which has a bit of its own."""

SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
ATOMS = {(16, False): 0, (32, False): 1, (32, True): 2, (64, False): 3}


@dataclass(frozen=True)
class Packed:
    """An element type of less than a byte, over a tensor of bytes: numbers are those of bytes.

    Attributes:
        code: of the type.
        bits: of an element.
        group: bytes of the tensor that take 16 bytes of shared memory.
    """

    code: int
    bits: int
    group: int = 16


B4, B4_PADDED, B6_PADDED = Packed(11, 4), Packed(12, 4, 8), Packed(13, 6, 12)


@dataclass(frozen=True)
class Boxed:
    """A tensor and the box of it that one copy moves; axis 0 of the map is the tensor's last.

    Attributes:
        tensor: strides are multiples of 16 bytes, but for the last one.
        box: elements that a copy traverses, in the order of the map.
        steps: of indices from one copied element to the next, in the order of the map.
        swizzle: 0, 32, 64 or 128.
        nan: what is outside of the tensor is NaN.
        code: of the element type, where it is not that of the tensor.
        packed: the element type, if it takes less than a byte; the tensor is one of bytes, and so
            are the numbers of `box`, which `encode` and `coordinates` turn into those of elements.
        atom: bytes that the swizzle keeps together: 16, 32, 64.
        flips: the swizzle swaps halves of 16 bytes.
    """

    tensor: torch.Tensor
    box: Sequence[int]
    steps: Sequence[int] = (1,) * 5
    swizzle: int = 0
    nan: bool = False
    code: int | None = None
    packed: Packed | None = None
    atom: int = 16
    flips: bool = False

    def elements(self, count: int) -> int:
        """Return how many elements of the map are that many of the tensor."""
        whole = count * Fraction(8, self.packed.bits) if self.packed else Fraction(count)
        assert whole.denominator == 1
        return int(whole)

    def coordinates(self, first: Sequence[int]) -> str:
        """Return the coordinates of a box that begins at `first`, as PTX text."""
        return ", ".join(map(str, (self.elements(first[0]), *first[1:])))

    def encode(self) -> bytes:
        """Return the map's 128 bytes."""
        tensor = self.tensor
        rank = tensor.ndim
        size = tensor.element_size()
        sizes = [*reversed(tensor.shape), *[1] * (5 - rank)]
        sizes[0] = self.elements(sizes[0])
        strides = [s * size >> 4 for s in reversed(tensor.stride()[:-1])] + [0] * (5 - rank)
        code = CODES[tensor.dtype] if self.code is None else self.code
        code = self.packed.code if self.packed else code
        word1 = (rank - 1) << 4 | (code & 15) << 7 | SWIZZLES[self.swizzle] << 13
        word1 |= ATOMS[self.atom, self.flips] << 19
        word1 |= self.nan << 15 | (code >> 16) << 16 | 2 << 17 | (strides[0] & 0xFFFFFFFF) << 32
        high = sum((stride >> 32) << (32 + 4 * axis) for axis, stride in enumerate(strides[:4]))
        box = [self.elements(self.box[0]), *self.box[1:], *[1] * (5 - rank)]
        words = [
            tensor.data_ptr(),
            word1,
            strides[1] & 0xFFFFFFFF | (strides[2] & 0xFFFFFFFF) << 32,
            strides[3] & 0xFFFFFFFF | high,
            sizes[0] - 1 | (sizes[1] - 1) << 32,
            sizes[2] - 1 | (sizes[3] - 1) << 32,
            sizes[4] - 1 | (box[0] - 1) << 56,
            sum((box[axis] - 1) << 8 * (axis - 1) for axis in range(1, 5)),
        ]
        words[6] |= sum((step - 1) << (32 + 3 * axis) for axis, step in enumerate(self.steps))
        return struct.pack("<8Q", *words) + bytes(64)

    def rows(self, first: Sequence[int]) -> list[list[tuple[int, ...] | None]]:
        """Return, for each row of a box that begins at `first`, the index of each element.

        Indices are those of the tensor; None stands for elements outside of it.
        """
        rank = self.tensor.ndim
        shape = [*reversed(self.tensor.shape)]
        outer = [
            range(first[axis], first[axis] + self.box[axis], self.steps[axis])
            for axis in range(rank - 1, 0, -1)
        ]
        rows = []
        for index in itertools.product(*outer):
            row: list[tuple[int, ...] | None] = []
            for x in range(first[0], first[0] + self.box[0]):
                at = (*index, x)
                inside = all(0 <= i < n for i, n in zip(at, reversed(shape), strict=True))
                row.append(at if inside else None)
            rows.append(row)
        return rows

    def places(self, row: int, base: int = 0) -> list[int]:
        """Return where the elements of a row lie in a box at a shared address, as addresses."""
        size = self.tensor.element_size()
        group = self.packed.group if self.packed else 16
        room = [x * size // group * 16 + x * size % group for x in range(self.box[0])]
        return [self._swizzled(base + row * self._pitch + at) for at in room]

    def padding(self, row: int, base: int = 0) -> list[int]:
        """Return the addresses of the bytes of a row that hold no element."""
        group = self.packed.group if self.packed else 16
        pieces = self.box[0] * self.tensor.element_size() // group
        room = [16 * piece + byte for piece in range(pieces) for byte in range(group, 16)]
        return [self._swizzled(base + row * self._pitch + at) for at in room]

    @property
    def _pitch(self) -> int:
        group = self.packed.group if self.packed else 16
        return self.swizzle or self.box[0] * self.tensor.element_size() // group * 16

    def _swizzled(self, at: int) -> int:
        line = at // 128
        flipped = at ^ 8 if self.flips and line % 2 else at
        return flipped ^ line % (self.swizzle // self.atom) * self.atom if self.swizzle else flipped


def aligned_bytes(data: bytes, alignment: int = 128) -> torch.Tensor:
    """Return bytes in memory that is aligned."""
    room = torch.zeros(len(data) + alignment, dtype=torch.uint8)
    found = room[-room.data_ptr() % alignment :][: len(data)]
    found.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return found


def aligned_tensor(values: torch.Tensor, alignment: int = 128) -> torch.Tensor:
    """Return a contiguous copy of a tensor in memory that is aligned."""
    values = values.contiguous()
    room = torch.zeros(values.nbytes + alignment, dtype=torch.uint8)
    found = room[-room.data_ptr() % alignment :][: values.nbytes].view(values.dtype)
    return found.view(values.shape).copy_(values)
