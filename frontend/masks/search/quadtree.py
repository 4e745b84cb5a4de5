"""The geometry of quad-trees over a grid of blocks: boxes of a level, their lanes and their parts.

Knows sizes only, no mask: what boxes are judged by and what becomes of them is the business of
`refine` and `parts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flexfa4.frontend.masks.grid import BlockGrid, block_count
from flexfa4.frontend.masks.search.boxes import Boxes
from flexfa4.frontend.masks.search.tiles import Tiles


@dataclass(frozen=True)
class Level:
    """How many blocks a box has along each axis, but for those at the end of the grid."""

    rows: int
    columns: int


@dataclass(frozen=True, eq=False)
class Places:
    """Where boxes of a level are: int64 tensors ``(n,)``.

    Attributes:
        owner: what a box belongs to, which knows its batch and head.
        row, column: its first block.
    """

    owner: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor

    def __len__(self) -> int:
        return self.row.shape[0]

    def __getitem__(self, which: torch.Tensor | slice) -> Places:
        return Places(self.owner[which], self.row[which], self.column[which])

    def moved(self, rows: int, columns: int) -> Places:
        """Return places that are some blocks further down and to the right."""
        return Places(self.owner, self.row + rows, self.column + columns)

    @classmethod
    def joined(cls, parts: Sequence[Places]) -> Places:
        """Return the places of several lists."""
        return cls(
            torch.cat([p.owner for p in parts]),
            torch.cat([p.row for p in parts]),
            torch.cat([p.column for p in parts]),
        )


@dataclass(frozen=True, eq=False)
class Forest:
    """Quad-trees over one grid, a tree for each owner.

    Attributes:
        grid: the blocks.
        b, h: int64 ``(owners,)``, the batch and head of each owner.
    """

    grid: BlockGrid
    b: torch.Tensor
    h: torch.Tensor

    def all_places(self, level: Level) -> Places:
        """Return all boxes of a level, of every owner."""
        device = self.b.device
        axes = (
            torch.arange(len(self.b), device=device),
            torch.arange(0, self.grid.rows, level.rows, device=device),
            torch.arange(0, self.grid.columns, level.columns, device=device),
        )
        return Places(*(axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")))

    def parts(self, places: Places, level: Level, finer: Level) -> Places:
        """Return the boxes of a finer level that boxes of a level consist of."""
        rows = range(0, level.rows, finer.rows)
        columns = range(0, level.columns, finer.columns)
        found = Places.joined([places.moved(row, column) for row in rows for column in columns])
        inside = (found.row < self.grid.rows) & (found.column < self.grid.columns)
        return found[inside.nonzero().squeeze(1)]

    def boxes(self, places: Places, level: Level) -> Boxes:
        """Return the real lanes of boxes."""
        size, (block_q, block_kv) = self.grid.size, self.grid.block_size
        q_start, kv_start = places.row * block_q, places.column * block_kv
        q_stop = (q_start + level.rows * block_q).clamp(max=size.q_len)
        kv_stop = (kv_start + level.columns * block_kv).clamp(max=size.kv_len)
        b, h = self.b[places.owner], self.h[places.owner]
        return Boxes(b, h, q_start, q_stop, kv_start, kv_stop)

    def tiles(self, places: Places) -> Tiles:
        """Return the first block of each box."""
        return Tiles(self.b[places.owner], self.h[places.owner], places.row, places.column)


def levels_over(grid: BlockGrid, depends: frozenset[str], most: int) -> list[Level]:
    """Return the levels of a tree, finest first.

    An axis that the mask does not read is not split: boxes have all of it.  Otherwise boxes of the
    finest level are single blocks, and those of the others nearly square, counted in lanes.

    Args:
        grid: the blocks.
        depends: the inputs that the mask reads.
        most: how many boxes the coarsest level may have, at least one.
    """
    block_q, block_kv = grid.block_size
    rows = 1 if "q" in depends else max(grid.rows, 1)
    columns = 1 if "kv" in depends else max(grid.columns, 1)
    levels = [Level(rows, columns)]
    while block_count(grid.rows, rows) * block_count(grid.columns, columns) > most:
        height, width = rows * block_q, columns * block_kv
        taller = columns >= grid.columns or height < 2 * width
        wider = rows >= grid.rows or width < 2 * height
        rows = 2 * rows if taller and rows < grid.rows else rows
        columns = 2 * columns if wider and columns < grid.columns else columns
        levels.append(Level(rows, columns))
    return levels
