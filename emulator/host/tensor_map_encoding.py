"""Tensor maps as the driver writes them, for host code that asks the driver for one.

What ``cuTensorMapEncodeTiled`` makes of its arguments was seen on an H200 (driver 580), but for
elements of less than a byte and swizzles of other pieces than 16 bytes, which that GPU has not; the
layout is that of `flexfa4.emulator.host.tensor_map`, which reads the result back as a check.

What this module deliberately does not do: im2col maps and interleaved layouts, which the emulator
does not copy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flexfa4.emulator.host.errors import TensorMapError
from flexfa4.emulator.host.tensor_map import MAX_BOX, MAX_RANK, TF32, TensorMap

# by enum CUtensorMapDataType
CODES: Final = (0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 8, 7 | TF32, 8 | TF32, 11, 12, 13)
# the swizzle and its atomicity, by enum CUtensorMapSwizzle
MODES: Final = ((0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3))
MAX_STEP: Final = 8
MAX_STRIDE: Final = 1 << 40


@dataclass(frozen=True)
class TiledArguments:
    """The arguments of ``cuTensorMapEncodeTiled``.

    Attributes:
        data_type: of enum CUtensorMapDataType.
        address: of the tensor.
        sizes: elements along each axis, the contiguous one first.
        strides: bytes from one index to the next, of axes 1 and up.
        box: elements along each axis that one copy traverses.
        steps: indices from one element that is copied to the next.
        interleave: of enum CUtensorMapInterleave.
        swizzle: of enum CUtensorMapSwizzle.
        fetched: of enum CUtensorMapL2promotion, a hint.
        fill: of enum CUtensorMapFloatOOBfill.
    """

    data_type: int
    address: int
    sizes: Sequence[int]
    strides: Sequence[int]
    box: Sequence[int]
    steps: Sequence[int]
    interleave: int = 0
    swizzle: int = 0
    fetched: int = 0
    fill: int = 0

    def encode(self) -> bytes:
        """Return the map's 128 bytes.

        Raises:
            TensorMapError: for what the driver refuses, and for what the emulator does not copy.
        """
        self._check()
        code = CODES[self.data_type]
        rank = len(self.sizes)
        swizzle, atomicity = MODES[self.swizzle]
        word1 = (rank - 1) << 4 | (code & 15) << 7 | swizzle << 13 | self.fill << 15
        word1 |= (code >> 4) << 16 | self.fetched << 17 | atomicity << 19
        strides = [stride >> 4 for stride in self.strides] + [0] * (MAX_RANK - rank)
        sizes = [size - 1 for size in self.sizes] + [0] * (MAX_RANK - rank)
        box = [extent - 1 for extent in self.box] + [0] * (MAX_RANK - rank)
        low = [stride & 0xFFFF_FFFF for stride in strides]
        high = sum((stride >> 32) << (32 + 4 * axis) for axis, stride in enumerate(strides))
        steps = sum((step - 1) << (32 + 3 * axis) for axis, step in enumerate(self.steps))
        words = (
            self.address,
            word1 | low[0] << 32,
            low[1] | low[2] << 32,
            low[3] | high,
            sizes[0] | sizes[1] << 32,
            sizes[2] | sizes[3] << 32,
            sizes[4] | steps | box[0] << 56,
            sum(extent << 8 * axis for axis, extent in enumerate(box[1:])),
        )
        encoded = struct.pack("<16Q", *words, *[0] * 8)
        TensorMap.decode(encoded)  # refuses the rest of what cannot be
        return encoded

    def _check(self) -> None:
        rules = (
            (self.data_type < len(CODES), f"data type {self.data_type}", "data types 0 to 15"),
            (1 <= len(self.sizes) <= MAX_RANK, f"rank {len(self.sizes)}", "ranks 1 to 5"),
            (self.interleave == 0, f"interleave {self.interleave}", "no interleave"),
            (self.swizzle < len(MODES), f"swizzle {self.swizzle}", "swizzles 0 to 6"),
            (self.fetched <= 3, f"L2 promotion {self.fetched}", "promotions 0 to 3"),
            (self.fill <= 1, f"fill {self.fill}", "fills 0 and 1"),
            (all(1 <= n <= 1 << 32 for n in self.sizes), f"sizes {self.sizes}", "1 to 2**32"),
            (all(1 <= n <= MAX_BOX for n in self.box), f"a box of {self.box}", "1 to 256"),
            (
                all(1 <= n <= MAX_STEP for n in self.steps),
                f"element strides {self.steps}",
                "1 to 8",
            ),
            (
                all(n % 16 == 0 and 0 <= n < MAX_STRIDE for n in self.strides),
                f"strides of {self.strides} bytes",
                "multiples of 16 below 2**40",
            ),
        )
        for holds, found, wanted in rules:
            if not holds:
                raise TensorMapError(found_value=found, wanted=wanted)
