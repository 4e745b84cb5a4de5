"""The kinds of a block mask's blocks as one tensor of torch's graph, and back.

A table is int8 ``(b, h, query blocks, key blocks)`` on the CPU, of 0 empty, 1 partial, 2 full, with
at least two rows and columns: its shape follows from sizes alone, so that fake tensors can stand
for it.  Only a block mask that is made inside a graph is one; others go through graphs as the text
of the mask and its captured values.
"""

from __future__ import annotations

from typing import Final

import torch

from flexfa4.frontend.masks.runs import BlockRuns
from flexfa4.frontend.masks.structure import MaskBlocks

# Torch's symbolic sizes take 0 and 1 for special: a table with fewer rows or columns would compile
# anew where a length crosses one block.
MIN_TABLE: Final = 2


def table_of(blocks: MaskBlocks) -> torch.Tensor:
    """Return the table of a mask."""
    kinds = blocks.kinds().cpu()
    rows, columns = (max(0, MIN_TABLE - n) for n in kinds.shape[2:])
    return torch.nn.functional.pad(kinds, (0, columns, 0, rows)) if rows or columns else kinds


def with_table(blocks: MaskBlocks, table: torch.Tensor) -> MaskBlocks:
    """Return the structure of a mask whose table is known.

    Args:
        blocks: the structure, nothing of which has been found.
        table: its table.
    """
    if blocks.is_closed:
        return blocks
    b, h = blocks.classes.members_on(table.device)
    kinds = table[b, h, : blocks.grid.rows, : blocks.grid.columns]
    return blocks.with_runs(BlockRuns.from_kinds(kinds).to(blocks.values.device))
