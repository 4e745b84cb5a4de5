"""Whether the ends of intervals are monotone, which tiles are visited, and how many.

Numbers of visits are those of the kernel, found without it: from the same extremes of the rows of
each tile.  Works on tensors, wherever a mask is evaluated, for all classes of batches and heads.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from flexfa4.frontend.masks.classes import Classes
from flexfa4.frontend.masks.grid import block_count, block_counts, blocks_of
from flexfa4.frontend.masks.solving.solved import Solved, ends_of_each
from flexfa4.primitives.tile_walk import Sampling, TileShape

# Rows whose ends are evaluated at once: temporaries take a few times 8 bytes for each.
_ROWS_AT_ONCE = 1 << 20


def monotone_in_tiles(solved: Solved, classes: Classes, per_line: int) -> bool:
    """Return whether each end, in every tile, never falls from a query to the next, or never rises.

    That is, all tiles have the same direction; it is found by a look at all queries.  Of intervals
    of queries: from a key to the next.

    Args:
        solved: a closed form of at most one interval.
        classes: the batches and heads that share one mask.
        per_line: queries of a tile, or keys.
    """
    rows, device = solved.lines, solved.values.device
    if not solved.form.spans or rows < 2:
        return True
    rises = falls = torch.zeros(2, dtype=torch.bool, device=device)
    inside = torch.arange(1, rows, device=device) % per_line != 0
    for _, ends in _ends(solved, classes, torch.arange(rows, device=device)):
        steps = ends.diff() * inside
        rises = rises | (steps > 0).flatten(1).any(1)
        falls = falls | (steps < 0).flatten(1).any(1)
    return not bool((rises & falls).any())


def visited_tiles(
    solved: Solved, classes: Classes, shape: TileShape, sampling: Sampling
) -> torch.Tensor:
    """Return which tiles each query tile visits, int64 ``(2, classes, query tiles)``.

    From the first one to, not including, the second; both are 0 where there are none.

    Args:
        solved: a closed form of at most one interval of keys; for one of queries, queries and keys
            change places here.
        classes: the batches and heads that share one mask.
        shape: of a tile.
        sampling: the rows that a kernel looks at.
    """
    rows, queries, device = solved.lines, shape.queries, solved.values.device
    tiles = block_count(rows, queries)
    found = torch.zeros(2, len(classes), tiles, dtype=torch.int64, device=device)
    if not solved.form.spans or not rows:
        return found
    step = max(1, queries - 1) if sampling == "edges" else 1
    each = torch.arange(0, queries, step, device=device)
    first = torch.arange(0, rows, queries, device=device).unsqueeze(1)
    positions = (first + each).clamp_(max=rows - 1).view(-1)
    for part, ends in _ends(solved, classes, positions):
        begin, end = ends.view(2, -1, tiles, len(each))
        if sampling == "all":
            seen = begin < end
            begin = begin.masked_fill(~seen, solved.length)
            end = end.masked_fill(~seen, 0)
        begin, end = begin.amin(-1), end.amax(-1)
        touched = torch.stack((blocks_of(begin, shape.keys), block_counts(end, shape.keys)))
        found[:, part] = touched.masked_fill_(end <= begin, 0)
    return found


def visits_of(visited: torch.Tensor) -> torch.Tensor:
    """Return how many tiles each line visits, int64 ``(classes, lines)``, from `visited_tiles`."""
    return visited.diff(dim=0)[0]


def visitors_of(visited: torch.Tensor, tiles: int) -> torch.Tensor:
    """Return how many lines visit each tile, int32 ``(classes, tiles)``.

    Args:
        visited: by each line: `visited_tiles`.
        tiles: that could be.
    """
    begin, end = visited
    steps = begin.new_zeros(len(begin), tiles + 1)
    steps.scatter_add_(1, begin, torch.ones_like(begin))
    steps.scatter_add_(1, end, torch.full_like(end, -1))
    found: torch.Tensor = steps.cumsum(1)[:, :tiles].to(torch.int32)
    return found


def _ends(
    solved: Solved, classes: Classes, positions: torch.Tensor
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield the ends of the interval of each position, int64 ``(2, classes, positions)``.

    As many classes at once as may be.
    """
    at_once = max(1, _ROWS_AT_ONCE // max(1, len(positions)))
    for start in range(0, len(classes), at_once):
        part = slice(start, start + at_once)
        members = classes.members[part]
        ends = ends_of_each(solved, members, positions)
        yield part, ends.view(2, len(members), len(positions))
