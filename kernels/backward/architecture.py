"""`BackwardKernels`: what is particular to an architecture of GPUs in the backward pass.

The way from a call to launches is the same everywhere (`function`, `call`).  What differs is how
work is cut, which plans there are and what is traced for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from flexfa4.kernels.backward.plan import GradientPlan, PostprocessPlan
from flexfa4.kernels.blocks.ranks import LATENCY, MASKED
from flexfa4.kernels.blocks.walk import Walk
from flexfa4.kernels.emit.gradient import GradientProgram


@dataclass(frozen=True)
class TurnCosts:
    """What turns cost, in visits of a tile without them: as assumed where nothing was measured.

    Attributes:
        latency: from the end of a turn until the next one may begin.
        masked: a visit with the limits of each key applied.
        visit: a visit whose part is added at its turn, if nobody has to wait.
    """

    latency: float = LATENCY
    masked: float = MASKED
    visit: float = 1.0


class BackwardKernels(ABC):
    """See the module.

    Attributes:
        cached_bytes: of the L2 cache, what queries and their gradients of a section of heads may
            take.
        multiprocessors: of the GPU that the order of work is made for.
        turn_costs: by which `flexfa4.kernels.backward.waiting` predicts how long launches take.
    """

    cached_bytes: ClassVar[int]
    multiprocessors: ClassVar[int]
    turn_costs: ClassVar[TurnCosts] = TurnCosts()

    def together(self, tiling: Any) -> int:
        """Return how many blocks have an item together."""
        return 1

    def visits_ahead(self, plan: GradientPlan) -> int:
        """Return how many visits a block may be ahead of its turns."""
        return 0

    @abstractmethod
    def tiling(self, head_dims: tuple[int, int], score: GradientProgram) -> Any | None:
        """Return how work is cut; None for head dims that there is no kernel for.

        Args:
            head_dims: of q and k, and of v.
            score: the score mod and its derivatives.
        """

    def fitting(self, tiling: Any, head_dims: tuple[int, int], walk: Walk) -> Any:
        """Return how work is cut for a mask: as `tiling` says, or otherwise.

        Args:
            tiling: for any mask.
            head_dims: as there.
            walk: how tiles are found with that.
        """
        return tiling

    def finishes_dq(self, tiling: Any) -> bool:
        """Return whether the main kernel finishes dQ: see `GradientPlan.finishes_dq`."""
        return False

    def dq_in_words(self, tiling: Any) -> str:
        """Return how parts of dQ reach their sums, for a tiling."""
        return "parts of dQ through shared memory"

    @abstractmethod
    def plan(self, tiling: Any, **variant: Any) -> GradientPlan:
        """Return the plan of the main kernel: the attributes of `GradientPlan`, and a tiling.

        Args:
            tiling: from `tiling`, perhaps with other exponentials emulated.
            variant: the rest.
        """

    @abstractmethod
    def main(self, plan: GradientPlan) -> Any:
        """Return what CuTe-DSL traces for the main kernel."""

    @abstractmethod
    def postprocess(self, plan: PostprocessPlan) -> Any:
        """Return what CuTe-DSL traces for the kernel behind it, where there is one.

        There is none behind plans that finish dQ (`GradientPlan.finishes_dq`).
        """
