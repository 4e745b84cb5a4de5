"""The table of work items that a call of packed sequences is worked on by: its layout and its size.

An *entry* is a tile of queries of a sequence; each head has all entries once.  The table is made on
the device from the cumulative lengths (`kernel`) and read there by the kernel of attention, so the
host never sees what is in it: of its size it knows a bound.  In int32::

    header     HEADER      how many items there are, and the divisor of a section of heads
    entries    ENTRY each  tile, sequence, where its queries begin and their number, likewise keys
    scratch                of the kernel that makes it: what `Sizes.scratch` says

Entries are in groups of sequences whose keys and values of a head fit the L2 cache together, longer
sequences first; in a group, those with the most tiles of keys come first (LPT).  Plain Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEADER: Final = 8
ITEMS, SECTION = 0, 1
"""Places in the header: of the number of items; of size, multiplier and shift of the divisor
(`flexfa4.primitives.fast_division`) by the items of a section."""

ENTRY: Final = 8
"""Numbers of an entry, of which the last two are 0: entries are loaded 16 bytes at a time."""

LEVELS_LOG2: Final = 12
"""Entries are sorted by as many levels of work, in all groups together."""

MOST_GROUPS: Final = 64


@dataclass(frozen=True)
class Sizes:
    """What the host knows of a table.

    Attributes:
        sequences: how many there are.
        q_total, kv_total: queries and keys of all of them.
        queries: of a tile.
    """

    sequences: int
    q_total: int
    kv_total: int
    queries: int

    @property
    def least(self) -> int:
        """Entries that there are at least: those of a single sequence."""
        return -(-self.q_total // self.queries)

    @property
    def most(self) -> int:
        """Entries that there are at most: each sequence may have one that is not full."""
        return self.q_total // self.queries + min(self.sequences, self.q_total)

    @property
    def scratch(self) -> int:
        """Numbers behind the entries: the first entry of each sequence, one more, and groups."""
        return 2 * self.sequences + 1

    @property
    def numbers(self) -> int:
        """Numbers of the table in all."""
        return HEADER + ENTRY * self.most + self.scratch


def groups_of(kv_total: int, together: int) -> int:
    """Return how many groups sequences are divided into: a power of two.

    Args:
        kv_total: keys of all sequences.
        together: keys of one head that fit the cache, with their values.
    """
    wanted = -(-kv_total // max(1, together))
    return min(1 << (wanted - 1).bit_length(), MOST_GROUPS) if wanted > 1 else 1
