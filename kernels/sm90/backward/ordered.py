"""An outbox whose parts of dQ are added in turns, so that sums have the same bits on every run.

The warp that empties it waits for the turn of a part, while the warpgroup computes the next one.
The part has left shared memory before it has arrived at its sums: then the warpgroup gets its
outbox back, and the turn ends when all has arrived.  So a warpgroup waits only for the turn of the
part before the one that it wants to leave.

No two blocks wait for each other for ever.  Turns are in the order in which blocks take up tiles of
keys, and a part is left at the latest at the end of the tiles of queries of its head.  A part that
is in an outbox waits for parts of tiles of keys that were taken up before; one that is not yet
there waits for its block's parts of earlier tiles of queries, and for those of the other warpgroup,
whose dS it sums over, likewise.  So all waits go back in time.

What this module deliberately does not do: say whose turn it is when (`flexfa4.kernels.blocks`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cutlass import Int32, cute

from flexfa4.kernels.backward.parameters import Parameters
from flexfa4.kernels.sm90.backward.outbox import CLOSED, NOBODY, Outbox
from flexfa4.primitives import tma
from flexfa4.primitives.pipeline import Position
from flexfa4.primitives.semaphores import Turn


@dataclass(frozen=True)
class OrderedOutbox(Outbox):
    """See the module.

    The number beside a receiver is that of the part's turn.

    Attributes:
        parameters: of the launch.
        number: of the warpgroup, and so of its parts of tiles.
    """

    parameters: Parameters
    number: Int32 | int

    @cute.jit
    def forward(self, sums_of: Callable[[Int32], cute.Pointer]) -> None:
        """Add parts at their turns until the outbox is closed; one warp.

        Args:
            sums_of: see `Outbox.forward`.
        """
        if cute.arch.lane_idx() == 0:
            receiver, rank, at = self._next(Position.start(1))
            while receiver != CLOSED:
                if receiver == NOBODY:
                    self._give_back()
                else:
                    self._add(receiver, rank, sums_of)
                receiver, rank, at = self._next(at)

    @cute.jit
    def _add(self, receiver: Int32, rank: Int32, sums_of: Callable[[Int32], cute.Pointer]) -> None:
        """Add a part at its turn, and end that; one lane."""
        turn = Turn(self.parameters.turn_at(receiver, self.number), rank)
        turn.wait(turn.look())
        cute.arch.fence_proxy("async.global")
        tma.add_floats(self.part, sums_of(receiver), self.order.part)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        self._give_back()
        cute.arch.cp_async_bulk_wait_group(0, read=False)
        turn.end()
