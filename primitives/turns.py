"""Turns: warpgroups issue their matrix products one after the other, in a fixed circle.

While one warpgroup's products run, the others exponentiate: FlashAttention-3's ping-pong (arXiv
2407.08608, section 3.1), for any number of warpgroups.  Each has a named barrier, on which it waits
for its turn and on which its predecessor in the circle arrives.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutlass import Int32, cute

from flexfa4.primitives.wgmma import THREADS


@dataclass(frozen=True)
class Turns:
    """A circle of warpgroups.

    Attributes:
        first_barrier: number of the first of as many named barriers as there are parties.
        parties: warpgroups; one alone takes no turns.
    """

    first_barrier: int
    parties: int

    def begin(self) -> None:
        """Give the first turn to warpgroup 0; by the last one, once."""
        if self.parties > 1:
            self._arrive(Int32(0))

    def take(self, warpgroup: Int32) -> None:
        """Wait until it is this warpgroup's turn."""
        if self.parties == 1:
            return
        cute.arch.barrier(barrier_id=self.first_barrier + warpgroup, number_of_threads=2 * THREADS)

    def pass_on(self, warpgroup: Int32) -> None:
        """End this warpgroup's turn."""
        if self.parties == 1:
            return
        last = Int32(warpgroup == self.parties - 1)
        self._arrive((warpgroup + 1) * (1 - last))

    def _arrive(self, warpgroup: Int32) -> None:
        cute.arch.barrier_arrive(
            barrier_id=self.first_barrier + warpgroup, number_of_threads=2 * THREADS
        )
