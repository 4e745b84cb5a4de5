"""Load warp of the backward kernel: K and V once, and Q, dO and statistics tile by tile.

The warp walks together, since finding the tiles may need all of its lanes; one lane issues the
copies.  Of two blocks that compute together, each loads its own parts, and the first one expects
the bytes of both (`storage`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, cute

from flexfa4.kernels.backward.pairs import Pairs
from flexfa4.kernels.backward.parameters import Parameters
from flexfa4.kernels.forward.tiles import TileShape
from flexfa4.kernels.sm100.backward.storage import KEYS, Storage
from flexfa4.primitives import tma
from flexfa4.primitives.clusters import own_rank
from flexfa4.primitives.pipeline import Position, Ring
from flexfa4.primitives.scheduler import Item


@dataclass(frozen=True)
class Rings:
    """The rings of a block.

    Attributes:
        q, do, k, v: of the tiles; that of K is also that of `k_of_dq`.
        q_of_dk, do_of_dv: the same as `q` and `do` where a block computes alone, or tiles take
            turns at their places.
        statistics: of queries, for the block alone.
    """

    q: Ring
    do: Ring
    k: Ring
    v: Ring
    q_of_dk: Ring
    do_of_dv: Ring
    statistics: Ring


class Places:
    """Where one side stands in the rings of tiles of queries; a value that loops may carry.

    What has as many stages as something else stands where that does.
    """

    def __init__(self, storage: Storage, positions: dict[int, Position]) -> None:
        self._storage = storage
        self._positions = positions

    @staticmethod
    def start(storage: Storage) -> Places:
        """Return the first tile of queries of the block."""
        tiles = (storage.q, storage.do, storage.q_of_dk, storage.do_of_dv)
        stages = sorted({storage.statistics_stages, *(tile.stages for tile in tiles)})
        return Places(storage, {n: Position.start(n) for n in stages})

    def of(self, tile: TileShape) -> Position:
        """Return the place in the ring of a tile."""
        storage = self._storage
        if storage.one_place:  # in which two tiles take turns
            second = tile in (storage.q_of_dk, storage.do_of_dv)
            return Position(1, Int32(0), Int32(second))
        return self._positions[tile.stages]

    @property
    def statistics(self) -> Position:
        """The place in the ring of statistics."""
        return self._positions[self._storage.statistics_stages]

    def next(self) -> Places:
        """Return the places of the next tile of queries."""
        return Places(self._storage, {n: at.next() for n, at in self._positions.items()})

    def __extract_mlir_values__(self) -> list[Any]:
        return [v for at in self._positions.values() for v in at.__extract_mlir_values__()]

    def __new_from_mlir_values__(self, values: list[Any]) -> Places:
        each = len(values) // len(self._positions)
        made = {
            n: at.__new_from_mlir_values__(values[i * each : (i + 1) * each])
            for i, (n, at) in enumerate(self._positions.items())
        }
        return Places(self._storage, made)


class _Copy(NamedTuple):
    """A tile to be loaded: where it lies, what it is read from, and where that begins.

    Attributes:
        tensor: a carrier of a tensor map.
        tile: its shape.
        start: offset of the first stage.
        first: slab and row of the tensor.
    """

    tensor: Any
    tile: TileShape
    start: int
    first: tuple[Any, Any]


@dataclass(frozen=True)
class Loader:
    """The role of the load warp.

    Attributes:
        storage: where tiles lie.
        start: of dynamic shared memory, in bytes.
        dtype: of the tensors.
        parameters: of the launch.
        rings: shared with those who use the tiles.
        blocks: that compute together.
    """

    storage: Storage
    start: cute.Pointer
    dtype: Any
    parameters: Parameters
    rings: Rings
    blocks: int

    @cute.jit
    def load_item(self, item: Item, places: Places, kv_at: Position) -> tuple[Places, Position]:
        """Load what a tile of keys needs; return the positions behind it."""
        maps, storage, rings = self.parameters.maps, self.storage, self.rings
        rank, first = own_rank(self.blocks), item.q_tile * (KEYS * self.blocks)
        key, place = first + rank * KEYS, (item.head, item.batch)
        keys = [_Copy(maps.k, storage.k, storage.k_at, (0, key))]
        if cutlass.const_expr(self.blocks > 1):
            slab = rank * storage.k_of_dq.slabs
            keys.append(_Copy(maps.k_of_dq, storage.k_of_dq, storage.k_of_dq_at, (slab, first)))
        self._load(rings.k, keys, place, kv_at)
        self._load(rings.v, [_Copy(maps.v, storage.v, storage.v_at, (0, key))], place, kv_at)
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
        place, queries = (head, batch), storage.q.rows
        rank, first = own_rank(self.blocks), q_tile * (queries * self.blocks)
        own = first + rank * queries
        q = _Copy(maps.q, storage.q, storage.q_at, (0, own))
        do = _Copy(maps.do, storage.do, storage.do_at, (0, own))
        self._load(rings.q, [q], place, at.of(storage.q))
        self._load_statistics((batch, head, q_tile), at.statistics)
        self._load(rings.do, [do], place, at.of(storage.do))
        if cutlass.const_expr(self.blocks > 1):
            of_dv, of_dk = storage.do_of_dv, storage.q_of_dk
            slabs = [rank * tile.slabs for tile in (of_dv, of_dk)]
            do = _Copy(maps.do_of_dv, of_dv, storage.do_of_dv_at, (slabs[0], first))
            q = _Copy(maps.q_of_dk, of_dk, storage.q_of_dk_at, (slabs[1], first))
            self._load(rings.do_of_dv, [do], place, at.of(of_dv))
            self._load(rings.q_of_dk, [q], place, at.of(of_dk))
        return at.next()

    @cute.jit
    def _load_statistics(self, place: tuple[Int32, Int32, Int32], at: Position) -> None:
        ring, nbytes = self.rings.statistics, self.storage.statistics_bytes
        ring.wait_until_free(at)
        with cute.arch.elect_one():
            ring.expect(at)
            target = self.start + (self.storage.statistics_at + at.stage * nbytes)
            tma.load_bytes(
                self.parameters.statistics_of(*place),
                cute.recast_ptr(target, dtype=Float32),
                ring.full(at),
                nbytes,
            )

    @cute.jit
    def _load(
        self, ring: Ring, copies: list[_Copy], place: tuple[Int32, Int32], at: Position
    ) -> None:
        """Load tiles that arrive together; `place`: head and batch."""
        ring.wait_until_free(at)
        with cute.arch.elect_one():
            self._expect(ring, at)
            for copy in copies:
                self._copy(copy, ring.full(at), place, at)

    @cute.jit
    def _expect(self, ring: Ring, at: Position) -> None:
        """Announce the bytes of a stage, of all blocks that compute together: by the first one."""
        if cutlass.const_expr(self.blocks == 1):
            ring.expect(at)
        else:
            if own_rank(self.blocks) == 0:
                ring.expect(at)

    def _copy(
        self, copy: _Copy, barrier: cute.Pointer, place: tuple[Int32, Int32], at: Position
    ) -> None:
        load = tma.load if self.blocks == 1 else tma.load_for_pair
        slab, row = copy.first
        target = self.start + (copy.start + at.stage * copy.tile.bytes)
        typed = cute.recast_ptr(target, dtype=self.dtype)
        load(tma.address(copy.tensor), typed, barrier, (0, row, slab, *place))
