"""Which tiling a call of the Hopper kernels gets: a table of what was measured on an H200."""

from __future__ import annotations

import functools
from typing import Final

from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import ANY_TILE, Tile
from flexfa4.kernels.sm90.forward.plan import WARPGROUP_ROWS, Tiling
from flexfa4.kernels.sm90.forward.storage import SHARED_MEMORY, plan_storage

FORWARD: Final = {
    (64, 64): Tiling(3, 128),
    (64, 128): Tiling(2, 128),
    (96, 96): Tiling(3, 112),
    (128, 128): Tiling(2, 128),
    (192, 128): Tiling(2, 96),
    (256, 256): Tiling(2, 80),
}
"""Head dims of q and v, and the tiling of their forward kernel."""

_WARPGROUPS: Final = (1, 2, 3)


def tiling_for(head_dims: tuple[int, int], tile: Tile) -> Tiling | Refusal:
    """Return the tiling of a call, or why there is none.

    Args:
        head_dims: a key of `FORWARD`.
        tile: what the user chose.
    """
    usual = FORWARD[head_dims]
    if tile == ANY_TILE:
        return usual
    return _chosen(head_dims, usual, tile)


@functools.lru_cache(maxsize=64)
def _chosen(head_dims: tuple[int, int], usual: Tiling, tile: Tile) -> Tiling | Refusal:
    rows = usual.rows if tile.rows is None else tile.rows
    keys = usual.keys if tile.keys is None else tile.keys
    stages = usual.stages if tile.stages is None else tile.stages
    shown = f"a tile of {rows} queries by {keys} keys in {stages} stages"
    allowed = [WARPGROUP_ROWS * n for n in _WARPGROUPS]
    if rows not in allowed or keys % 8 or not 8 <= keys <= 256 or stages < 1:
        return Refusal(
            shown,
            f"{', '.join(map(str, allowed))} queries; a multiple of 8 up to 256 keys",
            f"options=flexfa4.Options(tile=({usual.rows}, {usual.keys}))",
        )
    nbytes = plan_storage(rows, keys, head_dims, stages).bytes
    if nbytes > SHARED_MEMORY:
        return Refusal(
            f"{shown}, which takes {nbytes} bytes of shared memory for head dimensions"
            f" {head_dims[0]} and {head_dims[1]}",
            f"{SHARED_MEMORY} bytes",
            "fewer keys or stages",
        )
    return Tiling(rows // WARPGROUP_ROWS, keys, stages)
