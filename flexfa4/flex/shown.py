"""Block masks of FlexAttention, ours and torch's, as pictures and reports look at them.

The scores are those that the block mask means, the blocks those that its lists say: a block that is
listed as partial is shown as partial, whatever its mask function makes of it.  Computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flexfa4.block_mask import BlockMask as NativeBlockMask
from flexfa4.flex.block_mask import BlockMask
from flexfa4.flex.native_mask import native_of
from flexfa4.flex.torch_masks import converted, is_torch_mask
from flexfa4.frontend.masks.runs import BlockRuns


@dataclass(frozen=True)
class Shown:
    """A block mask for some numbers of batches and heads.

    Attributes:
        block_mask: the block mask.
        native: that of FlexFA4 with the same meaning, whose blocks may have another size.
    """

    block_mask: BlockMask
    native: NativeBlockMask

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``(batch, heads, queries, keys)``, 1 where the mask is the same for all."""
        return self.native.shape

    @property
    def block_size(self) -> tuple[int, int]:
        """Queries and keys in a block."""
        return self.block_mask.BLOCK_SIZE

    def runs_of(self, batch: int, head: int) -> BlockRuns:
        """Return the blocks of one batch and head, as they are listed."""
        batches, heads = self.block_mask.shape[:2]  # where it is 1, the lists are for all
        return self.block_mask.blocks().runs_of(batch % batches, head % heads)


def shown(block_mask: Any, *, batch: int = 1, heads: int = 1) -> Shown | None:
    """Return a block mask of FlexAttention to look at, None for anything else.

    Args:
        block_mask: one of ours or of torch's.
        batch: for how many batches at least, where it is the same for all but its function.
        heads: for how many heads, likewise.
    """
    mask = converted(block_mask) if is_torch_mask(block_mask) else block_mask
    if not isinstance(mask, BlockMask):
        return None
    made_for = mask.shape[:2]
    counts = (n if n != 1 else least for n, least in zip(made_for, (batch, heads), strict=True))
    return Shown(mask, native_of(mask, *counts))
