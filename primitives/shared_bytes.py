"""Bytes of shared memory that roles of a kernel hand things over by, for plans of storage.

Without CuTe-DSL, so that hosts plan with the same numbers that kernels (`pipeline`, `dispatch`) go
by.
"""

from __future__ import annotations

from typing import Final

BARRIER_BYTES: Final = 8
"""Of an mbarrier, and its alignment."""

NUMBER_STAGES: Final = 2
"""Numbers of work items that the producer may be ahead of the slowest consumer."""

_SLOT_BYTES: Final = 4


def ring_bytes(stages: int) -> int:
    """Return the bytes of the mbarriers of a ring: a full and an empty one for each stage."""
    return 2 * BARRIER_BYTES * stages


NUMBERS_BYTES: Final = -(-(ring_bytes(NUMBER_STAGES) + NUMBER_STAGES * _SLOT_BYTES) // 16) * 16
"""Of `dispatch.Numbers`: first the barriers, aligned to 8 bytes, then the slots; in all a multiple
of 16."""
