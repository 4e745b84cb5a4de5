"""`ForwardPlan`: all that the forward kernel's code depends on, and the key it is kept by.

What it says beside the tiling is common to all architectures (`flexfa4.kernels.forward.plan`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

from flexfa4.kernels.compile.signature import TensorMap
from flexfa4.kernels.forward.plan import VariantPlan
from flexfa4.kernels.sm100.forward.storage import ROWS, Storage, plan_storage
from flexfa4.kernels.sm100.forward.tmem import HALVES, TensorMemory, plan_tensor_memory
from flexfa4.primitives.exponentials import EmulatedFraction

TILE_ROWS: Final = HALVES * ROWS
"""Rows that a block works on: two halves in ping-pong."""


@dataclass(frozen=True)
class Registers:
    """Registers of a thread, by the role of its warpgroup; multiples of 8.

    Two warpgroups of softmax and one of each other kind share 512 for each lane.

    Attributes:
        softmax: of both warpgroups of softmax.
        correction: of the one that rescales and stores the output.
        others: of the one that loads and issues products.
    """

    softmax: int = 192
    correction: int = 80
    others: int = 48


_REGISTERS: Final = Registers()
_NONE_EMULATED: Final = EmulatedFraction()


@dataclass(frozen=True)
class Tiling:
    """How the work of a block is cut, and what of it each unit does.

    Attributes:
        keys: of a tile; a multiple of 32, at most 128.
        stages: parts of K and V in the ring (`storage.parts_of`).
        registers: of the roles.
        emulated: which exponentials are computed by multiplications.
        turns: the halves exponentiate one after the other.
        blocks: that compute a product together (``cta_group``): 1, or 2 where every tile of keys
            is visited.  Each has its own queries, and half of the keys and values of a tile.
    """

    keys: int
    stages: int
    registers: Registers = _REGISTERS
    emulated: EmulatedFraction = _NONE_EMULATED
    turns: bool = False
    blocks: int = 1

    @property
    def early(self) -> int:
        """Keys whose probabilities are handed on before the others: three quarters."""
        return self.keys * 3 // 4

    @property
    def rows(self) -> int:
        """Rows of a tile of queries."""
        return TILE_ROWS * self.blocks


@dataclass(frozen=True, kw_only=True)
class ForwardPlan(VariantPlan):
    """See the module.

    Attributes:
        tiling: of the work.
    """

    tiling: Tiling

    @functools.cached_property
    def storage(self) -> Storage:
        """The plan of shared memory."""
        return plan_storage(
            self.tiling.keys, self.head_dims, self.tiling.stages, blocks=self.tiling.blocks
        )

    @property
    def tensor_memory(self) -> TensorMemory:
        """The plan of tensor memory."""
        return plan_tensor_memory(self.tiling.keys, self.head_dims[1])

    @functools.cached_property
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor maps.

        Axes of q and out are ``(D, G, S, H / G, B)`` with G heads packed, moved slab by slab; those
        of k and v are ``(slab, S, slabs, H, B)``, moved a part at once.
        """
        storage, group = self.storage, self.group
        rows = {"q": storage.q, "out": storage.out}
        tiles = {"q": storage.q, "k": storage.k, "v": storage.v, "out": storage.out}
        found = []
        for name, tile in tiles.items():
            if name in rows:
                box = (tile.slab, group, ROWS // group, 1, 1)
            else:
                box = (tile.slab, tile.rows, tile.slabs, 1, 1)
            found.append(TensorMap(name, self.element, box, tile.swizzle))
        return tuple(found)
