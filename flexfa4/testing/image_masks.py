"""Cases of the masks over images and video: one row or more for each variant.

A canvas is made from the lengths, so that it covers most of the positions and some lie behind it.
"""

from __future__ import annotations

from typing import Any, Final

from flexfa4.testing.case import Case, Draw, Mods, Sizes
from flexfa4.variants import (
    Axial,
    BlockSparse,
    Neighborhood,
    ShiftedWindow,
    SlidingTile,
    SpatialHead,
    TemporalHead,
)
from flexfa4.variants.token_order import Morton, Tiled
from flexfa4.variants.video_tiles import VideoTiles


def _rows(s: Sizes, row: int) -> int:
    """Return how many whole rows of `row` tokens the sequence holds, at least 4."""
    return max(max(s.q_len, s.kv_len) // row, 4)


def _image(s: Sizes, width: int) -> tuple[int, int]:
    return (_rows(s, width), width)


def _video(s: Sizes, height: int, width: int) -> tuple[int, int, int]:
    return (_rows(s, height * width), height, width)


def _sliding_tile_video(s: Sizes, d: Draw) -> Mods:
    frames, height, width = _video(s, 2, 4)
    return Mods(None, SlidingTile((frames // 2 * 2, height, width), (4, 2, 2), (2, 1, 2), text=2))


def _block_sparse(s: Sizes, d: Draw) -> Mods:
    shape = (s.batch, s.heads, s.q_len // 24 + 1, s.kv_len // 40 + 1)
    return Mods(None, BlockSparse(d.integers(0, 2, *shape).bool(), (24, 40)))


def _video_sparse(s: Sizes, d: Draw) -> Mods:
    tiles = VideoTiles((_rows(s, 5 * 3), 5, 3), (2, 2, 2))
    selected = d.integers(0, tiles.count, s.batch, s.heads, tiles.count, 5)
    mask = tiles.mask(selected)
    sizes = tiles.sizes()

    def eager(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        # on index tensors the selected tiles need an axis of their own
        chosen = selected[b, h, q_idx // 8] == (kv_idx // 8)[..., None]
        return chosen.any(-1) & (kv_idx % 8 < sizes[kv_idx // 8])

    return Mods(None, mask, eager_mask=eager)


CASES: Final[tuple[Case, ...]] = (
    Case("neighborhood", lambda s, d: Mods(None, Neighborhood(_image(s, 9), (3, 4)))),
    Case(
        "neighborhood_dilated", lambda s, d: Mods(None, Neighborhood(_image(s, 7), (2, 3), (2, 2)))
    ),
    Case(
        "neighborhood_tiled",
        lambda s, d: Mods(None, Neighborhood(_image(s, 9), (4, 3), order=Tiled((3, 4)))),
    ),
    Case(
        "neighborhood_morton",
        lambda s, d: Mods(None, Neighborhood(_video(s, 2, 4), (3, 2, 3), order=Morton())),
    ),
    Case("sliding_tile", lambda s, d: Mods(None, SlidingTile(_image(s, 8), (3, 4), (1, 2)))),
    Case("sliding_tile_video", _sliding_tile_video),
    Case("shifted_window", lambda s, d: Mods(None, ShiftedWindow(_image(s, 9), (4, 4), (2, 2)))),
    Case("axial", lambda s, d: Mods(None, Axial(_video(s, 3, 4), axis=0))),
    Case("spatial_head", lambda s, d: Mods(None, SpatialHead(5, _rows(s, 16), 14, 1.5, True, 8))),
    Case("temporal_head", lambda s, d: Mods(None, TemporalHead(5, _rows(s, 16), 14, 2))),
    Case("video_sparse", _video_sparse),
    Case("block_sparse", _block_sparse),
)
