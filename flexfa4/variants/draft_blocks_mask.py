"""Draft blocks mask (JetSpec training): blocks drafted side by side after one prefix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import require_whole


@dataclass(frozen=True)
class DraftBlocks(MaskMod):
    """Attend to ``kv < prefix``, and causally inside the query's own block: with ``j = kv -
    prefix``, to ``q // block == j // block and j <= q``.

    The queries are blocks of `block` drafted tokens, one behind the other; the keys are a prefix
    that all of them see, and then the same drafted tokens.  No block sees another one, so a single
    pass trains the drafting of every block.

    Source: the training mask of JetSpec, `generate_jetspec_training_mask_mod` of attention-gym.

    Attributes:
        prefix: keys that every query sees, at least 0.
        block: tokens of a block, at least 1.
    """

    prefix: int = 1024
    block: int = 8

    def __post_init__(self) -> None:
        require_whole("DraftBlocks.prefix", self.prefix, at_least=0)
        require_whole("DraftBlocks.block", self.block, at_least=1)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        draft = kv_idx - self.prefix  # below 0 in the prefix, whose block number never matters
        own = (q_idx // self.block == draft // self.block) & (draft <= q_idx)
        return (draft < 0) | own


draft_blocks: Final = DraftBlocks()
