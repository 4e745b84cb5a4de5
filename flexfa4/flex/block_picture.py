"""A block mask as text: its attributes, and a character pair for each block or group of blocks.

Looks at the blocks only; `BlockMask` is its one caller.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import torch

from flexfa4.flex.block_table import BlockTable
from flexfa4.frontend.masks.grid import FULL
from flexfa4.frontend.masks.overlay import Stretches
from flexfa4.frontend.masks.runs import BlockRuns

_SHADES: Final = (" ", "░", "█")  # of EMPTY, PARTIAL and FULL groups
_MORE: Final = (
    "...",
    "to_string(limit=N) prints N of them, block_mask[batch, head] one",
)


def attributes(*groups: dict[str, Any]) -> str:
    """Return the attributes of a block mask as torch prints them, a line for each."""
    lines = [f"    {name}={value},\n" for group in groups for name, value in group.items()]
    return "BlockMask(\n" + "".join(lines).removesuffix(",\n") + "\n)"


def picture(blocks: BlockTable, grid: tuple[int, int], limit: int) -> str:
    """Return blocks as text.

    Args:
        blocks: what is drawn: those that are not empty.
        grid: rows and columns of the picture at most; -1 for as many as there are blocks.
        limit: how many pairs of batch and head are printed at most.

    Returns:
        For each pair its indices, then a line for each row: "█" where all blocks of a group are
        computed, "░" where some are, blank where none is; each twice, to look square.
    """
    batch, heads, *sizes = blocks.shape
    steps = [
        1 if most == -1 else max(1, -(-size // most))
        for size, most in zip(sizes, grid, strict=True)
    ]
    parts = []
    for b, h in itertools.islice(itertools.product(range(batch), range(heads)), limit):
        parts.append(f"({b}, {h})\n{_grid(blocks.runs_of(b, h), steps)}")
    if batch * heads > limit:
        parts.extend(_MORE)
    return "\n".join(parts)


def _grid(runs: BlockRuns, steps: list[int]) -> str:
    if not runs.width:
        return ""
    full = torch.full_like(runs.kind, FULL)
    every = Stretches(runs.line_of_run, torch.stack((runs.start, runs.stop)), full)
    computed = BlockRuns.from_sorted(1, runs.lines, runs.width, every)
    groups = computed.coarsened(*steps).to_kinds()[0].tolist()
    return "".join("".join(2 * _SHADES[kind] for kind in row) + "\n" for row in groups)
