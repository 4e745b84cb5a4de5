"""Rows and columns of a tile that a thread holds, and places among them.

Rows are queries and columns keys, or, where a kernel computes scores transposed, the other way
round: what columns are is said by `Along`.

Plain Python: positions and heads are values of the kernel, which nothing here looks into.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

ORIGIN: Final = -(1 << 31)
"""In place of an offset: the thread's first column, at which linear values are evaluated."""


Along = Literal["kv", "q"]
"""The position that moves along a row: from column to column."""

LINES: Final[dict[Along, Along]] = {"kv": "q", "q": "kv"}
"""The position that a row has."""


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
        ahead: for so many columns, what is the same for all rows is read when a tile begins, and
            for the others when it is used; None for all.  A whole row's would fill the registers.
    """

    offsets: tuple[int, ...]
    multiple: int = 1
    ahead: int | None = None

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
        position: its query; its key, where columns are queries.
        h, b: its head and batch, where these differ from row to row.
        offset: how many positions it is behind the thread's first row, where that is known when the
            kernel is compiled, for every row.
    """

    position: Any
    h: Any = None
    b: Any = None
    offset: int | None = None
