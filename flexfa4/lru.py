"""A bounded cache whose entries are added by hand: what was used longest ago is dropped first.

`functools.lru_cache` caches a function of its arguments alone; this is for values whose key is
computed, or that are kept only sometimes.  Threads may share one.  Makes no values itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class LruCache(Generic[V]):
    """At most `size` values by hashable keys.

    Args:
        size: number of entries that are kept.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._entries: OrderedDict[Any, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> list[V]:
        """Return all values, the one used longest ago first."""
        with self._lock:
            return list(self._entries.values())

    def get(self, key: Any) -> V | None:
        """Return the value of a key, which counts as its use; None where there is none."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: Any, value: V) -> None:
        """Keep a value, in place of that which the key has."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            if len(self._entries) > self.size:
                self._entries.popitem(last=False)
