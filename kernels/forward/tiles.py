"""Tiles of bf16 or fp16 in shared memory, as TMA writes and tensor cores read them.

A tile is stored in slabs of as many columns as a swizzle period holds, each slab with all rows of
the tile one after the other.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

ELEMENT: Final = 2
"""Bytes of an element of the tiles: bf16 or fp16."""


@functools.cache
def swizzle_bytes(row_bytes: int) -> int:
    """Return the width of a slab in bytes: the widest swizzle that divides a row."""
    return next(width for width in (128, 64, 32) if row_bytes % width == 0)


@dataclass(frozen=True)
class TileShape:
    """A tile of bf16 or fp16 in shared memory.

    Attributes:
        rows: queries or keys.
        columns: head dim.
        stages: how many tiles lie one after the other.
    """

    rows: int
    columns: int
    stages: int = 1

    @property
    def swizzle(self) -> int:
        """Width of a slab in bytes."""
        return swizzle_bytes(ELEMENT * self.columns)

    @property
    def slab(self) -> int:
        """Columns of a slab."""
        return self.swizzle // ELEMENT

    @property
    def slabs(self) -> int:
        """Slabs of a tile."""
        return self.columns // self.slab

    @property
    def bytes(self) -> int:
        """Bytes of one tile."""
        return ELEMENT * self.elements

    @property
    def elements(self) -> int:
        """Elements of one tile."""
        return self.rows * self.columns
