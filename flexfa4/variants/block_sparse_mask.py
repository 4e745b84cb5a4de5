"""Block-sparse mask: a table says which blocks of keys each block of queries sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import given, require_bool_tensor, require_sizes, shared


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class BlockSparse(MaskMod):
    """Attend where ``blocks[b, h, q // block_size[0], kv // block_size[1]]`` is True.

    Source: Child et al., "Generating Long Sequences with Sparse Transformers" (2019), section 5.

    Attributes:
        blocks: (Q, K), (H, Q, K) or (B, H, Q, K), bool: whether a block of queries sees a block of
            keys.  A batch or head axis of one serves all.  The table covers all queries and keys
            (`OutOfRangeError` otherwise, when the blocks are found).  Without blocks (the instance
            ``block_sparse``) using the mask is an error that says so.
        block_size: queries and keys of a block.
    """

    blocks: torch.Tensor | None = None
    block_size: tuple[int, int] = (128, 128)

    def __post_init__(self) -> None:
        require_sizes("BlockSparse.block_size", self.block_size, axes=2)
        if self.blocks is not None:
            require_bool_tensor("BlockSparse.blocks", self.blocks, dims=(2, 3, 4))

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        blocks = given(
            "BlockSparse.blocks",
            self.blocks,
            expected="which blocks are seen, a bool tensor of shape (Q, K), (H, Q, K) or "
            "(B, H, Q, K)",
            rewrite="BlockSparse(blocks, block_size=(128, 128))",
        )
        outer = (b, h)[4 - blocks.dim() :]
        batch_and_head = (shared(i, blocks.shape[axis]) for axis, i in enumerate(outer))
        return blocks[(*batch_and_head, q_idx // self.block_size[0], kv_idx // self.block_size[1])]


block_sparse: Final = BlockSparse()
