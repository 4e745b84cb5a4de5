"""Mask functions made by a `BlockMask`: from lists of blocks, and for a part of another mask.

Both are ordinary mask functions of captured tables, so that nothing below the public API has a case
for them: `ListedBlocks` says what lists mean, `Part` what slicing means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from flexfa4.flex.block_lists import readable
from flexfa4.flex.masks import MaskFunction
from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL


@dataclass(frozen=True, eq=False)
class ListedBlocks:
    """The mask of a table of kinds: full blocks visible, partial ones where `mask_mod` is True.

    Attributes:
        kinds: int8 ``(B, H, rows, columns)``, 1 where all batches or heads have the same.
        block_size: queries and keys in a block.
        mask_mod: None where lists are the whole mask.
    """

    kinds: torch.Tensor
    block_size: tuple[int, int]
    mask_mod: MaskFunction | None

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return whether the query sees the key."""
        size_q, size_kv = self.block_size
        batch = 0 if self.kinds.shape[0] == 1 else b
        head = 0 if self.kinds.shape[1] == 1 else h
        kind = self.kinds[batch, head, q_idx // size_q, kv_idx // size_kv]
        if self.mask_mod is None:
            return kind != EMPTY
        return (kind == FULL) | ((kind == PARTIAL) & self.mask_mod(b, h, q_idx, kv_idx))


@dataclass(frozen=True, eq=False)
class Picked:
    """Where the positions of a part lie in the whole, along one axis.

    Attributes:
        start: the first position, where they follow each other.
        table: int64, the positions, where they do not; None otherwise.
        only: the part has one position, which stands for all.
    """

    start: int = 0
    table: torch.Tensor | None = None
    only: bool = False

    @classmethod
    def of(cls, positions: torch.Tensor, device: torch.device) -> Picked:
        """Return it for int64 positions ``(n,)`` with n > 0."""
        if not readable(positions):
            return cls(table=positions.to(device))
        first = int(positions[0])
        steps = torch.arange(first, first + len(positions))
        if torch.equal(positions, steps):
            return cls(first, only=len(positions) == 1)
        return cls(table=positions.to(device))

    def __call__(self, index: Any) -> Any:
        """Return the position in the whole of a position in the part."""
        if self.table is not None:
            return self.table[index]
        return index * 0 + self.start if self.only else index + self.start


@dataclass(frozen=True, eq=False)
class Part:
    """The mask of a part: `mask_mod` at the positions that the part has in the whole.

    Attributes:
        mask_mod: the mask of the whole.
        batch, head, rows: which of them the part has, rows being rows of blocks; None for all.
        size_q: queries in a block.
    """

    mask_mod: MaskFunction
    batch: Picked | None
    head: Picked | None
    rows: Picked | None
    size_q: int

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return whether the query of the part sees the key."""
        if self.batch is not None:
            b = self.batch(b)
        if self.head is not None:
            h = self.head(h)
        if self.rows is not None:
            if self.rows.table is None:
                q_idx = q_idx + self.rows.start * self.size_q
            else:
                q_idx = self.rows(q_idx // self.size_q) * self.size_q + q_idx % self.size_q
        return self.mask_mod(b, h, q_idx, kv_idx)
