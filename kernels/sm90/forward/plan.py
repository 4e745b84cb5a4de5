"""`ForwardPlan`: all that the forward kernel's code depends on, and the key it is kept by.

What it says beside the tiling is common to all architectures (`flexfa4.kernels.forward.plan`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

from flexfa4.kernels.compile.signature import TensorMap
from flexfa4.kernels.forward.plan import VariantPlan
from flexfa4.kernels.sm90.forward.storage import Storage, plan_storage
from flexfa4.primitives.exponentials import NONE_EMULATED, EmulatedFraction

WARPGROUP_ROWS: Final = 64
"""Queries of a warpgroup: the rows of a WGMMA."""


@dataclass(frozen=True)
class Tiling:
    """How the work of a block is cut.

    Attributes:
        warpgroups: that consume, each with 64 rows: 1, 2 or 3.
        keys: of a tile; a multiple of 16, at most 256.
        stages: of the rings of K and V.
        early: share of a tile's exponentials that come before the wait for the product that runs
            beside them; 0 leaves their order to ptxas, which waits first.
        emulated: which exponentials are computed by multiplications.
    """

    warpgroups: int
    keys: int
    stages: int = 2
    early: float = 0.0
    emulated: EmulatedFraction = NONE_EMULATED

    @property
    def rows(self) -> int:
        """Rows of a tile of queries."""
        return self.warpgroups * WARPGROUP_ROWS


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
        return plan_storage(self.tiling.rows, self.tiling.keys, self.head_dims, self.tiling.stages)

    @functools.cached_property
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor maps.

        Axes of q and out are ``(D, G, S, H / G, B)`` with G heads packed, moved slab by slab; those
        of k and v are ``(slab, S, slabs, H, B)``, moved a tile at once.
        """
        storage, group = self.storage, self.group
        rows = {"q": self.tiling.rows, "out": WARPGROUP_ROWS}
        tiles = {"q": storage.q, "k": storage.k, "v": storage.v, "out": storage.out}
        found = []
        for name, tile in tiles.items():
            if name in rows:
                box = (tile.slab, group, rows[name] // group, 1, 1)
            else:
                box = (tile.slab, tile.rows, tile.slabs, 1, 1)
            found.append(TensorMap(name, self.element, box, tile.swizzle))
        return tuple(found)
