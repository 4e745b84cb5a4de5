"""A block mask as text: one character pair for each block, or for each group of blocks.

Looks at a dense 0/1 table only; `BlockMask.to_string` is its one caller.
"""

from __future__ import annotations

import itertools
from typing import Final

import torch

_ALL, _SOME, _NONE = "█", "░", " "
_MORE: Final = (
    "...",
    "to_string(limit=N) prints N of them, block_mask[batch, head] one",
)


def picture(table: torch.Tensor, grid: tuple[int, int], limit: int) -> str:
    """Return a table ``(B, H, rows, columns)`` of 0 and 1 as text.

    Args:
        table: 1 for the blocks that are computed.
        grid: rows and columns of the picture at most; -1 for as many as there are blocks.
        limit: how many pairs of batch and head are printed at most.

    Returns:
        For each pair its indices, then a line for each row: "█" where all blocks of a group are
        computed, "░" where some are, blank where none is; each twice, to look square.
    """
    batch, heads = table.shape[:2]
    parts = []
    for b, h in itertools.islice(itertools.product(range(batch), range(heads)), limit):
        parts.append(f"({b}, {h})\n{_grid(table[b, h], grid)}")
    if batch * heads > limit:
        parts.extend(_MORE)
    return "\n".join(parts)


def _grid(table: torch.Tensor, grid: tuple[int, int]) -> str:
    if not table.numel():
        return ""
    steps = [
        1 if most == -1 else max(1, -(-size // most))
        for size, most in zip(table.shape, grid, strict=True)
    ]
    lines = []
    for rows in torch.split(table, steps[0]):
        groups = [float(group.float().mean()) for group in torch.split(rows, steps[1], dim=1)]
        lines.append("".join(2 * (_NONE if g == 0 else _ALL if g == 1 else _SOME) for g in groups))
    return "".join(line + "\n" for line in lines)
