"""How long a launch takes, from the work of each item and the order in which items are taken up.

A simulator of multiprocessors that take up the next item as soon as they are free.  It serves to
compare orders of work; it knows nothing of caches, and its unit is that of the work it is given.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable


def makespan(work: Iterable[float], workers: int, start: float = 0.0) -> float:
    """Return when the last item is done, if whoever is free takes the next one.

    That is how a GPU hands out the blocks of a launch, and what dynamic dispatch does.

    Args:
        work: of each item, in order.
        workers: items that are worked on at once.
        start: what each item costs beside its work.
    """
    assert workers >= 1
    free = [0.0] * workers
    for amount in work:
        heapq.heapreplace(free, free[0] + start + amount)
    return max(free)
