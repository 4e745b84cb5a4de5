"""`BackwardPlan`: all that the code of Blackwell's main backward kernel depends on.

What it says beside the tiling is common to all architectures (`flexfa4.kernels.backward.plan`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

from flexfa4.kernels.backward.fragment import LANES, Fragment
from flexfa4.kernels.backward.plan import DqOrder, GradientPlan
from flexfa4.kernels.compile.signature import TensorMap
from flexfa4.kernels.sm100.backward.storage import (
    Storage,
    Tiling,
    plan_storage,
    tensor_memory_of,
)
from flexfa4.kernels.sm100.backward.tmem import GROUPS, TensorMemory

_WARPS: Final = 4  # of a warpgroup
_AHEAD: Final = 16  # columns for which captures are read before products are there


@dataclass(frozen=True, kw_only=True)
class BackwardPlan(GradientPlan):
    """See the module.

    Attributes:
        tiling: of the work.
    """

    tiling: Tiling

    @functools.cached_property
    def storage(self) -> Storage:
        """The plan of shared memory."""
        return plan_storage(self.tiling, self.head_dims)

    @functools.cached_property
    def tensor_memory(self) -> TensorMemory:
        """The plan of tensor memory."""
        return tensor_memory_of(self.tiling, self.head_dims)

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor maps: all of them move a tile at once."""
        storage = self.storage
        q, k, v, do = storage.q, storage.k, storage.v, storage.do
        tiles = {"q": q, "k": k, "v": v, "do": do, "dk": k, "dv": v}
        if self.tiling.blocks > 1:
            tiles["q_of_dk"] = storage.q_of_dk
            tiles["do_of_dv"] = storage.do_of_dv
            tiles["k_of_dq"] = storage.k_of_dq
        return tuple(
            TensorMap(name, self.element, (tile.slab, tile.rows, tile.slabs, 1, 1), tile.swizzle)
            for name, tile in tiles.items()
        )

    @property
    def fragment(self) -> Fragment:
        """How a thread holds a tile of scores: it has a key, and the queries of its warpgroup."""
        columns = self.tiling.queries // GROUPS
        summed = LANES if self.in_parts else columns
        return Fragment(columns, rows=1, sharing=1, run=4, ahead=_AHEAD, pairs=True, summed=summed)

    @property
    def computes_anew(self) -> bool:
        """Where captures have gradients: what these need of each query would fill the registers."""
        return bool(self.score.shares) and not self.in_parts

    @property
    def in_parts(self) -> bool:
        """Whether a tile's gradients are computed along with its probabilities, few at a time.

        That is where gradients for captured tensors need more of each score than its probability.
        """
        score = self.score
        elements = any(share.over == "element" for share in score.shares)
        return elements or (bool(score.shares) and score.reads_score)

    @property
    def dq_order(self) -> DqOrder:
        """How tiles of dQ lie in their workspace: in a part for each of the blocks.

        A thread has a query; of two blocks, each has half of them, and two threads share a query.
        """
        head_dim, queries = self.head_dims[0], self.tiling.queries
        return DqOrder(queries, head_dim, head_dim, queries // self.tiling.blocks)

    @property
    def parts(self) -> int:
        """Warpgroups that have the same keys."""
        return GROUPS

    @property
    def takers(self) -> int:
        """Warps that add to a tile of dQ, of all blocks that compute together."""
        return _WARPS * self.tiling.blocks
