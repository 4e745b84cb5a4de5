"""Producer warp of the backward kernel: loads K and V once, and Q and dO tile by tile.

The statistics of a tile of queries arrive with its Q.  The warp walks together, since finding the
tiles may need all of its lanes; one lane issues the copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from flexfa4.kernels.backward.pairs import Pairs
from flexfa4.kernels.backward.parameters import Parameters
from flexfa4.kernels.forward.tiles import TileShape
from flexfa4.kernels.sm90.backward.storage import Storage, Tiling
from flexfa4.primitives import tma
from flexfa4.primitives.pipeline import Position, Ring
from flexfa4.primitives.scheduler import Item


@dataclass(frozen=True)
class Rings:
    """The rings of a block; that of Q is also that of the statistics."""

    q: Ring
    do: Ring
    k: Ring
    v: Ring


class Places:
    """Where one side stands in the rings of Q and dO and in the tiles of dS; loops may carry it.

    What has as many stages as something else stands where that does.

    Attributes:
        mail: which part of dQ is the next to be left to the warp that adds it.
    """

    def __init__(self, tiling: Tiling, positions: dict[int, Position], mail: Position) -> None:
        self._tiling = tiling
        self._positions = positions
        self.mail = mail

    @staticmethod
    def start(tiling: Tiling) -> Places:
        """Return the first tile of queries of the block."""
        stages = sorted({tiling.q_stages, tiling.do_stages, tiling.ds_stages})
        return Places(tiling, {n: Position.start(n) for n in stages}, Position.start(1))

    @property
    def q(self) -> Position:
        """In the ring of Q."""
        return self._positions[self._tiling.q_stages]

    @property
    def do(self) -> Position:
        """In the ring of dO."""
        return self._positions[self._tiling.do_stages]

    @property
    def ds(self) -> Position:
        """In the tiles of dS."""
        return self._positions[self._tiling.ds_stages]

    def next(self) -> Places:
        """Return the places of the next tile of queries."""
        return self._with({n: at.next() for n, at in self._positions.items()})

    def previous(self) -> Places:
        """Return the places of the tile of queries before."""
        return self._with({n: at.previous() for n, at in self._positions.items()})

    def posted(self) -> Places:
        """Return these places when a part of dQ has been left."""
        return Places(self._tiling, self._positions, self.mail.next())

    def _with(self, positions: dict[int, Position]) -> Places:
        return Places(self._tiling, positions, self.mail)

    def __extract_mlir_values__(self) -> list[Any]:
        every = (*self._positions.values(), self.mail)
        return [v for at in every for v in at.__extract_mlir_values__()]

    def __new_from_mlir_values__(self, values: list[Any]) -> Places:
        each = len(values) // (len(self._positions) + 1)
        made = {
            n: at.__new_from_mlir_values__(values[i * each : (i + 1) * each])
            for i, (n, at) in enumerate(self._positions.items())
        }
        mail = self.mail.__new_from_mlir_values__(values[-each:])
        return Places(self._tiling, made, mail)


@dataclass(frozen=True)
class Producer:
    """The role of the producer warp.

    Attributes:
        storage: where tiles lie.
        start: of dynamic shared memory, in bytes.
        dtype: of the tensors.
        parameters: of the launch.
        rings: shared with the consumers.
    """

    storage: Storage
    start: cute.Pointer
    dtype: Any
    parameters: Parameters
    rings: Rings

    @cute.jit
    def load_item(self, item: Item, places: Places, kv_at: Position) -> tuple[Places, Position]:
        """Load what a tile of keys needs; return the positions behind it."""
        maps, storage, rings = self.parameters.maps, self.storage, self.rings
        key = item.q_tile * storage.k.rows
        kv = (key, item.head, item.batch)
        self._load(rings.k, maps.k, storage.k, storage.k_at, kv, kv_at)
        self._load(rings.v, maps.v, storage.v, storage.v_at, kv, kv_at)
        pairs = Pairs(self.parameters, item)
        for number in cutlass.range(pairs.count, unroll=1):
            batch, head = pairs.of(number)
            tiles = self.parameters.source.row(batch, head, item.q_tile)
            for i in cutlass.range(tiles.partial_count, unroll=1):
                places = self._load_queries(batch, head, tiles.partial(i), places)
            for i in cutlass.range(tiles.full_count, unroll=1):
                places = self._load_queries(batch, head, tiles.full(i), places)
        return places, kv_at.next()

    @cute.jit
    def _load_queries(self, batch: Int32, head: Int32, q_tile: Int32, at: Places) -> Places:
        maps, storage, rings = self.parameters.maps, self.storage, self.rings
        query = (q_tile * storage.q.rows, head, batch)
        self._load(rings.q, maps.q, storage.q, storage.q_at, query, at.q)
        with cute.arch.elect_one():
            nbytes = storage.statistics_bytes
            target = self.start + (storage.statistics_at + at.q.stage * nbytes)
            tma.load_bytes(
                self.parameters.statistics_of(batch, head, q_tile),
                cute.recast_ptr(target, dtype=Float32),
                self.rings.q.full(at.q),
                nbytes,
            )
        self._load(rings.do, maps.do, storage.do, storage.do_at, query, at.do)
        return at.next()

    @cute.jit
    def _load(
        self,
        ring: Ring,
        tensor: Any,
        tile: TileShape,
        start: int,
        place: tuple[Int32, Int32, Int32],
        at: Position,
    ) -> None:
        row, head, batch = place
        target = cute.recast_ptr(self.start + (start + at.stage * tile.bytes), dtype=self.dtype)
        ring.wait_until_free(at)
        with cute.arch.elect_one():
            ring.expect(at)
            tma.load(tma.address(tensor), target, ring.full(at), (0, row, 0, head, batch))
