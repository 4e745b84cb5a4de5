"""Block diffusion mask (BD3-LM): noised blocks see themselves and the clean text before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import require_whole


@dataclass(frozen=True)
class BlockDiffusion(MaskMod):
    """Attend as a block diffusion model in training, over its text twice: positions below `length`
    are the noised text, the others are the clean text.

    With block numbers ``i`` of the query and ``j`` of the key, each counted from the start of its
    own text, ``position // block``:

    - noised to noised: ``i == j`` (both directions inside a block),
    - noised to clean: ``j < i`` (the clean text of all blocks before),
    - clean to clean: ``j <= i``,
    - clean to noised: nothing.

    The last block may be short.

    Source: Arriola et al., "Block Diffusion: Interpolating Between Autoregressive and Diffusion
    Language Models" (2025), section 3 and its appendix on the attention mask.

    Attributes:
        length: positions of the text, half of those of the sequence, at least 1.
        block: positions of a block, at least 1.
    """

    length: int = 1024
    block: int = 16

    def __post_init__(self) -> None:
        require_whole("BlockDiffusion.length", self.length, at_least=1)
        require_whole("BlockDiffusion.block", self.block, at_least=1)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        q_noised, kv_noised = q_idx < self.length, kv_idx < self.length
        i = torch.where(q_noised, q_idx, q_idx - self.length) // self.block
        j = torch.where(kv_noised, kv_idx, kv_idx - self.length) // self.block
        to_noised = q_noised & kv_noised & (i == j)
        to_clean = ~kv_noised & ((j < i) | (~q_noised & (j == i)))
        return to_noised | to_clean


block_diffusion: Final = BlockDiffusion()
