"""Hopper, for `flexfa4.kernels.forward`: H100 and H200.

What not every call needs is imported where it is: a process begins with the import.
"""

from __future__ import annotations

from typing import Any

from flexfa4.kernels.forward.architecture import Architecture, BackwardPass, Gpus, Row
from flexfa4.kernels.forward.support import refused_head_dims
from flexfa4.kernels.launch.target import Target
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import ANY_TILE, Tile
from flexfa4.kernels.sm90.forward.plan import WARPGROUP_ROWS, ForwardPlan, Tiling
from flexfa4.kernels.sm90.tuning import HEAD_DIM_STEP, MOST_HEAD_DIM, fitting, tiling_for


class Hopper(Architecture[ForwardPlan, Tiling]):
    """See `Architecture`."""

    backend = "sm90"
    gpus = Gpus(
        {(9, 0): "sm_90a"},
        "an H100 or H200",
        cached_bytes=24 << 20,  # of 50 MB
        multiprocessors=132,
    )
    roles = ("producer", "consumer")
    row_unit = WARPGROUP_ROWS

    def refused_head_dims(self, head_dims: tuple[int, int]) -> Refusal | None:
        """Return why head dims of q and v are not served; None where they are."""
        return refused_head_dims(head_dims, HEAD_DIM_STEP, MOST_HEAD_DIM)

    def tiling(self, head_dims: tuple[int, int], tile: Tile, name: str) -> Tiling | Refusal:
        """See `Architecture.tiling`."""
        return tiling_for(head_dims, tile)

    def tiling_of(self, plan: ForwardPlan, tile: Tile, name: str) -> Tiling:
        """Return the tiling that leaves the mods of a plan enough registers."""
        return fitting(plan) if tile._replace(stages=None) == ANY_TILE else plan.tiling

    def plan(self, tiling: Tiling, **variant: Any) -> ForwardPlan:
        """See `Architecture.plan`."""
        return ForwardPlan(tiling=tiling, **variant)

    def kernel(self, plan: ForwardPlan) -> Any:
        """See `Architecture.kernel`."""
        from flexfa4.kernels.sm90.forward.kernel import ForwardKernel

        return ForwardKernel(plan)

    def backwards(self, target: Target) -> BackwardPass:
        """See `Architecture.backwards`."""
        from flexfa4.kernels.backward.function import Backwards
        from flexfa4.kernels.sm90.backward.architecture import HOPPER_BACKWARD

        return Backwards(HOPPER_BACKWARD, target, self.name_of(target.capability))

    def describe(self, plan: ForwardPlan, name: str) -> list[Row]:
        """See `Architecture.describe`."""
        from flexfa4.kernels.sm90.describe import describe_plan

        return describe_plan(plan)
