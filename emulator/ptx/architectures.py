"""The architectures whose PTX is read, and the versions of PTX.

What this module deliberately does not do: tell what an architecture's memories hold.
"""

from __future__ import annotations

HOPPER = frozenset({"sm_90a"})
BLACKWELL = frozenset({"sm_100a", "sm_103a"})
ALL = HOPPER | BLACKWELL
"""The architectures that are emulated."""

OLDEST, NEWEST = (8, 0), (10, 0)
"""The versions of the PTX ISA that are read: from the first up to, and without, the second."""
