"""How long work takes whose parts add to shared sums one after the other, in a given order.

A simulator of ordered accumulation: workers take up lines of visits in order, each visit takes a
unit of time, and at its end the line waits for its turn at the tile: until the lines before it that
visit the same tile have had theirs.  Lines may be some visits ahead of their turns.  As turns are
in the order in which lines are taken up, the times of a line follow from those of the lines before
it.  `makespan` is the like without turns.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence


def ordered_makespan(
    lines: Iterable[Sequence[int]],
    workers: int,
    latency: float = 0.25,
    start: float = 0.0,
    ahead: int = 0,
) -> float:
    """Return when the last visit is done.

    Args:
        lines: the tiles that each line visits, in order; lines in the order of work.
        workers: lines that are worked on at once.
        latency: time from the end of a turn until the next one may begin, in visits.
        start: what each line costs beside its visits.
        ahead: visits that a line may begin before it has had its turn at the one before them.
    """
    assert workers >= 1
    free = [0.0] * workers
    turn: dict[int, float] = {}  # when the next turn at a tile may begin
    for tiles in lines:
        done = now = free[0] + start
        turns = deque([now] * ahead)  # of the last visits
        for tile in tiles:
            turns.append(now)
            done = max(done, turns.popleft()) + 1
            now = max(done, now, turn.get(tile, 0.0))
            turn[tile] = now + latency
        heapq.heapreplace(free, now)
    return max(free)
