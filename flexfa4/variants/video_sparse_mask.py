"""Video sparse mask: each tile of queries sees the tiles of keys that were selected for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import given, require_index_tensor, require_whole, shared


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class VideoSparse(MaskMod):
    """Attend where the key's tile is one of those selected for the query's tile.

    With ``T`` tokens in a tile::

        seen = any(selected[b, h, q // T, :] == kv // T)  and  kv % T < sizes[kv // T]

    This is the fine stage of video sparse attention.  `flexfa4.variants.video_tiles.VideoTiles`
    brings the tokens into tiles and selects; the coarse stage is `flexfa4.attention` of the tiles'
    means, and how the outputs are mixed is the model's business.

    Queries in padding see what their tile sees; `VideoTiles.restore` drops them.

    Source: Zhang et al., "VSA: Faster Video Diffusion with Trainable Sparse Attention" (2025).

    Attributes:
        selected: (B, H, query tiles, n), integers: tiles of keys; a batch or head axis of one
            serves all, and an entry that names no tile, such as -1, selects nothing.  Without it
            (the instance ``video_sparse``) using the mask is an error that says so.
        tile_tokens: tokens of a tile, at least 1.
        sizes: (key tiles,), integers: how many tokens at the start of each tile are real, the rest
            being padding; None where all are.  It covers all keys (`OutOfRangeError` otherwise,
            when the blocks are found).
    """

    selected: torch.Tensor | None = None
    tile_tokens: int = 64
    sizes: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.selected is not None:
            require_index_tensor("VideoSparse.selected", self.selected, dims=(4,))
        require_whole("VideoSparse.tile_tokens", self.tile_tokens, at_least=1)
        if self.sizes is not None:
            require_index_tensor("VideoSparse.sizes", self.sizes, dims=(1,))

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        selected = given(
            "VideoSparse.selected",
            self.selected,
            expected="the tiles of keys for each tile of queries, a tensor (B, H, query tiles, n)",
            rewrite="VideoTiles(canvas).mask(selected), or VideoSparse(selected, tile_tokens=64)",
        )
        tile = kv_idx // self.tile_tokens
        b, h = shared(b, selected.shape[0]), shared(h, selected.shape[1])
        seen = (selected[b, h, q_idx // self.tile_tokens] == tile).any(-1)
        if self.sizes is None:
            return seen
        return seen & (kv_idx % self.tile_tokens < self.sizes[tile])


video_sparse: Final = VideoSparse()
