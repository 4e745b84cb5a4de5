"""Turns: warps or warpgroups do something that only one should do at a time, in a fixed circle.

Hopper's warpgroups issue their matrix products in turns: while one warpgroup's run, the others
exponentiate, FlashAttention-3's ping-pong (arXiv 2407.08608, section 3.1).  Blackwell's warps of
softmax may exponentiate in turns, where two share the exponential unit.  Each party has a named
barrier, on which it waits for its turn and on which its predecessor in the circle arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, cute

from flexfa4.primitives.wgmma import THREADS


@dataclass(frozen=True)
class Turns:
    """A circle of warps or warpgroups.

    Attributes:
        first_barrier: number of the first of as many named barriers as there are parties.
        parties: how many they are; one alone takes no turns.
        threads: of a party.
    """

    first_barrier: Any
    parties: int
    threads: int = THREADS

    def begin(self) -> None:
        """Give the first turn to party 0; by the last one, once."""
        if self.parties > 1:
            self._arrive(Int32(0))

    def take(self, party: Int32) -> None:
        """Wait until it is this party's turn."""
        if self.parties == 1:
            return
        cute.arch.barrier(barrier_id=self.first_barrier + party, number_of_threads=2 * self.threads)

    def pass_on(self, party: Int32) -> None:
        """End this party's turn."""
        if self.parties == 1:
            return
        last = Int32(party == self.parties - 1)
        self._arrive((party + 1) * (1 - last))

    def _arrive(self, party: Int32) -> None:
        cute.arch.barrier_arrive(
            barrier_id=self.first_barrier + party, number_of_threads=2 * self.threads
        )
