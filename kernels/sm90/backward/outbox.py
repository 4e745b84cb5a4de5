"""Parts of dQ on their way from a consumer warpgroup to their sums in global memory.

A consumer warpgroup leaves its part of a tile in shared memory, says whose it is, and goes on.  A
warp that does nothing else adds the part to its sums with one bulk copy (``cp.reduce.async.bulk``).
There is room for one part, which is on its way while the warpgroup computes the next.

What this module deliberately does not do: say which warps are the two sides
(`flexfa4.kernels.sm90.backward.kernel`), or where sums lie.

Here parts are added in any order: for turns see `flexfa4.kernels.sm90.backward.ordered`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cutlass import Int32, cute

from flexfa4.kernels.backward import dq
from flexfa4.kernels.backward.plan import DqOrder
from flexfa4.primitives import tma, wgmma
from flexfa4.primitives.pipeline import Position

NOBODY: Final = -1
"""Whose part it is that nobody wants."""

CLOSED: Final = -2
"""Instead of a part: none follows."""

_FULL, _EMPTY = 0, 1  # the mbarriers


@dataclass(frozen=True)
class Outbox:
    """The outbox of a consumer warpgroup.

    A `Position` in a ring of one stage tells which part is meant.

    Attributes:
        order: of a tile of dQ.
        barriers: two mbarriers in shared memory: a part is there, and it has gone.
        receivers: number of the tile that the part belongs to, and what the kind of outbox has to
            know beside; two Int32 in shared memory.
        part: fp32 in shared memory.
        warps: of the warpgroup.
    """

    order: DqOrder
    barriers: cute.Pointer
    receivers: cute.Pointer
    part: cute.Pointer
    warps: int

    def initialise(self) -> None:
        """Make the mbarriers; by one thread, followed by a fence and a barrier of the block."""
        cute.arch.mbarrier_init(self.barriers + _FULL, self.warps)
        cute.arch.mbarrier_init(self.barriers + _EMPTY, 1)

    def put(self, at: Position, thread: Int32, receivers: tuple[Int32, Int32], values: Any) -> None:
        """Leave a part, when the last one has gone.

        A fence of the async proxy follows, a barrier of each warp, and `send`.

        Args:
            at: which part it is.
            thread: in the warpgroup.
            receivers: number of the tile, or `NOBODY`; and of the next part's, or `NOBODY` where it
                is not known.  Where there are turns, this is the number of the part's turn.
            values: the accumulators, fp32, in registers.
        """
        self._address(at, thread, receivers)
        dq.write_vectors(self.part + cute.assume(thread * dq.VECTOR, divby=dq.VECTOR), values)

    @cute.jit
    def send(self, thread: Int32) -> None:
        """Tell that the part is there; all threads of the warpgroup."""
        if thread % wgmma.WARP == 0:
            cute.arch.mbarrier_arrive(self.barriers + _FULL)

    def close(self, at: Position, thread: Int32) -> None:
        """Tell that no part follows; all threads of the warpgroup, behind the last `send`."""
        self._address(at, thread, (Int32(CLOSED), Int32(NOBODY)))
        self.send(thread)  # the one thread that wrote is one of those that tell

    @cute.jit
    def forward(self, sums_of: Callable[[Int32], cute.Pointer]) -> None:
        """Add parts to their sums until the outbox is closed; one warp.

        Args:
            sums_of: returns where the sums of this part of a tile lie, by the tile's number.
        """
        receiver, _, at = self._next(Position.start(1))
        while receiver != CLOSED:
            if receiver != NOBODY:
                with cute.arch.elect_one():
                    tma.add_floats(self.part, sums_of(receiver), self.order.part)
                    cute.arch.cp_async_bulk_commit_group()
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                self._give_back()
            receiver, _, at = self._next(at)

    @cute.jit
    def _address(self, at: Position, thread: Int32, receivers: tuple[Int32, Int32]) -> None:
        cute.arch.mbarrier_wait(self.barriers + _EMPTY, at.parity ^ 1)
        if thread == 0:
            numbers = cute.make_tensor(self.receivers, cute.make_layout(2))
            numbers[0], numbers[1] = receivers

    def _next(self, at: Position) -> tuple[Int32, Int32, Position]:
        """Wait for a part; return its receiver, the number beside that, and the next place."""
        cute.arch.mbarrier_wait(self.barriers + _FULL, at.parity)
        numbers = cute.make_tensor(self.receivers, cute.make_layout(2))
        return Int32(numbers[0]), Int32(numbers[1]), at.next()

    def _give_back(self) -> None:
        """Tell that the part has gone; one lane."""
        cute.arch.mbarrier_arrive(self.barriers + _EMPTY)
