"""`BackwardPlan`: all that the code of Hopper's main backward kernel depends on.

What it says beside the tiling is common to all architectures (`flexfa4.kernels.backward.plan`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexfa4.kernels.backward.fragment import Fragment
from flexfa4.kernels.backward.plan import DqOrder, GradientPlan
from flexfa4.kernels.compile.signature import TensorMap
from flexfa4.kernels.sm90.backward.storage import Storage, Tiling, plan_storage

WARPGROUP_ROWS: Final = 64
"""Rows of a WGMMA."""

_WARPS: Final = 4  # of a warpgroup
_SHARING: Final = 4  # lanes that have the same two rows of an accumulator, two columns at a time


@dataclass(frozen=True, kw_only=True)
class BackwardPlan(GradientPlan):
    """See the module.

    Attributes:
        tiling: of the work.
    """

    tiling: Tiling

    @property
    def storage(self) -> Storage:
        """The plan of shared memory."""
        return plan_storage(self.tiling, self.head_dims)

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor maps: all of them move a tile at once."""
        q, k, v, do = self.storage.q, self.storage.k, self.storage.v, self.storage.do
        tiles = {"q": q, "k": k, "v": v, "do": do, "dk": k, "dv": v}
        return tuple(
            TensorMap(name, self.element, (tile.slab, tile.rows, tile.slabs, 1, 1), tile.swizzle)
            for name, tile in tiles.items()
        )

    @property
    def fragment(self) -> Fragment:
        """How a thread holds a tile of scores: as accumulators of WGMMA."""
        return Fragment(self.tiling.score_columns // _SHARING, rows=2, sharing=_SHARING, run=2)

    @property
    def dq_order(self) -> DqOrder:
        """How tiles of dQ lie in their workspace."""
        head_dim, tiling = self.head_dims[0], self.tiling
        columns = tiling.dq_columns(head_dim)
        return DqOrder(tiling.queries, head_dim, columns, WARPGROUP_ROWS)

    @property
    def finishes_dq(self) -> bool:
        """See `GradientPlan.finishes_dq`."""
        return self.tiling.finishes

    @property
    def parts(self) -> int:
        """Warpgroups that have the same keys."""
        return self.tiling.parts

    @property
    def takers(self) -> int:
        """Warps that add to a tile of dQ: those that empty outboxes, or all that consume."""
        return self.tiling.warpgroups * (1 if self.tiling.staged else _WARPS)
