"""The sizes of one call of attention, and the symbols that mods read them by."""

from __future__ import annotations

from typing import Final, NamedTuple

# The greatest length of a call: no tensor has more elements along an axis, and arithmetic on
# positions is far from the end of 64-bit integers.
LONGEST: Final = 1 << 48


class Sizes(NamedTuple):
    """Sizes of a call.  A tuple, since every call makes one and looks plans up by it.

    Attributes:
        batch: batch size of the queries.
        heads: query heads.
        kv_heads: key heads; `heads` is a multiple of it.
        q_len: queries.
        kv_len: keys.
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int

    def symbols(self) -> dict[str, int]:
        """Return the value of each symbol of the IR."""
        return {
            "q_len": self.q_len,
            "kv_len": self.kv_len,
            "num_heads": self.heads,
            "num_kv_heads": self.kv_heads,
        }
