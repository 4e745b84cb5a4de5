"""Who comes first, and who last, of those who add to the same sums in no order.

The first one need not add: what it stores is the sum so far, and nobody has to clear it before.
The last one need not add either: it has the whole sum in its hands when it has read what the others
made, and can go on with it at once.

A word of 64 bits in global memory counts how many will come, how many have come, and how many of
these are done.  Whoever comes waits for nobody but those who came before: all but the first until
something is stored, and the last until the others are done.  To be free of deadlock, one who has
come has to do its part whatever others do, and must not come anywhere else before that.

What this module deliberately does not do: move numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import cutlass
from cutlass import Int32, Int64, cute

FIRST: Final = 0
BETWEEN: Final = 1
LAST: Final = 2
ONLY: Final = 3
"""Roles of those who come; from `LAST` on the sum is theirs."""

_BITS: Final = 21  # of a count: more tiles of keys than a GPU has memory for
_MASK: Final = (1 << _BITS) - 1


@dataclass(frozen=True)
class Arrivals:
    """The word of some sums.

    Attributes:
        word: Int64 in global memory.
    """

    word: cute.Pointer

    def expect(self, visitors: Int32) -> None:
        """Say how many will come; before any of them does."""
        self.word.store(Int64(visitors) << (2 * _BITS))

    def come(self) -> Int64:
        """Come; one thread.

        Returns:
            What the word was before, for `wait`: it takes a while to be there.
        """
        return Int64(self._word("atom.relaxed.gpu.global.add.u64 {$w0}, [{$r0}], 1;"))

    @cute.jit
    def wait(self, before: Int64) -> Int32:
        """Wait for those that one has to wait for; the thread that has come.

        Args:
            before: what `come` has returned.

        Returns:
            The role.  What others have done is visible to the thread, if there was a fence between.
        """
        come = Int32(before) & _MASK
        last = come + 1 == Int32(before >> (2 * _BITS))
        some = come > 0
        awaited = cutlass.select_(last, come, Int32(some))
        done = _done(before)
        while done < awaited:
            done = _done(self._word("ld.acquire.gpu.global.u64 {$w0}, [{$r0}];"))
        return cutlass.select_(
            last,
            cutlass.select_(some, Int32(LAST), Int32(ONLY)),
            cutlass.select_(some, Int32(BETWEEN), Int32(FIRST)),
        )

    def leave(self) -> None:
        """Tell that one is done, to those who come or wait; one thread.

        They see what it had done before a fence.
        """
        cute.arch.inline_ptx(
            f"red.relaxed.gpu.global.add.u64 [{{$r0}}], {1 << _BITS};",
            read_only_args=[self.word.toint()],
        )

    def _word(self, instruction: str) -> Any:
        return cute.arch.inline_ptx(
            instruction, write_only_types=[Int64], read_only_args=[self.word.toint()]
        )


def _done(word: Any) -> Int32:
    return Int32(word >> _BITS) & _MASK
