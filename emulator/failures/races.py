"""The chapter of races: accesses that nothing orders.

What this module deliberately does not do: tell which rules order accesses; docs/emulator.md does.
"""

from __future__ import annotations

from flexfa4.emulator.errors import EmulationError


class RaceError(EmulationError):
    """Two accesses to the same bytes, at least one a write, with no order between them."""

    found = (
        "race in {place}: {second} {second_access} what was {first_access} by {first} in line "
        "{first_line}, and nothing orders the two"
    )
    allowed = "conflicting accesses only with a chain of barriers, waits or fences between them"
    instead = "wait for the barrier or group that completes the first access before the second"


class MissingProxyFenceError(RaceError):
    """Bytes written by ordinary stores, used by an asynchronous operation without a fence."""

    found = (
        "{second} {second_access} {place}, which was {first_access} by {first} in line "
        "{first_line} through the generic proxy, without a proxy fence between the two"
    )
    allowed = "asynchronous operations on bytes that a proxy fence has made visible to them"
    instead = "execute `fence.proxy.async` after the stores, before the barrier that orders them"


class BlockStartError(RaceError):
    """Shared memory of another block, which need not have begun."""

    found = "{second} {second_access} shared memory of {block}, which need not have begun"
    allowed = "shared memory of blocks from which a chain of barriers or waits leads here"
    instead = "meet at `barrier.cluster.arrive` and `barrier.cluster.wait` first"


class BlockEndError(RaceError):
    """Shared memory that is accessed while its block may have ended."""

    found = (
        "{first} {first_access} shared memory of {block}, whose threads can exit before that,"
        " since nothing orders the two"
    )
    allowed = "blocks that end after everything that others, and copies, do with their memory"
    instead = "wait for the mbarrier, or meet at the cluster's barrier, before the block ends"
