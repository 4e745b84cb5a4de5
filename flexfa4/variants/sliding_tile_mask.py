"""Sliding tile mask: each tile of an image or a video sees a window of whole tiles around it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.neighborhood_mask import in_window
from flexfa4.variants.parameters import require_sizes, require_whole
from flexfa4.variants.token_order import Canvas, row_major, tile_grid


@dataclass(frozen=True)
class SlidingTile(MaskMod):
    """Attend to the tiles around the query's own, moved inwards at the border; text sees all.

    The sequence holds the tokens of the canvas tile by tile, as ``Tiled(tile)`` of
    `flexfa4.variants.token_order` arranges them, and then `text` tokens::

        both on the canvas   along each axis, the key's tile is one of the kernel // tile tiles
                             around the query's, as in ``Neighborhood`` with tiles for tokens
        text to or from      True
        behind the text      False, as query and as key

    Every tile is full, so with blocks of a tile's size none is masked element by element.

    Source: Zhang et al., "Fast Video Generation with Sliding Tile Attention" (2025), section 3.

    Attributes:
        canvas: tokens along each axis, ``(frames, height, width)`` for a video.
        kernel: tokens of the window along each axis, a multiple of `tile`, at most the canvas.
        tile: tokens of a tile along each axis; they divide the canvas.
        text: tokens of text behind the canvas, at least 0.
    """

    canvas: Canvas = (30, 48, 80)
    kernel: tuple[int, ...] = (18, 24, 24)
    tile: tuple[int, ...] = (6, 8, 8)
    text: int = 0

    def __post_init__(self) -> None:
        require_sizes("SlidingTile.canvas", self.canvas)
        for name in ("tile", "kernel"):
            require_sizes(f"SlidingTile.{name}", getattr(self, name), axes=len(self.canvas))
        for name in ("canvas", "kernel"):
            sizes = getattr(self, name)
            if any(size % t for size, t in zip(sizes, self.tile, strict=True)):
                raise ArgumentError(
                    name=f"SlidingTile.{name}",
                    found_value=repr(sizes),
                    expected=f"whole tiles of {self.tile} along each axis",
                    rewrite=f"SlidingTile({name}={_whole_tiles(sizes, self.tile)}, ...)",
                )
        if any(k > size for k, size in zip(self.kernel, self.canvas, strict=True)):
            raise ArgumentError(
                name="SlidingTile.kernel",
                found_value=repr(self.kernel),
                expected=f"no more tokens than the canvas {self.canvas} has along each axis",
                rewrite="a smaller kernel, or a larger canvas",
            )
        require_whole("SlidingTile.text", self.text, at_least=0)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        tokens, video = math.prod(self.tile), math.prod(self.canvas)
        grid = tile_grid(self.canvas, self.tile)
        q_at = row_major.coordinates(q_idx // tokens, grid)
        kv_at = row_major.coordinates(kv_idx // tokens, grid)
        text = (q_idx >= video) | (kv_idx >= video)
        near: Any = True
        for q, kv, size, kernel, tile in zip(
            q_at, kv_at, grid, self.kernel, self.tile, strict=True
        ):
            near = near & in_window(q, kv, size, kernel // tile)
        end = video + self.text
        return (text | near) & (q_idx < end) & (kv_idx < end)


def _whole_tiles(sizes: tuple[int, ...], tile: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes filled up to whole tiles."""
    grid = tile_grid(sizes, tile)
    return tuple(count * t for count, t in zip(grid, tile, strict=True))


sliding_tile: Final = SlidingTile()
