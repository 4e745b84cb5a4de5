"""The shared memory of a block of the Hopper backward kernel, as a computed plan.

Tiles are stored as in the forward kernel (`flexfa4.kernels.forward.tiles`), but for their slabs: a
product that takes some columns of a tile, which lie side by side, takes whole slabs, and so does a
warpgroup that writes its part of dK or dV.  So slabs divide these parts.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final

from flexfa4.kernels.backward.plan import STATISTICS
from flexfa4.kernels.forward.tiles import ELEMENT, TileShape, swizzle_bytes
from flexfa4.primitives.exponentials import NONE_EMULATED, EmulatedFraction
from flexfa4.primitives.shared_bytes import BARRIER_BYTES, NUMBERS_BYTES, ring_bytes

OUTBOX_BARRIERS: Final = 3
"""Mbarriers of an outbox."""

OUTBOX_BYTES: Final = OUTBOX_BARRIERS * BARRIER_BYTES + 8
"""For each warpgroup: its mbarriers and two numbers."""

OUTBOXES: Final = 2
"""There are so many warps beside the producer and the storing warp, to empty an outbox each."""

_FLOAT: Final = 4  # bytes
_TILE_ALIGNMENT: Final = 1024  # bytes after which the widest swizzle repeats


@dataclass(frozen=True)
class Tiling:
    """How the work of a block is cut.

    Attributes:
        queries: of a tile of queries, which the block meets one after the other.
        keys: of the block's tile of keys.
        warpgroups: that consume.
        q_stages, do_stages: of the rings of Q and of dO.
        kv_stages: of the rings of K and V: with two, a block goes from tile to tile of keys without
            a pause.
        ds_stages: tiles of dS in shared memory.
        by_keys: a warpgroup has 64 of the keys to itself, and all columns of their dK and dV;
            otherwise all warpgroups have the same 64 keys, a warpgroup its part of the queries of a
            tile of scores, and its part of the columns of dK and dV.
        in_registers: P and dS reach the products for dV and dK in registers; otherwise through
            shared memory, which takes fewer registers.
        early: the product for dV begins before dS is computed, rather than behind that, which takes
            fewer registers.
        dp_parts: parts, of a warpgroup's columns, in which dP is computed one after the other; more
            of them take fewer registers.
        staged: a tile of dQ goes through shared memory to its sums, rather than straight from
            registers; takes an outbox for each warpgroup.
        lagged: the product for dQ begins behind the scores of the next tile; takes `staged`,
            `in_registers`, `early`, one part of dP, and two tiles of dS.
        finishes: the block that adds the last part to a tile of dQ writes it to dq, and none has to
            clear its sums before; takes `lagged`, and place for the sums of others.
        emulated: which exponentials are computed by multiplications.
    """

    queries: int
    keys: int
    warpgroups: int = 2
    q_stages: int = 2
    do_stages: int = 2
    kv_stages: int = 2
    ds_stages: int = 2
    by_keys: bool = True
    in_registers: bool = True
    early: bool = True
    dp_parts: int = 1
    staged: bool = False
    lagged: bool = False
    finishes: bool = False
    emulated: EmulatedFraction = NONE_EMULATED

    def __post_init__(self) -> None:
        assert not self.staged or self.warpgroups <= OUTBOXES
        assert not self.finishes or self.lagged
        if self.lagged:
            assert self.staged and self.in_registers and self.early
            assert self.dp_parts == 1 and self.ds_stages >= 2

    @property
    def parts(self) -> int:
        """Warpgroups that have the same keys."""
        return 1 if self.by_keys else self.warpgroups

    @property
    def score_columns(self) -> int:
        """Queries of a warpgroup's part of a tile of scores."""
        return self.queries if self.by_keys else self.queries // self.warpgroups

    def gradient_columns(self, head_dim: int) -> int:
        """Return the columns of a warpgroup's part of dK or dV."""
        return head_dim if self.by_keys else head_dim // self.warpgroups

    @property
    def dq_by_rows(self) -> bool:
        """Whether a warpgroup's part of a tile of dQ is 64 rows of it, rather than columns."""
        return self.queries == 64 * self.warpgroups

    def dq_columns(self, head_dim: int) -> int:
        """Return the columns of a warpgroup's part of a tile of dQ."""
        return head_dim if self.dq_by_rows else head_dim // self.warpgroups


@dataclass(frozen=True)
class SlabbedTile(TileShape):
    """A tile of which some columns are taken.

    Attributes:
        part: how many; slabs divide them.
    """

    part: int = 0

    @property
    def swizzle(self) -> int:
        """Width of a slab in bytes."""
        return swizzle_bytes(ELEMENT * self.part)


@dataclass(frozen=True)
class Storage:
    """Where everything lies, in bytes from the start of dynamic shared memory.

    Attributes:
        q, do, k, v: the tiles; dK and dV take the places of K and V at the end.
        ds: dS, and P where it goes through shared memory: a row for each query.
        q_at, do_at, k_at, v_at, p_at, ds_at: their offsets.
        dq_at: offset of a tile of dQ in fp32, where it is staged.
        others_at: offset of what others have added to it, where the block finishes it.
        outboxes_at: offset of the mbarriers of outboxes, where there are such, and of whose part is
            in them.
        ds_written_at: offset of an mbarrier for each tile of dS: all have written their part.
        statistics_at: offset of the statistics of queries, as many stages as Q.
        q_barriers, do_barriers, k_barriers, v_barriers: offsets of the rings' mbarriers.
        written_at: offset of an mbarrier for each stage of K and V: dK and dV are in their places.
        numbers_at: offset of the ring of numbers of work items.
        bytes: in all.
    """

    q: TileShape
    do: TileShape
    k: TileShape
    v: TileShape
    ds: TileShape
    q_at: int
    do_at: int
    k_at: int
    v_at: int
    p_at: int
    ds_at: int
    dq_at: int
    others_at: int
    statistics_at: int
    q_barriers: int
    do_barriers: int
    k_barriers: int
    v_barriers: int
    written_at: int
    outboxes_at: int
    ds_written_at: int
    numbers_at: int
    bytes: int

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the statistics of a tile of queries."""
        return STATISTICS * _FLOAT * self.q.rows


def plan_storage(tiling: Tiling, head_dims: tuple[int, int]) -> Storage:
    """Return the plan.

    What does not fit is planned all the same: who asks compares its `bytes` with `SHARED_MEMORY`.
    """
    head_dim, head_dim_v = head_dims
    of_k, of_v = (tiling.gradient_columns(dim) for dim in head_dims)
    q = SlabbedTile(tiling.queries, head_dim, tiling.q_stages, of_k)
    do = SlabbedTile(tiling.queries, head_dim_v, tiling.do_stages, of_v)
    narrow = math.gcd(of_k, tiling.dq_columns(head_dim))
    k = SlabbedTile(tiling.keys, head_dim, tiling.kv_stages, narrow)
    v = SlabbedTile(tiling.keys, head_dim_v, tiling.kv_stages, of_v)
    ds = TileShape(tiling.queries, tiling.keys, tiling.ds_stages)
    p = TileShape(tiling.queries, tiling.keys, 0 if tiling.in_registers else tiling.ds_stages)
    sizes = (
        *(_aligned(tile.bytes * tile.stages) for tile in (q, do, k, v, p, ds)),
        _FLOAT * q.elements if tiling.staged else 0,
        _FLOAT * q.elements if tiling.finishes else 0,
        STATISTICS * _FLOAT * q.rows * q.stages,
        *(ring_bytes(tile.stages) for tile in (q, do, k, v)),
        BARRIER_BYTES * tiling.kv_stages,
        OUTBOX_BYTES * tiling.warpgroups if tiling.staged else 0,
        BARRIER_BYTES * tiling.ds_stages if tiling.lagged else 0,
        NUMBERS_BYTES,
    )
    return Storage(q, do, k, v, ds, *itertools.accumulate(sizes, initial=0))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _TILE_ALIGNMENT) * _TILE_ALIGNMENT
