"""The mbarriers of each half, as the roles of a block meet on them; `kernel` has the protocol."""

from __future__ import annotations

from typing import Any, Final

import cutlass
from cutlass import Int32, Int64, cute

from flexfa4.kernels.emit.evaluator import TraceTime
from flexfa4.kernels.sm100.forward.storage import Storage
from flexfa4.kernels.sm100.forward.tmem import HALVES

_WARPS: Final = 4  # of a warpgroup
ARRIVALS: Final = {
    "scores": 1,
    "probabilities": 2 * _WARPS,
    "rest": _WARPS,
    "factors": _WARPS,
    "out": 1,
    "inverse": _WARPS,
    "taken": _WARPS,
}
"""How many arrivals of a block complete a phase, by name."""

_OF_PRODUCTS: Final = frozenset({"probabilities", "rest"})


class Barriers(TraceTime):
    """The mbarriers of both halves.

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
            for half in range(HALVES):
                blocks = self._blocks if name in _OF_PRODUCTS else 1
                cute.arch.mbarrier_init(self.at(name, half), arrivals * blocks)

    def at(self, name: str, half: Any) -> cute.Pointer:
        """Return a barrier of a half, 0 or 1."""
        return cute.recast_ptr(self._base + self._storage.barrier(name), dtype=Int64) + half

    def wait(self, name: str, half: Any, phase: Any) -> None:
        """Wait for a phase of a half's barrier."""
        cute.arch.mbarrier_wait(self.at(name, half), phase)

    @cute.jit
    def arrive(self, name: str, half: Any) -> None:
        """Arrive for a warp, behind all that its lanes have done."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            if cutlass.const_expr(self._blocks > 1 and name in _OF_PRODUCTS):
                cute.arch.mbarrier_arrive(self.at(name, half), 0)
            else:
                cute.arch.mbarrier_arrive(self.at(name, half))


def bit(flags: Int32, half: int) -> Any:
    """Return whether the flag of a half is set."""
    return (flags >> half) & 1 != 0


def both(condition: Any, other: Any) -> Int32:
    """Return the flags of two halves."""
    return Int32(condition) | Int32(other) << 1
