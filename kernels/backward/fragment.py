"""`Fragment`: how a tile of scores, keys by queries, lies in the registers of a warpgroup.

The accumulators of Hopper's and of Blackwell's products are two cases of one pattern: some lanes
share a row, each has columns in short runs, and a lane has one row or two.  Needs no CuTe-DSL:
lanes and threads may be numbers or values of a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

LANES: Final = 32
"""Of a warp."""


@dataclass(frozen=True)
class Fragment:
    """See the module.

    Attributes:
        columns: of a thread.
        rows: of a thread.
        sharing: lanes that have the same rows.
        run: columns of a thread that lie side by side; those of the other lanes of its rows follow.
        ahead: see `flexfa4.kernels.emit.places.Columns`.
        pairs: neighbouring columns, which are neighbouring registers, share instructions
            (`flexfa4.primitives.packed`).
        summed: columns of which sums for captured tensors are made at once; None for all.
    """

    columns: int
    rows: int
    sharing: int
    run: int
    ahead: int | None = None
    pairs: bool = False
    summed: int | None = None

    @property
    def multiple(self) -> int:
        """A power of two that divides the position of a thread's first column."""
        return self.run if self.sharing > 1 else self.columns & -self.columns

    @property
    def row_step(self) -> int:
        """Keys from a row of a thread to its next one."""
        return LANES // self.sharing

    @property
    def warp_rows(self) -> int:
        """Rows of a warp."""
        return self.rows * self.row_step

    @property
    def offsets(self) -> tuple[int, ...]:
        """The columns of a thread, from its first one."""
        return tuple(self.column_of(index) for index in range(self.columns))

    def column_of(self, index: Any) -> Any:
        """Return a thread's column, from its first one, by its number."""
        return index // self.run * (self.run * self.sharing) + index % self.run

    def element(self, index: int) -> tuple[int, int]:
        """Return the numbers of row and column of an element, in the order of registers."""
        run, rows = self.run, self.rows
        return index // run % rows, index // (run * rows) * run + index % run

    def first_column(self, thread: Any) -> Any:
        """Return the first column of a thread."""
        return 0 if self.sharing == 1 else self.run * (thread % self.sharing)

    def first_row(self, start: Any, thread: Any) -> Any:
        """Return the first row of a thread of a warpgroup, whose rows begin with `start`."""
        warp, lane = thread // LANES, thread % LANES
        return start + warp * self.warp_rows + lane // self.sharing
