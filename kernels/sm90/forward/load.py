"""Producer warp of the forward kernel: loads Q once and K and V tile by tile, ahead of their use.

The warp walks together, since finding the tiles may need all of its lanes; one lane issues the
copies.  It stops where a ring is full, so the consumers' pace is its own.  Values come one tile
behind their keys, as they are used, or keys would wait until values are given back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute

from flexfa4.kernels.forward.parameters import Parameters
from flexfa4.kernels.forward.tiles import ELEMENT, TileShape
from flexfa4.kernels.sm90.forward.storage import Storage
from flexfa4.primitives import tma
from flexfa4.primitives.pipeline import Position, Ring
from flexfa4.primitives.scheduler import Item


@dataclass(frozen=True)
class Rings:
    """The rings of a block."""

    q: Ring
    k: Ring
    v: Ring


@dataclass(frozen=True)
class Producer:
    """The role of the producer warp.

    Attributes:
        storage: where tiles lie.
        base: start of dynamic shared memory, of the tensors' dtype.
        parameters: of the launch.
        rings: shared with the consumers.
    """

    storage: Storage
    base: cute.Pointer
    parameters: Parameters
    rings: Rings

    @cute.jit
    def load_tile(
        self, item: Item, tiles: Any, q_at: Position, kv_at: Position
    ) -> tuple[Position, Position]:
        """Load what a tile of queries needs; return the positions behind it."""
        self._load_q(item, q_at)
        last = Int32(-1)
        for i in cutlass.range(tiles.partial_count, unroll=1):
            kv_at, last = self._load_kv(item, tiles.partial(i), kv_at, last)
        for i in cutlass.range(tiles.full_count, unroll=1):
            kv_at, last = self._load_kv(item, tiles.full(i), kv_at, last)
        self._load_values(item, last, kv_at.previous())
        return q_at.next(), kv_at

    @cute.jit
    def _load_q(self, item: Item, at: Position) -> None:
        q, ring, box = self.storage.q, self.rings.q, self._queries
        ring.wait_until_free(at)
        with cute.arch.elect_one():
            ring.expect(at)
            query, last = self.parameters.place("q", item.q_tile * box, box, item.batch)
            for slab in cutlass.range_constexpr(q.slabs):
                tma.load(
                    tma.address(self.parameters.maps.q),
                    self.base
                    + (self.storage.q_at // ELEMENT + slab * q.rows * q.slab)
                    + at.stage * q.elements,
                    ring.full(at),
                    (slab * q.slab, 0, query, item.head, last),
                )

    @cute.jit
    def _load_kv(
        self, item: Item, kv_tile: Int32, at: Position, last: Int32
    ) -> tuple[Position, Int32]:
        """Load the keys of a tile, and the values of the one before, -1 for none."""
        storage = self.storage
        self._load(self.rings.k, self.parameters.maps.k, storage.k, storage.k_at, item, kv_tile, at)
        if last >= 0:
            self._load_values(item, last, at.previous())
        return at.next(), kv_tile

    @cute.jit
    def _load_values(self, item: Item, kv_tile: Int32, at: Position) -> None:
        storage = self.storage
        self._load(self.rings.v, self.parameters.maps.v, storage.v, storage.v_at, item, kv_tile, at)

    @cute.jit
    def _load(
        self,
        ring: Ring,
        tensor: Any,
        tile: TileShape,
        start: int,
        item: Item,
        kv_tile: Int32,
        at: Position,
    ) -> None:
        head = item.head
        if cutlass.const_expr(self.parameters.plan.group == 1):
            head = item.head // self.parameters.group
        batch = item.batch * self.parameters["kv_batch_step"]
        ring.wait_until_free(at)
        with cute.arch.elect_one():
            ring.expect(at)
            key, last = self.parameters.place("kv", kv_tile * tile.rows, tile.rows, batch)
            tma.load(
                tma.address(tensor),
                self.base + (start // ELEMENT + at.stage * tile.elements),
                ring.full(at),
                (0, key, 0, head, last),
            )

    @property
    def _queries(self) -> int:
        return self.parameters.plan.walk.shape.queries
