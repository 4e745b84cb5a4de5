"""The mbarriers of a block, as its roles meet on them; `kernel` has the protocol."""

from __future__ import annotations

from typing import Any, Final

import cutlass
from cutlass import Int64, cute

from flexfa4.kernels.emit.evaluator import TraceTime
from flexfa4.kernels.sm100.backward.storage import BARRIERS, Storage
from flexfa4.kernels.sm100.backward.tmem import GROUPS

_WARPS: Final = 4  # of a warpgroup
ARRIVALS: Final = {
    "scores": 1,
    "read": GROUPS * _WARPS,
    "changes": 1,
    "probabilities": GROUPS * _WARPS,
    "gradients": GROUPS * _WARPS,
    "shared": GROUPS * _WARPS,
    "dq": 1,
    "taken": _WARPS,
    "sums": 1,
    "emptied": GROUPS * _WARPS,
}
"""How many arrivals complete a phase, by name."""

assert set(ARRIVALS) == set(BARRIERS)

_OF_PRODUCTS: Final = frozenset(
    {"read", "probabilities", "gradients", "shared", "taken", "emptied"}
)
"""What the product warp waits for."""


class Barriers(TraceTime):
    """The mbarriers of a block.

    A *phase* is the parity of a barrier's phase: who waits keeps it, and flips it each time.
    """

    def __init__(self, storage: Storage, base: cute.Pointer, blocks: int) -> None:
        """Take where they lie, and how many blocks compute together.

        What products wait for, they wait for in both blocks of a pair: these arrive on the first
        one's barriers.
        """
        self._storage = storage
        self._base = base
        self._blocks = blocks

    def initialise(self) -> None:
        """Make the mbarriers; by one thread, followed by a fence and a barrier of the block."""
        for name, arrivals in ARRIVALS.items():
            blocks = self._blocks if name in _OF_PRODUCTS else 1
            cute.arch.mbarrier_init(self.at(name), arrivals * blocks)

    def at(self, name: str) -> cute.Pointer:
        """Return a barrier."""
        return cute.recast_ptr(self._base + self._storage.barrier(name), dtype=Int64)

    def wait(self, name: str, phase: Any) -> None:
        """Wait for a phase of a barrier."""
        cute.arch.mbarrier_wait(self.at(name), phase)

    @cute.jit
    def arrive(self, name: str) -> None:
        """Arrive for a warp, behind all that its lanes have done."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            if cutlass.const_expr(self._blocks > 1 and name in _OF_PRODUCTS):
                cute.arch.mbarrier_arrive(self.at(name), 0)
            else:
                cute.arch.mbarrier_arrive(self.at(name))
