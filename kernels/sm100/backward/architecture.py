"""Blackwell's backward kernels, for `flexfa4.kernels.backward`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from flexfa4.kernels.backward.architecture import BackwardKernels
from flexfa4.kernels.backward.plan import GradientPlan, PostprocessPlan
from flexfa4.kernels.blocks.walk import Walk
from flexfa4.kernels.emit.gradient import GradientProgram
from flexfa4.kernels.sm100.backward.plan import BackwardPlan
from flexfa4.kernels.sm100.backward.storage import (
    IN_TURNS,
    WIDE_WITH_DERIVATIVE,
    WITH_DERIVATIVE,
    Tiling,
)
from flexfa4.kernels.sm100.backward.tuning import fitting, tiling_for

_USUAL_DIMS: Final = 128  # head dims beyond it are wide


class BlackwellBackward(BackwardKernels):
    """See `BackwardKernels`."""

    cached_bytes = 60 << 20  # of 126 MB
    multiprocessors = 148

    def together(self, tiling: Any) -> int:
        """See `BackwardKernels.together`."""
        return int(tiling.blocks)

    def visits_ahead(self, plan: GradientPlan) -> int:
        """See `BackwardKernels.visits_ahead`: one, where dQ is read while the next dP is made."""
        assert isinstance(plan, BackwardPlan)
        return int(plan.tensor_memory.dq_is_last)

    def tiling(self, head_dims: tuple[int, int], score: GradientProgram) -> Tiling | None:
        """See `BackwardKernels.tiling`."""
        return tiling_for(head_dims, score)

    def fitting(self, tiling: Any, head_dims: tuple[int, int], walk: Walk) -> Tiling:
        """See `BackwardKernels.fitting`."""
        return fitting(tiling, head_dims, walk.plan)

    def plan(self, tiling: Any, **variant: Any) -> BackwardPlan:
        """See `BackwardKernels.plan`."""
        if variant["walk"].ranked:
            registers = IN_TURNS
            if tiling.registers == WITH_DERIVATIVE:
                wide = max(variant["head_dims"]) > _USUAL_DIMS
                registers = WIDE_WITH_DERIVATIVE if wide else WITH_DERIVATIVE
            tiling = replace(tiling, registers=registers)
        return BackwardPlan(tiling=tiling, **variant)

    def main(self, plan: GradientPlan) -> Any:
        """See `BackwardKernels.main`."""
        from flexfa4.kernels.sm100.backward.kernel import BackwardKernel

        assert isinstance(plan, BackwardPlan)
        return BackwardKernel(plan)

    def postprocess(self, plan: PostprocessPlan) -> Any:
        """See `BackwardKernels.postprocess`."""
        from flexfa4.kernels.sm100.backward.postprocess import PostprocessKernel

        return PostprocessKernel(plan)


BLACKWELL_BACKWARD = BlackwellBackward()
"""It has no state."""
