"""Hopper's backward kernels, for `flexfa4.kernels.backward`."""

from __future__ import annotations

from typing import Any

from flexfa4.kernels.backward.architecture import BackwardKernels, TurnCosts
from flexfa4.kernels.backward.plan import GradientPlan, PostprocessPlan
from flexfa4.kernels.blocks.walk import Walk
from flexfa4.kernels.emit.gradient import GradientProgram
from flexfa4.kernels.sm90.backward.plan import BackwardPlan
from flexfa4.kernels.sm90.backward.storage import Tiling
from flexfa4.kernels.sm90.backward.tuning import fitting, in_turns, tiling_for


class HopperBackward(BackwardKernels):
    """See `BackwardKernels`."""

    cached_bytes = 24 << 20  # of 50 MB
    multiprocessors = 132
    turn_costs = TurnCosts(latency=0.75, masked=1.08, visit=1.04)  # docs/notes/h200.md

    def tiling(self, head_dims: tuple[int, int], score: GradientProgram) -> Tiling | None:
        """See `BackwardKernels.tiling`."""
        return tiling_for(head_dims, score)

    def fitting(self, tiling: Any, head_dims: tuple[int, int], walk: Walk) -> Tiling:
        """See `BackwardKernels.fitting`."""
        return fitting(tiling, walk)

    def visits_ahead(self, plan: GradientPlan) -> int:
        """See `BackwardKernels.visits_ahead`: one, where parts wait for their turns in outboxes."""
        return int(plan.tiling.staged)

    def finishes_dq(self, tiling: Any) -> bool:
        """See `BackwardKernels.finishes_dq`."""
        return bool(tiling.finishes)

    def dq_in_words(self, tiling: Any) -> str:
        """See `BackwardKernels.dq_in_words`."""
        if not tiling.staged:
            return "parts of dQ straight from registers"
        later = ", a tile later" if tiling.lagged else ""
        finished = ", and where they are few the last one finishes it" if tiling.finishes else ""
        return super().dq_in_words(tiling) + later + finished

    def plan(self, tiling: Any, **variant: Any) -> BackwardPlan:
        """See `BackwardKernels.plan`."""
        if variant["walk"].ranked:
            tiling = in_turns(tiling)
        return BackwardPlan(tiling=tiling, **variant)

    def main(self, plan: GradientPlan) -> Any:
        """See `BackwardKernels.main`."""
        from flexfa4.kernels.sm90.backward.kernel import BackwardKernel

        assert isinstance(plan, BackwardPlan)
        return BackwardKernel(plan)

    def postprocess(self, plan: PostprocessPlan) -> Any:
        """See `BackwardKernels.postprocess`."""
        from flexfa4.kernels.sm90.backward.postprocess import PostprocessKernel

        return PostprocessKernel(plan)


HOPPER_BACKWARD = HopperBackward()
"""It has no state."""
