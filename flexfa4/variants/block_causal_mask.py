"""Block-causal mask: both directions inside a block, causal from block to block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import require_whole


@dataclass(frozen=True)
class BlockCausal(MaskMod):
    """Attend to ``kv // block <= q // block``: the whole own block and all blocks before it.

    ``BlockCausal(1)`` is causal.  The blocks may be frames of a video or the blocks of a block
    diffusion model at inference; the last one may be short.

    Source: Arriola et al., "Block Diffusion" (2025), section 3 (attention among clean tokens);
    Yin et al., "From Slow Bidirectional to Fast Autoregressive Video Diffusion Models" (2024),
    section 4.1.

    Attributes:
        block: positions of a block, at least 1.
    """

    block: int = 32

    def __post_init__(self) -> None:
        require_whole("BlockCausal.block", self.block, at_least=1)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        return kv_idx // self.block <= q_idx // self.block


block_causal: Final = BlockCausal()
