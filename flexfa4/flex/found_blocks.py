"""The blocks of a `flexfa4.BlockMask` in FlexAttention's form: of any size, no ragged one full.

Where a mask was made in a graph of torch's they are a tensor of the graph, found by an op.
Does not write lists.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flexfa4.block_mask import BlockMask
from flexfa4.flex.block_table import BlockTable, FoundBlocks, ListedKinds
from flexfa4.frontend.masks.grid import block_count
from flexfa4.masks.spec import GivenSizes, Spec
from flexfa4.torch_op import calls
from flexfa4.torch_op.deferred import DeferredBlockMask


@dataclass(frozen=True)
class Layout:
    """How blocks become lists.

    Attributes:
        lengths: queries and keys.
        block_size: of a block.
        device: where the lists are written.
        separate_full: list full blocks apart from partial ones.
        by_columns: write the lists by columns, too.
    """

    lengths: tuple[int, int]
    block_size: tuple[int, int]
    device: torch.device
    separate_full: bool = True
    by_columns: bool = True

    def shapes(self, blocks: tuple[int, int, int, int]) -> list[tuple[int, ...] | None]:
        """Return the shapes of the eight lists, None for those that are not there.

        Args:
            blocks: ``(B, H, rows, columns)``.
        """
        b, h, rows, columns = blocks
        shapes: list[tuple[int, ...] | None] = []
        for written, lines, width in ((True, rows, columns), (self.by_columns, columns, rows)):
            pair = ((b, h, lines), (b, h, lines, width))
            shapes += pair if written else (None, None)
            shapes += pair if written and self.separate_full else (None, None)
        return shapes


def is_deferred(mask: BlockMask) -> bool:
    """Return whether a mask was made in a graph of torch's, whose blocks nobody knows yet."""
    return torch.compiler.is_dynamo_compiling() or isinstance(mask, DeferredBlockMask)


def blocks_of(mask: BlockMask, layout: Layout) -> BlockTable:
    """Return the blocks of a mask."""
    blocks: BlockTable
    if is_deferred(mask):
        blocks = ListedKinds(kinds_in_graph(mask, layout.block_size))
    else:
        found = mask.blocks_on(mask.device).with_block_size(layout.block_size)
        of = found.classes.of.expand(mask.shape[:2])
        blocks = FoundBlocks(of, found.runs, mask.device)
    return blocks.without_ragged_full(layout.lengths, layout.block_size).to(layout.device)


def kinds_in_graph(mask: BlockMask, size: tuple[int, int]) -> torch.Tensor:
    """Return the kinds of a mask's blocks as a tensor of a graph, ``(B, H, rows, columns)``."""
    table = mask.table
    if table is None or mask.block_size != size:
        sizes = GivenSizes(mask.batch, mask.heads, mask.q_len, mask.kv_len)
        table = calls.block_kinds(mask.captured, Spec(sizes, size), mask.device)
    rows, columns = map(block_count, (mask.q_len, mask.kv_len), size)
    # without what the table is padded with in graphs
    return table[:, :, :rows, :columns].expand(*mask.shape[:2], -1, -1)
