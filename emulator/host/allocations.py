"""Which addresses of global memory a kernel may touch, and whose they are.

The emulator's global memory is the process's own: a pointer of a kernel is an address in a CPU
tensor.  Only what was registered here is a kernel's to touch, so that a wrong pointer becomes an
error instead of a crash of Python.  An allocation keeps its tensor alive until it is released,
since a kernel may hold the address for longer than its caller holds the tensor.

Reading and writing are left to the execution core.
"""

from __future__ import annotations

import bisect
import threading
from dataclasses import dataclass, field
from typing import Any

from flexfa4.emulator.host.errors import UnregisteredTensorError


@dataclass(frozen=True)
class Allocation:
    """A range of addresses: ``start`` up to, but without, ``stop``.

    Attributes:
        start: address of the first byte.
        stop: address past the last byte.
        name: what reports call it.
        owner: what holds the memory.
    """

    start: int
    stop: int
    name: str
    owner: Any = field(repr=False, compare=False)

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether all of these bytes lie inside."""
        return self.start <= address and address + nbytes <= self.stop


class Allocations:
    """All registered ranges; they may overlap, for views of one tensor may be registered.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sorted: list[Allocation] = []  # by start
        self._reach: list[int] = []  # the greatest stop up to here

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Any:
        return iter(tuple(self._sorted))

    def register(self, start: int, nbytes: int, name: str, owner: Any) -> Allocation:
        """Add a range; registering the same one again changes nothing.

        Returns:
            The allocation that stands for it.
        """
        new = Allocation(start, start + nbytes, name, owner)
        with self._lock:
            for known in self._sorted[self._first_at(start) :]:
                if known.start != start:
                    break
                if known.stop == new.stop:
                    return known
            bisect.insort(self._sorted, new, key=lambda allocation: allocation.start)
            self._measure()
        return new

    def release(self, start: int, nbytes: int) -> None:
        """Take a range away again.

        Raises:
            UnregisteredTensorError: when there is none with these ends.
        """
        with self._lock:
            kept = [a for a in self._sorted if (a.start, a.stop) != (start, start + nbytes)]
            if len(kept) == len(self._sorted):
                raise UnregisteredTensorError(start=f"{start:#x}", nbytes=nbytes)
            self._sorted = kept
            self._measure()

    def clear(self) -> None:
        """Take all ranges away."""
        with self._lock:
            self._sorted, self._reach = [], []

    def find(self, address: int, nbytes: int = 1) -> Allocation | None:
        """Return an allocation that holds all of these bytes, or None."""
        with self._lock:
            last = bisect.bisect_right(self._sorted, address, key=lambda a: a.start)
            for index in range(last - 1, -1, -1):
                if self._reach[index] < address + nbytes:
                    return None  # nor does any that starts earlier
                if self._sorted[index].holds(address, nbytes):
                    return self._sorted[index]
            return None

    def nearest(self, address: int) -> Allocation | None:
        """Return the allocation with the least distance to an address, for reports."""
        with self._lock:
            return min(
                self._sorted,
                key=lambda a: max(a.start - address, address - a.stop + 1, 0),
                default=None,
            )

    def _first_at(self, start: int) -> int:
        return bisect.bisect_left(self._sorted, start, key=lambda a: a.start)

    def _measure(self) -> None:
        self._reach = []
        for allocation in self._sorted:
            previous = self._reach[-1] if self._reach else 0
            self._reach.append(max(previous, allocation.stop))
