"""The shared memory of a block of the Blackwell forward kernel, as a computed plan.

Keys and values go through one ring of parts of equal size: a tile of K is cut along the head
dimension, one of V along the keys, so that any two head dims share the ring without gaps, and
products begin when the first part is there.  Offsets are decided here, once; kernel, launch and
report read them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Final

from flexfa4.kernels.forward.tiles import TileShape
from flexfa4.kernels.sm100.forward.tmem import HALVES
from flexfa4.primitives.shared_bytes import BARRIER_BYTES, NUMBERS_BYTES, ring_bytes

SHARED_MEMORY: Final = 227 * 1024
"""Bytes that a block may use on compute capability 10.0 and 10.3 (CUDA C++ Programming Guide, table
of technical specifications)."""

ROWS: Final = 128
"""Rows of a half: the lanes of tensor memory, and the M of its products."""

DEPTH: Final = 16
"""Elements along the depth of one product of bf16 or fp16."""

ALIGNMENT: Final = 1024
"""Of tiles: the period of the widest swizzle."""

_HALF_BARRIERS: Final = ("scores", "probabilities", "rest", "factors", "out", "inverse", "taken")
_FLOAT: Final = 4


@dataclass(frozen=True)
class Storage:
    """Where everything lies, in bytes from the start of dynamic shared memory.

    Attributes:
        q, out: the tiles of both halves.
        k, v: parts of a tile of keys and of one of values, as they go through the ring.
        k_parts, v_parts: parts of a tile.
        stages: parts that the ring holds.
        stage_bytes: from one part to the next.
        q_at, ring_at, out_at: offsets of the tiles.
        q_barriers, ring_barriers: offsets of the rings' mbarriers.
        half_barriers: offset of those of each half, see `barrier`.
        numbers_at: offset of the ring of numbers of work items.
        factors_at: offset of two numbers of each row of each half.
        address_at: offset of the address of tensor memory.
        bytes: in all.
    """

    q: TileShape
    k: TileShape
    v: TileShape
    out: TileShape
    k_parts: int
    v_parts: int
    stages: int
    stage_bytes: int
    q_at: int
    ring_at: int
    out_at: int
    q_barriers: int
    ring_barriers: int
    half_barriers: int
    numbers_at: int
    factors_at: int
    address_at: int
    bytes: int

    @property
    def out_takes_place_of_q(self) -> bool:
        """Whether the output of each half is written where its Q was."""
        return self.out_at == self.q_at

    @property
    def out_step(self) -> int:
        """Bytes from the output of the first half to that of the second."""
        return self.q.bytes if self.out_takes_place_of_q else self.out.bytes

    def barrier(self, name: str) -> int:
        """Return the offset of the mbarriers of a name: one of 8 bytes for each half."""
        return self.half_barriers + HALVES * BARRIER_BYTES * _HALF_BARRIERS.index(name)

    @property
    def regions(self) -> dict[str, tuple[int, int]]:
        """What lies where, as first bytes and those behind the last, by name."""
        starts = {
            "q": self.q_at, "keys and values": self.ring_at, "out": self.out_at,
            "barriers": self.q_barriers, "numbers": self.numbers_at, "factors": self.factors_at,
            "address": self.address_at,
        }  # fmt: skip
        sizes = {
            "q": HALVES * self.q.bytes, "keys and values": self.stages * self.stage_bytes,
            "out": self.out_step + self.out.bytes, "barriers": self.numbers_at - self.q_barriers,
            "numbers": NUMBERS_BYTES, "factors": _factors_bytes(), "address": _FLOAT,
        }  # fmt: skip
        return {name: (at, at + sizes[name]) for name, at in starts.items()}


def parts_of(keys: int, head_dims: tuple[int, int]) -> tuple[int, int]:
    """Return into how many parts a tile of K and one of V are cut.

    As few as make all parts equal, if K can be cut between slabs and V between products; otherwise
    one each.
    """
    head_dim, head_dim_v = head_dims
    common = math.gcd(head_dim, head_dim_v)
    k_parts, v_parts = head_dim // common, head_dim_v // common
    slabs = TileShape(keys, head_dim).slabs
    if slabs % k_parts or keys // DEPTH % v_parts:
        return 1, 1
    return k_parts, v_parts


def stages_that_fit(keys: int, head_dims: tuple[int, int], blocks: int = 1) -> int:
    """Return how many parts of K and V the ring can have: with room for the output of its own, if
    two tiles of each then fit, and where Q was otherwise."""
    for own_out in (True, False):
        least = plan_storage(keys, head_dims, 0, own_out=own_out, blocks=blocks)
        room = SHARED_MEMORY - least.bytes
        stages = max(0, room // (least.stage_bytes + ring_bytes(1)))
        if stages >= least.k_parts + least.v_parts + max(least.k_parts, least.v_parts):
            break
    return stages


def plan_storage(
    keys: int,
    head_dims: tuple[int, int],
    stages: int,
    *,
    own_out: bool | None = None,
    blocks: int = 1,
) -> Storage:
    """Return the plan for tiles of `keys` keys and a ring of `stages` parts.

    What does not fit in any way is planned all the same: who asks compares its `bytes` with
    `SHARED_MEMORY`.

    Args:
        keys: a multiple of 16.
        head_dims: of q and k, and of v and out: multiples of 16.
        stages: parts of K and V.
        own_out: the output has room of its own, rather than the place of Q, which has to be as
            large; None: if it fits.
        blocks: that compute together: each has so many-th of the keys of a tile of K, and of the
            columns of one of V, in one part.
    """
    head_dim, head_dim_v = head_dims
    k_parts, v_parts = parts_of(keys, head_dims) if blocks == 1 else (1, 1)
    k = TileShape(keys // blocks, head_dim // k_parts)
    v = TileShape(keys // v_parts, head_dim_v // blocks)
    q, out = TileShape(ROWS, head_dim, HALVES), TileShape(ROWS, head_dim_v, HALVES)
    stage_bytes = -(-max(k.bytes, v.bytes) // ALIGNMENT) * ALIGNMENT
    behind = (
        ring_bytes(HALVES), ring_bytes(stages), HALVES * BARRIER_BYTES * len(_HALF_BARRIERS),
        NUMBERS_BYTES, _factors_bytes(), _FLOAT,
    )  # fmt: skip
    rooms = (True, False) if own_out is None else (own_out,)
    for own in rooms if out.bytes <= q.bytes else (True,):
        tiles = (HALVES * q.bytes, stages * stage_bytes, HALVES * out.bytes * own)
        q_at, ring_at, out_at, end = itertools.accumulate(tiles, initial=0)
        if end + sum(behind) <= SHARED_MEMORY:
            break
    at = list(itertools.accumulate(behind, initial=end))
    return Storage(
        q=q, k=k, v=v, out=out, k_parts=k_parts, v_parts=v_parts,
        stages=stages, stage_bytes=stage_bytes,
        q_at=q_at, ring_at=ring_at, out_at=out_at if own else q_at,
        q_barriers=at[0], ring_barriers=at[1], half_barriers=at[2],
        numbers_at=at[3], factors_at=at[4], address_at=at[5], bytes=at[6],
    )  # fmt: skip


FACTOR, INVERSE = 0, 1
"""The numbers of a row that softmax hands to the correction: what its output so far is to be
multiplied by, and what normalises it."""


def number_at(half: Any, which: int, row: Any) -> Any:
    """Return the place of a number of a row among those of both halves."""
    return half * (2 * ROWS) + row + which * ROWS


def _factors_bytes() -> int:
    return 2 * HALVES * ROWS * _FLOAT
