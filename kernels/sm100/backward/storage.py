"""The shared memory of a block of the Blackwell backward kernel, as a computed plan.

Tiles are stored as in the forward kernels (`flexfa4.kernels.forward.tiles`).  A tile of Q is the
second operand of two products, S along the head dimension and dK along the queries, and so are one
of dO and one of K.  A block that computes alone has one tile for both.  Of two that compute
together, each has half of the columns of either product: half of the queries for S, of the head
dimension for dK.  So there are two tiles, of half the size; where a tile's products are all done
before those of the next one begin (`tmem`), the second one of Q and of dO takes the place of the
first.

dK and dV take the places of K and V at the end of an item.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from flexfa4.kernels.backward.plan import STATISTICS
from flexfa4.kernels.forward.tiles import TileShape
from flexfa4.kernels.sm100.backward.tmem import TensorMemory, plan_tensor_memory
from flexfa4.kernels.sm100.forward.storage import ALIGNMENT
from flexfa4.kernels.sm100.forward.tmem import COLUMNS
from flexfa4.primitives.exponentials import NONE_EMULATED, EmulatedFraction
from flexfa4.primitives.shared_bytes import BARRIER_BYTES, NUMBERS_BYTES, ring_bytes

KEYS: Final = 128
"""Keys of a block: the lanes of tensor memory, and the M of its products."""

BARRIERS: Final = (
    "scores", "read", "changes", "probabilities", "gradients", "shared", "dq", "taken", "sums",
    "emptied",
)  # fmt: skip
"""Names of mbarriers, see `kernel`."""

_FLOAT: Final = 4  # bytes


@dataclass(frozen=True)
class Registers:
    """Registers of a thread, by the role of its warpgroup; multiples of 8.

    Two warpgroups compute, and one of each other kind: together 512 for each lane.

    Attributes:
        compute: of the two that compute.
        reduce: of the one that adds up dQ.
        others: of the one that loads, issues products and stores.
    """

    compute: int = 176
    reduce: int = 80
    others: int = 80


_REGISTERS: Final = Registers()

IN_TURNS: Final = Registers(168, 88, 88)
"""Where warps that reduce add to sums themselves, in turns.  The split was found by compiling: the
warp that issues products for two blocks needs 88."""

WITH_DERIVATIVE: Final = Registers(192, 72, 56)
"""Where the derivative of a mod is computed for each score, or sums for captured tensors."""

WIDE_WITH_DERIVATIVE: Final = Registers(192, 64, 64)
"""Likewise with head dims of more than 128, in turns."""


@dataclass(frozen=True)
class Tiling:
    """How the work of a block is cut.

    Attributes:
        queries: of a tile of queries, which the block meets one after the other.
        q_stages: of the ring of Q.  A block that computes alone has at least 2: scores of the next
            tile are made before all of this one is.
        do_stages: of the ring of dO.
        kv_stages: of the rings of K and V.
        dq_columns: of dQ, that go through shared memory together.
        dq_stages: how many such parts may be on their way.
        registers: of the roles.
        emulated: which exponentials are computed by multiplications.
        blocks: that compute together (``cta_group``): 1 or 2, with keys of its own each.
        columns: of tensor memory, that may be used; with fewer of them small heads are computed in
            the orders of larger ones.
    """

    queries: int = 128
    q_stages: int = 2
    do_stages: int = 1
    kv_stages: int = 1
    dq_columns: int = 32
    dq_stages: int = 2
    registers: Registers = _REGISTERS
    emulated: EmulatedFraction = NONE_EMULATED
    blocks: int = 1
    columns: int = COLUMNS

    @property
    def keys(self) -> int:
        """Keys of all blocks that compute together."""
        return KEYS * self.blocks


@dataclass(frozen=True)
class Storage:
    """Where everything lies, in bytes from the start of dynamic shared memory.

    Attributes:
        q, do: tiles for S and dP; k, v: their first operands.
        q_of_dk, do_of_dv, k_of_dq: for the other products; where a block computes alone the same
            tiles as `q`, `do` and `k`.
        ds: dS, a row for each key of all blocks, for the block's queries of dQ.
        q_at and so on: offsets of the tiles.
        dq_at: offset of parts of dQ, fp32.
        statistics_at: offset of the statistics of queries.
        q_barriers and so on: offsets of the rings' mbarriers; that of K is that of `k_of_dq`, too.
        barriers_at: offset of the mbarriers of `BARRIERS`.
        written_at: offset of an mbarrier for each stage of K and V: dK and dV are in their places.
        numbers_at: offset of the ring of numbers of work items.
        address_at: offset of the address of tensor memory.
        bytes: in all.
        statistics_stages: of the ring of statistics.
        one_place: `q_of_dk` follows `q` in its place, and `do_of_dv` follows `do`.
    """

    q: TileShape
    do: TileShape
    k: TileShape
    v: TileShape
    q_of_dk: TileShape
    do_of_dv: TileShape
    k_of_dq: TileShape
    ds: TileShape
    statistics_stages: int
    one_place: bool
    q_at: int
    do_at: int
    k_at: int
    v_at: int
    q_of_dk_at: int
    do_of_dv_at: int
    k_of_dq_at: int
    ds_at: int
    dq_at: int
    statistics_at: int
    q_barriers: int
    do_barriers: int
    k_barriers: int
    v_barriers: int
    q_of_dk_barriers: int
    do_of_dv_barriers: int
    statistics_barriers: int
    barriers_at: int
    written_at: int
    numbers_at: int
    address_at: int
    bytes: int

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the statistics of a tile of queries."""
        return STATISTICS * _FLOAT * self.q_of_dk.rows

    def barrier(self, name: str) -> int:
        """Return the offset of the mbarrier of a name."""
        return self.barriers_at + BARRIER_BYTES * BARRIERS.index(name)


_STATISTICS_STAGES: Final = 2
_ONE: Final = 1  # stage of the tiles of pairs that are used behind the others, or in one place


def tensor_memory_of(tiling: Tiling, head_dims: tuple[int, int]) -> TensorMemory:
    """Return the plan of tensor memory."""
    return plan_tensor_memory(tiling.queries, head_dims, tiling.blocks, tiling.columns)


def plan_storage(tiling: Tiling, head_dims: tuple[int, int]) -> Storage:
    """Return the plan.

    What does not fit is planned all the same: who asks compares its `bytes` with
    `flexfa4.kernels.sm100.forward.storage.SHARED_MEMORY`.
    """
    (head_dim, head_dim_v), queries, blocks = head_dims, tiling.queries, tiling.blocks
    one_place = tensor_memory_of(tiling, head_dims).one_by_one
    q = TileShape(queries // blocks, head_dim, _ONE if one_place else tiling.q_stages)
    do = TileShape(queries // blocks, head_dim_v, _ONE if one_place else tiling.do_stages)
    k = TileShape(KEYS, head_dim, tiling.kv_stages)
    v = TileShape(KEYS, head_dim_v, tiling.kv_stages)
    others = (q, do, k)
    if blocks > 1:
        others = (
            TileShape(queries, head_dim // blocks, _ONE),
            TileShape(queries, head_dim_v // blocks, _ONE),
            TileShape(tiling.keys, head_dim // blocks, tiling.kv_stages),
        )
    ds = TileShape(tiling.keys, queries // blocks)
    alike = 3 if blocks == 1 else 2 if one_place else 0  # tiles that have no places of their own
    own = [_aligned(tile.bytes * tile.stages) for tile in others[alike:]]
    rings = [ring_bytes(tile.stages) for tile in others[alike:2]]
    sizes = (
        *(_aligned(tile.bytes * tile.stages) for tile in (q, do, k, v)),
        *(0,) * alike,
        *own,
        _aligned(ds.bytes),
        _FLOAT * KEYS * tiling.dq_columns * tiling.dq_stages,
        STATISTICS * _FLOAT * queries * _STATISTICS_STAGES,
        *(ring_bytes(tile.stages) for tile in (q, do, k, v)),
        *(0,) * (2 - len(rings)),
        *rings,
        ring_bytes(_STATISTICS_STAGES),
        BARRIER_BYTES * len(BARRIERS),
        BARRIER_BYTES * tiling.kv_stages,
        NUMBERS_BYTES,
        _FLOAT,
    )
    at = list(itertools.accumulate(sizes, initial=0))
    at[4 : 4 + alike] = at[:alike]
    if not rings:
        at[14:16] = at[10:12]
    return Storage(q, do, k, v, *others, ds, _STATISTICS_STAGES, one_place, *at)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
