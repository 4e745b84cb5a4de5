"""Blackwell, for `flexfa4.kernels.forward`: B200 and GB200, B300 and GB300.

What only its own calls need is imported where it is: a process begins with the import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flexfa4.kernels.forward.architecture import Architecture, BackwardPass, Gpus, Row
from flexfa4.kernels.launch.target import Target
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import Tile
from flexfa4.kernels.sm100.forward.storage import ROWS

if TYPE_CHECKING:
    from flexfa4.kernels.sm100.forward.plan import ForwardPlan, Tiling


class Blackwell(Architecture["ForwardPlan", "Tiling"]):
    """See `Architecture`."""

    backend = "sm100"
    gpus = Gpus(
        {(10, 0): "sm_100a", (10, 3): "sm_103a"},
        "a B200 or B300",
        cached_bytes=60 << 20,  # of 126 MB
        multiprocessors=148,
    )
    roles = ("load or product", "correction", "softmax")
    row_unit = ROWS
    halves = True

    def refused_head_dims(self, head_dims: tuple[int, int]) -> Refusal | None:
        """See `Architecture.refused_head_dims`."""
        from flexfa4.kernels.sm100.tuning import refused_head_dims

        return refused_head_dims(head_dims)

    def tiling(self, head_dims: tuple[int, int], tile: Tile, name: str) -> Tiling | Refusal:
        """See `Architecture.tiling`."""
        from flexfa4.kernels.sm100.tuning import tiling_for

        return tiling_for(head_dims, tile)

    def tiling_of(self, plan: ForwardPlan, tile: Tile, name: str) -> Tiling:
        """See `Architecture.tiling_of`."""
        from flexfa4.kernels.sm100.tuning import tiling_of

        return tiling_of(plan, tile, name)

    def plan(self, tiling: Tiling, **variant: Any) -> ForwardPlan:
        """See `Architecture.plan`."""
        from flexfa4.kernels.sm100.forward.plan import ForwardPlan

        return ForwardPlan(tiling=tiling, **variant)

    def kernel(self, plan: ForwardPlan) -> Any:
        """See `Architecture.kernel`."""
        from flexfa4.kernels.sm100.forward.kernel import ForwardKernel

        return ForwardKernel(plan)

    def backwards(self, target: Target) -> BackwardPass:
        """See `Architecture.backwards`."""
        from flexfa4.kernels.backward.function import Backwards
        from flexfa4.kernels.sm100.backward.architecture import BLACKWELL_BACKWARD

        return Backwards(BLACKWELL_BACKWARD, target, self.name_of(target.capability))

    def describe(self, plan: ForwardPlan, name: str) -> list[Row]:
        """See `Architecture.describe`."""
        from flexfa4.kernels.sm100.describe import describe_plan

        return describe_plan(plan, name)
