"""Tiles of a video's tokens: packing, pooling and selection, as `VideoSparse` needs them.

    tiles = VideoTiles((21, 30, 52))
    q, k, v = map(tiles.arrange, (q, k, v))
    selected = tiles.select(q, k, count=32)
    fine = flexfa4.attention(q, k, v, block_mask=tiles.mask(selected))
    out = tiles.restore(fine)

The coarse output, one row for each tile, is ``flexfa4.attention(*map(tiles.pool, (q, k, v)))``;
gates that mix it with the fine one belong to the model and are not part of this module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import require_sizes, require_whole
from flexfa4.variants.token_order import (
    Canvas,
    Tiled,
    gather_tokens,
    scatter_tokens,
    tile_grid,
)
from flexfa4.variants.video_sparse_mask import VideoSparse


@dataclass(frozen=True)
class VideoTiles:
    """A canvas cut into tiles, each of which takes as many positions of the sequence.

    Tiles follow each other in row-major order, and so do the tokens in a tile.  Where a tile does
    not divide the canvas, those at the border hold fewer tokens: these come first in the tile's
    positions, padding fills the rest.  (`Tiled` leaves padding where it lies on the canvas.)

    Source: Zhang et al., "VSA: Faster Video Diffusion with Trainable Sparse Attention" (2025).

    Attributes:
        canvas: tokens along each axis, ``(frames, height, width)``.
        tile: tokens of a tile along each axis.
    """

    canvas: Canvas
    tile: tuple[int, ...] = (4, 4, 4)

    def __post_init__(self) -> None:
        require_sizes("VideoTiles.canvas", self.canvas)
        require_sizes("VideoTiles.tile", self.tile, axes=len(self.canvas))

    @property
    def count(self) -> int:
        """Number of tiles."""
        return math.prod(tile_grid(self.canvas, self.tile))

    @property
    def tile_tokens(self) -> int:
        """Positions of a tile, padding included."""
        return math.prod(self.tile)

    @property
    def length(self) -> int:
        """Positions of all tiles, padding included."""
        return self.count * self.tile_tokens

    def sizes(self, *, device: torch.device | str | None = None) -> torch.Tensor:
        """Return the number of tokens of each tile: (count,), int64."""
        slots = Tiled(self.tile).positions(self.canvas, device=device)
        return torch.bincount(slots // self.tile_tokens, minlength=self.count)

    def positions(self, *, device: torch.device | str | None = None) -> torch.Tensor:
        """Return the position of each token, the tokens in row-major order: (tokens,), int64."""
        slots = Tiled(self.tile).positions(self.canvas, device=device)
        sizes = self.sizes(device=device)
        order = slots.argsort()
        tile = slots[order] // self.tile_tokens
        before = sizes.cumsum(0) - sizes  # tokens of all tiles before each
        rank = torch.arange(len(slots), device=device) - before[tile]
        return torch.empty_like(slots).index_copy_(0, order, tile * self.tile_tokens + rank)

    def arrange(self, tokens: torch.Tensor) -> torch.Tensor:
        """Bring row-major tokens (..., N, D) into tiles: (..., length, D), zeros as padding.

        Raises:
            ShapeMismatchError: N is not the number of tokens of the canvas.
        """
        return scatter_tokens(tokens, self.positions(device=tokens.device), self.length)

    def restore(self, tokens: torch.Tensor) -> torch.Tensor:
        """Bring tokens in tiles (..., length, D) back into row-major order: (..., N, D).

        Raises:
            ShapeMismatchError: the tokens have another length.
        """
        return gather_tokens(tokens, self.positions(device=tokens.device), self.length)

    def pool(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean of each tile's tokens, without padding: (..., count, D).

        Args:
            tokens: (..., length, D), as `arrange` returns them; summed in fp32 or fp64.

        Raises:
            ShapeMismatchError: the tokens have another length.
        """
        every = torch.arange(self.length, device=tokens.device)
        tiles = gather_tokens(tokens, every, self.length)
        tiles = tiles.view(*tokens.shape[:-2], self.count, self.tile_tokens, tokens.shape[-1])
        sizes = self.sizes(device=tokens.device)[:, None]
        real = torch.arange(self.tile_tokens, device=tokens.device) < sizes
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        total = torch.where(real[..., None], tiles, 0).sum(-2, dtype=dtype)
        return (total / sizes).to(tokens.dtype)

    def select(self, query: torch.Tensor, key: torch.Tensor, *, count: int) -> torch.Tensor:
        """Select for each tile of queries the tiles of keys with the largest product of means.

        Args:
            query: (B, H, length, D), arranged.
            key: (B, Hkv, length, D), arranged, with H a multiple of Hkv.
            count: how many tiles to select, from 1 to `VideoTiles.count`.

        Returns:
            (B, H, tiles, count), int64, the best first.  No gradient passes a selection.

        Raises:
            ArgumentError: there are not that many tiles.
            ShapeMismatchError: query or key have another length.
        """
        require_whole("count", count, at_least=1)
        if count > self.count:
            raise ArgumentError(
                name="count",
                found_value=repr(count),
                expected=f"at most the number of tiles, {self.count}",
                rewrite=f"count={self.count}, which selects all",
            )
        coarse_query, coarse_key = self.pool(query.detach()), self.pool(key.detach())
        group = query.shape[1] // key.shape[1]
        scores = coarse_query @ coarse_key.repeat_interleave(group, dim=1).mT
        return scores.topk(count, dim=-1).indices

    def mask(self, selected: torch.Tensor) -> VideoSparse:
        """Return the mask of a selection: (B, H, tiles, n), as `select` returns it."""
        return VideoSparse(selected, self.tile_tokens, self.sizes(device=selected.device))
