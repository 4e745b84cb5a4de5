"""The storing warp: dK and dV from shared memory to global memory.

They take the places of K and V.  TMA writes them from there, leaving out what lies beyond the last
key, and gives the places back: so whoever has put them there goes on with the next tile of keys at
once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, cute

from flexfa4.kernels.backward.parameters import Parameters
from flexfa4.kernels.forward.tiles import ELEMENT, TileShape
from flexfa4.primitives import tma
from flexfa4.primitives.pipeline import Position, Ring
from flexfa4.primitives.scheduler import Item


@dataclass(frozen=True)
class Storer:
    """The role of the storing warp.

    Attributes:
        storage: what lies where in shared memory: tiles `k` and `v`, at `k_at` and `v_at`.
        base: start of shared memory, of the tensors' dtype.
        parameters: of the launch; its maps are `dk` and `dv`.
        rings: those of K and of V, which get their places back.
        written: the mbarriers of the stages of K and V, on which those arrive who have put dK and
            dV there.
    """

    storage: Any
    base: cute.Pointer
    parameters: Parameters
    rings: tuple[Ring, Ring]
    written: cute.Pointer

    @cute.jit
    def store(self, item: Item, number: Int32, kv_at: Position) -> None:
        """Have dK and dV of an item written, and give the places of K and V back.

        Args:
            item: the item.
            number: of the block's tile of keys.
            kv_at: where K and V are.
        """
        storage, maps = self.storage, self.parameters.maps
        cute.arch.mbarrier_wait(self.written + kv_at.stage, kv_at.parity)
        with cute.arch.elect_one():
            self._store(maps.dv, storage.v, storage.v_at, (number, item), kv_at)
            self._store(maps.dk, storage.k, storage.k_at, (number, item), kv_at)
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            for ring in self.rings:
                ring.release(kv_at)

    def _store(
        self, tensor: Any, tile: TileShape, start: int, at: tuple[Int32, Item], kv_at: Position
    ) -> None:
        place = cute.assume(kv_at.stage * tile.elements, divby=tile.elements)
        source = self.base + start // ELEMENT + place
        number, item = at
        key: Int32 = number * tile.rows
        tma.store(tma.address(tensor), source, (0, key, 0, item.head, item.batch))
