"""Turns at tiles that several lines visit: ranks, and the order of lines in which these wait least.

Where lines add to a tile one after the other, so that sums have the same bits on every run, a line
waits until those before it have been there.  Lines have their turns in the order in which they are
worked on, first or last line first, and so none waits for one that has not begun.  Which of the two
is better depends on the mask: under a causal one the short lines come first (SPT: shortest
processing time), since a line begins at the diagonal, where those before it end.
`primitives.turn_order` simulates both.
"""

from __future__ import annotations

import itertools
from typing import Final

import torch

from flexfa4.kernels.blocks.lists import TileLists
from flexfa4.primitives.turn_order import ordered_makespan

WORKERS: Final = 16
"""Lines of a head that are worked on at once: about as many as there are, with all its heads."""
_SIMULATED: Final = 1 << 17  # visits; of more, only so many


def best_ranks(lists: TileLists, lines: int) -> tuple[torch.Tensor, bool]:
    """Return the rank of each visit, and whether the last line is the first in the order of work.

    Args:
        lists: the visits.
        lines: of a class.

    Returns:
        int32, beside ``lists.tiles``.
    """
    visits = visits_of_lines(lists, lines)
    lengths = [0.0, 0.0]
    for descending in (False, True):
        left = _SIMULATED
        for of_class in visits:
            ordered = of_class[::-1] if descending else of_class
            lengths[descending] += ordered_makespan(ordered, WORKERS)
            left -= sum(map(len, of_class))
            if left < 0:
                break
    descending = lengths[True] < lengths[False]
    return ranks_of(lists, lines, descending), descending


def visits_of_lines(lists: TileLists, lines: int) -> list[list[list[int]]]:
    """Return the tiles that each line of each class visits, in order."""
    begins, tiles = lists.begins[::2].tolist(), lists.tiles.tolist()
    each = [tiles[a:b] for a, b in itertools.pairwise(begins)]
    return [each[i : i + lines] for i in range(0, len(each), lines)] if lines else []


def ranks_of(lists: TileLists, lines: int, descending: bool) -> torch.Tensor:
    """Return how many lines of its class visit a tile before, int32, for each visit; then a 0."""
    counts = lists.counts.flatten()
    line = torch.repeat_interleave(counts)
    tiles = lists.tiles[:-1].to(torch.int64)
    if not len(tiles):
        return lists.tiles.new_zeros(1)
    own = line % lines
    place = lines - 1 - own if descending else own
    tile = line // lines * (tiles.max() + 1) + tiles  # of a class
    order = (tile * lines + place).argsort()
    first = torch.ones_like(tile, dtype=torch.bool)
    first[1:] = tile[order][1:] != tile[order][:-1]
    at = torch.arange(len(tile), device=tile.device)
    begin = torch.where(first, at, 0).cummax(0).values
    ranks = torch.empty_like(tile)
    ranks[order] = at - begin
    return torch.nn.functional.pad(ranks, (0, 1)).to(torch.int32)
