"""Turns at tiles that several lines visit: ranks, and the orders in which lines wait least.

Where lines add to a tile one after the other, so that sums have the same bits on every run, a line
waits until those before it have been there.  Lines have their turns in the order in which they are
worked on, first or last line first, and so none waits for one that has not begun.  How long they
wait depends on the mask, and on the order of a line's own visits.  Under a causal mask the short
lines come first (SPT: shortest processing time), each from the diagonal on: a line is then always
where those before it have been.  In a window the tiles that need the mask lie at both ends of a
line, and to visit them first would be to wait for all lines between: there all visits are made as
if they needed it, from one end to the other.  `primitives.turn_order` simulates all ways.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Final

import torch

from flexfa4.kernels.blocks.lists import TileLists
from flexfa4.primitives.makespan import makespan
from flexfa4.primitives.turn_order import ordered_makespan

WORKERS: Final = 16
"""Lines of a head that are worked on at once: about as many as there are, with all its heads."""
LATENCY: Final = 0.5
"""Time from the end of a turn until the next one may begin, in visits of a tile."""
_SIMULATED: Final = 1 << 15  # visits; of more, only so many
MASKED: Final = 1.15
"""What a visit costs with the limits of each key applied, as a multiple of one without."""
_EVALUATED: Final = 1.6
"""Likewise, with the mask evaluated for each score."""


@dataclass(frozen=True, eq=False)
class Turns:
    """Visits, and when it is a line's turn.

    Attributes:
        lists: the visits, in the order in which lines make them.
        ranks: of each visit, int32, beside ``lists.tiles``.
        descending: the last line is the first in the order of work.
    """

    lists: TileLists
    ranks: torch.Tensor
    descending: bool


def best_turns(lists: TileLists, lines: int, evaluated: bool = False) -> Turns:
    """Return the visits and ranks of the orders in which lines wait the least.

    Args:
        lists: the visits.
        lines: of a class.
        evaluated: a visit that needs the mask has it evaluated for each score.
    """
    full = int((lists.begins[2::2] - lists.begins[1::2]).sum()) / max(1, len(lists.tiles) - 1)
    more = full * ((_EVALUATED if evaluated else MASKED) - 1)
    best, least = (lists, False), float("inf")
    for one_kind, ascending in itertools.product((False, True), repeat=2):
        made = in_order(lists, ascending=ascending, one_kind=one_kind)
        for descending in (False, True):
            time = _with_waiting(made, lines, descending) * (1 + more * one_kind)
            if time < least:
                best, least = (made, descending), time
    made, descending = best
    return Turns(made, ranks_of(made, lines, descending), descending)


def _with_waiting(lists: TileLists, lines: int, descending: bool) -> float:
    """Return how long lines take, as a multiple of what they would without turns.

    What an order leaves to few workers at the end is not counted: other heads fill that.
    """
    total, alone, left = 0.0, 0.0, _SIMULATED
    for of_class in visits_of_lines(lists, lines):
        ordered = of_class[::-1] if descending else of_class
        total += ordered_makespan(ordered, WORKERS, LATENCY)
        alone += makespan(map(len, ordered), WORKERS)
        left -= sum(map(len, of_class))
        if left < 0:
            break
    return total / alone if alone else 1.0


def in_order(lists: TileLists, *, ascending: bool, one_kind: bool) -> TileLists:
    """Return lists whose visits are made in an order.

    Args:
        lists: visits, those of either kind in any order.
        ascending: the first tile comes first, in a line or of a kind.
        one_kind: all visits are made as if they needed the mask.
    """
    begins, count = lists.begins, len(lists.tiles) - 1
    if one_kind:
        begins = begins.clone()
        begins[1::2] = begins[2::2]
    part = torch.repeat_interleave(begins.diff().to(torch.int64))
    tiles = lists.tiles[:count].to(torch.int64)
    span = int(tiles.max()) + 1 if count else 1
    place = tiles if ascending else span - 1 - tiles
    order = (part * span + place).argsort()
    return replace(lists, begins=begins, tiles=torch.cat([lists.tiles[order], lists.tiles[count:]]))


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
