"""Rows and columns of a tile that a thread holds, and places among them.

Plain Python: positions and heads are values of the kernel, which nothing here looks into.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

ORIGIN: Final = -(1 << 31)
"""In place of an offset: the thread's first column, at which linear values are evaluated."""


class Place(NamedTuple):
    """Where a value is asked for.

    Attributes:
        row: index into the rows; None for what does not vary with them.
        offset: of the column from the thread's first one, or `ORIGIN`; None likewise.
        inside: the place must exist, since something is read there: rows do not share values, and
            columns past the end count as the last one.
    """

    row: int | None
    offset: int | None
    inside: bool = False


EVERYWHERE: Final = Place(None, None)
"""The place of what varies with neither."""


@dataclass(frozen=True)
class Columns:
    """The columns of a tile that a thread holds.

    Attributes:
        offsets: of each column from the thread's first one; known when the kernel is compiled.
        multiple: a power of two that divides the position of the first one.
    """

    offsets: tuple[int, ...]
    multiple: int = 1

    def aligned_group(self, offset: int, count: int, distance: int) -> list[int] | None:
        """Return the offsets of `count` columns that follow each other, among them `offset`.

        Returns:
            None unless the position of the first, `distance` further on, is a multiple of `count`.
        """
        first = offset - (offset + distance) % count
        group = list(range(first, first + count))
        return group if set(group) <= set(self.offsets) else None


@dataclass(frozen=True)
class Row:
    """A row of a tile.

    Attributes:
        q: its query.
        h, b: its head and batch, where these differ from row to row.
        offset: how many queries it is behind the thread's first row, where that is known when the
            kernel is compiled, for every row.
    """

    q: Any
    h: Any = None
    b: Any = None
    offset: int | None = None
