"""The shared memory of a block of the Hopper forward kernel, as a computed plan.

Offsets are decided here, once, and the kernel, the launch and the report read them.  Tiles are
stored as TMA writes and WGMMA reads them: slabs of as many columns as a swizzle period holds, each
slab with all rows of the tile one after the other.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Final

from flexfa4.kernels.forward.tiles import TileShape
from flexfa4.primitives.shared_bytes import NUMBERS_BYTES, ring_bytes

SHARED_MEMORY: Final = 227 * 1024
"""Bytes that a block may use on compute capability 9.0 (CUDA C++ Programming Guide, table of
technical specifications)."""

_Q_STAGES: Final = 2  # at most


@dataclass(frozen=True)
class Storage:
    """Where everything lies, in bytes from the start of dynamic shared memory.

    Attributes:
        q, k, v, out: the tiles.
        q_at, k_at, v_at, out_at: their offsets.
        q_barriers, k_barriers, v_barriers: offsets of the rings' mbarriers.
        numbers_at: offset of the ring of numbers of work items.
        bytes: in all.
    """

    q: TileShape
    k: TileShape
    v: TileShape
    out: TileShape
    q_at: int
    k_at: int
    v_at: int
    out_at: int
    q_barriers: int
    k_barriers: int
    v_barriers: int
    numbers_at: int
    bytes: int

    @property
    def out_takes_place_of_q(self) -> bool:
        """Whether the output is written where Q was; rows are in the same places."""
        return self.out_at == self.q_at


@functools.lru_cache(maxsize=256)
def plan_storage(rows: int, keys: int, head_dims: tuple[int, int], stages: int) -> Storage:
    """Return the plan for tiles of `rows` queries by `keys` keys, with `stages` of K and V each.

    Q has two stages where there is room, so that the next tile of queries is there when the last
    one is done with.  The output has room of its own, or else takes the place of Q if its slabs are
    as wide: a warpgroup then writes where its own rows of Q were, which it has read.  Tiles have a
    multiple of 8 rows, so all of them start where swizzles repeat.  What does not fit in any way is
    planned all the same: who asks compares its `bytes` with `SHARED_MEMORY`.
    """
    head_dim, head_dim_v = head_dims
    k, v = TileShape(keys, head_dim, stages), TileShape(keys, head_dim_v, stages)
    out = TileShape(rows, head_dim_v)
    behind = (ring_bytes(_Q_STAGES), ring_bytes(stages), ring_bytes(stages), NUMBERS_BYTES)
    rooms = (out.bytes, 0) if _lies_within(out, TileShape(rows, head_dim)) else (out.bytes,)
    for q_stages, own in itertools.product((_Q_STAGES, 1), rooms):
        q = TileShape(rows, head_dim, q_stages)
        tiles = (q.bytes * q_stages, k.bytes * stages, v.bytes * stages, own)
        q_at, k_at, v_at, out_at, end = itertools.accumulate(tiles, initial=0)
        if end + sum(behind) <= SHARED_MEMORY:
            break
    q_barriers, k_barriers, v_barriers, numbers_at, nbytes = itertools.accumulate(
        behind, initial=end
    )
    return Storage(
        q=q, k=k, v=v, out=out,
        q_at=q_at, k_at=k_at, v_at=v_at, out_at=out_at if own else q_at,
        q_barriers=q_barriers, k_barriers=k_barriers, v_barriers=v_barriers,
        numbers_at=numbers_at, bytes=nbytes,
    )  # fmt: skip


def _lies_within(out: TileShape, q: TileShape) -> bool:
    """Return whether each row of the output can take the place of the same row of Q."""
    return out.slab == q.slab and out.slabs <= q.slabs
