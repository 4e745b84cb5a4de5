"""Load warp of the forward kernel: Q once and K and V tile by tile, ahead of their use.

The warp walks together, since finding the tiles may need all of its lanes; one lane issues the
copies.  It stops where a ring is full, so the pace of the products is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute

from flexfa4.kernels.forward.parameters import Parameters
from flexfa4.kernels.forward.tiles import ELEMENT
from flexfa4.kernels.sm100.forward.plan import TILE_ROWS
from flexfa4.kernels.sm100.forward.storage import ROWS, Storage
from flexfa4.kernels.sm100.forward.tmem import HALVES
from flexfa4.primitives import tma
from flexfa4.primitives.pipeline import Position, Ring
from flexfa4.primitives.scheduler import Item


@dataclass(frozen=True)
class Rings:
    """The rings of a block.

    Attributes:
        q: a stage for each half.
        k, v: one ring of parts, of which a part of K and one of V may have different sizes.
    """

    q: Ring
    k: Ring
    v: Ring


@dataclass(frozen=True)
class Loader:
    """The role of the load warp.

    Attributes:
        storage: where tiles lie.
        base: start of dynamic shared memory, of the tensors' dtype.
        parameters: of the launch.
        rings: shared with the products.
        rank: of the block among those that compute together.
    """

    storage: Storage
    base: cute.Pointer
    parameters: Parameters
    rings: Rings
    rank: Int32

    @cute.jit
    def load_item(
        self, item: Item, tiles: Any, q_at: Position, at: Position
    ) -> tuple[Position, Position]:
        """Load what a tile of queries needs; return the positions behind it."""
        for half in cutlass.range_constexpr(HALVES):
            self._load_q(item, half, q_at)
            q_at = q_at.next()
        for i in cutlass.range(tiles.partial_count, unroll=1):
            at = self._load_kv(item, tiles.partial(i), at)
        for i in cutlass.range(tiles.full_count, unroll=1):
            at = self._load_kv(item, tiles.full(i), at)
        return q_at, at

    @cute.jit
    def _load_q(self, item: Item, half: int, at: Position) -> None:
        q, ring, parameters = self.storage.q, self.rings.q, self.parameters
        shape = parameters.plan.walk.shape
        box = ROWS // shape.group
        first = item.q_tile * shape.queries + (self.rank * HALVES + half) * box
        query, last = parameters.place("q", first, box, item.batch)
        ring.wait_until_free(at)
        with cute.arch.elect_one():
            self._expect(ring, at)
            for slab in cutlass.range_constexpr(q.slabs):
                self._copy(
                    tma.address(parameters.maps.q),
                    self.base
                    + (self.storage.q_at // ELEMENT + half * q.elements)
                    + slab * q.rows * q.slab,
                    ring.full(at),
                    (slab * q.slab, 0, query, item.head, last),
                )

    @cute.jit
    def _load_kv(self, item: Item, kv_tile: Int32, at: Position) -> Position:
        storage, rings, parameters = self.storage, self.rings, self.parameters
        keys = parameters.plan.walk.shape.keys
        batch = item.batch * parameters["kv_batch_step"]
        head = item.head
        if cutlass.const_expr(parameters.plan.group == 1):
            head = item.head // parameters.group
        slabs, rows = storage.k.slabs, storage.v.rows
        slab = 0
        if cutlass.const_expr(self._blocks > 1):
            slab = self.rank * storage.v.slabs
        first = kv_tile * keys + self.rank * storage.k.rows
        key, last = parameters.place("kv", first, storage.k.rows, batch)
        for part in cutlass.range_constexpr(storage.k_parts):
            self._load(rings.k, parameters.maps.k, (0, key, part * slabs, head, last), at)
            at = at.next()
        for part in cutlass.range_constexpr(storage.v_parts):
            key, last = parameters.place("kv", kv_tile * keys + part * rows, rows, batch)
            self._load(rings.v, parameters.maps.v, (0, key, slab, head, last), at)
            at = at.next()
        return at

    @cute.jit
    def _load(self, ring: Ring, tensor: Any, place: Any, at: Position) -> None:
        step = self.storage.stage_bytes // ELEMENT
        ring.wait_until_free(at)
        with cute.arch.elect_one():
            self._expect(ring, at)
            self._copy(
                tma.address(tensor),
                self.base + (self.storage.ring_at // ELEMENT + at.stage * step),
                ring.full(at),
                place,
            )

    @property
    def _blocks(self) -> int:
        return self.parameters.plan.walk.shape.rows // TILE_ROWS

    @cute.jit
    def _expect(self, ring: Ring, at: Position) -> None:
        """Announce the bytes of a stage, of all blocks that compute together: by the first one."""
        if cutlass.const_expr(self._blocks == 1):
            ring.expect(at)
        else:
            if self.rank == 0:
                ring.expect(at)

    def _copy(self, tensor: Any, target: cute.Pointer, barrier: cute.Pointer, place: Any) -> None:
        copy = tma.load if self._blocks == 1 else tma.load_for_pair
        copy(tensor, target, barrier, place)
