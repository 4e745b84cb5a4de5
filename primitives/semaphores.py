"""Turns between blocks: a counter in global memory tells whose turn it is.

What several blocks add to has a counter, which is 0 before the launch; block number n in the order
of turns waits until the counter is n, adds, and sets it to n + 1.  So floating-point sums are made
in the same order on every run.  Each warp that adds has turns of its own: the same warp of each
block adds to a number.

A block must not wait for one that cannot run: turns are in the order in which work is taken up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, Int64, cute
from cutlass._mlir.dialects import llvm


@dataclass(frozen=True)
class Turn:
    """The turn of a warp at what others add to, too.

    Attributes:
        counter: Int32 in global memory.
        number: of the turn.
    """

    counter: cute.Pointer
    number: Int32

    def look(self) -> Int32:
        """Return whose turn it is; ahead of `wait`, where something else is waited for, too."""
        return Int32(self._seen())

    @cute.jit
    def wait(self, seen: Int32) -> None:
        """Wait until it is the warp's turn; all of its lanes, or the one that adds for it.

        Args:
            seen: what a look has shown.
        """
        while seen != self.number:
            seen = self._seen()

    def used(self) -> UsedTurn:
        """Return the turn, in which all has been added, to be ended later."""
        return UsedTurn(self.counter.toint(), self.number + 1)

    def end(self) -> None:
        """Let the next one have its turn: it sees what this thread knows to be done.

        By the one thread that has added.
        """
        cute.arch.inline_ptx(
            "st.release.gpu.global.s32 [{$r0}], {$r1};",
            read_only_args=[self.counter.toint(), self.number + 1],
        )

    def _seen(self) -> Any:
        return cute.arch.inline_ptx(
            "ld.acquire.gpu.global.s32 {$w0}, [{$r0}];",
            write_only_types=[Int32],
            read_only_args=[self.counter.toint()],
        )


class UsedTurn:
    """A turn that is still to be ended, or none; a value that loops may carry.

    To end it takes until all that was added has arrived.  So it is best done later, when that is
    so anyway.

    Attributes:
        address: of the counter; 0 for none.
        following: number of the next turn.
    """

    def __init__(self, address: Int64, following: Int32) -> None:
        self.address = address
        self.following = following

    @staticmethod
    def none() -> UsedTurn:
        """Return no turn."""
        return UsedTurn(Int64(0), Int32(0))

    def end(self) -> None:
        """Let the next one have its turn: it sees what the lanes of this warp have added.

        Without a branch, which would part products on either side of it.
        """
        cute.arch.sync_warp()
        own = cutlass.select_(cute.arch.lane_idx() == 0, self.address, Int64(0))
        llvm.inline_asm(
            None,
            [Int64(own).ir_value(), self.following.ir_value()],
            "{ .reg .pred p; setp.ne.s64 p, $0, 0; @p st.release.gpu.global.s32 [$0], $1; }",
            "l,r",
            has_side_effects=True,
        )

    def __extract_mlir_values__(self) -> list[Any]:
        return [self.address.ir_value(), self.following.ir_value()]

    def __new_from_mlir_values__(self, values: list[Any]) -> UsedTurn:
        return UsedTurn(Int64(values[0]), Int32(values[1]))
