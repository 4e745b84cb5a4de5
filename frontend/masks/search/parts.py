"""Tiles decided by their parts: for masks that have many tiles of one value beside their boundary.

A tile that boxes leave open is often empty or full after all: a circle passes by its corner, or two
documents end in it.  To know that, every lane would be evaluated.  Instead the quad-tree goes on
below tiles, until parts are proved or small, and only the lanes of the latter are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import Graph
from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL, BlockGrid
from flexfa4.frontend.masks.limits import Budget
from flexfa4.frontend.masks.search.boxes import Boxes
from flexfa4.frontend.masks.search.quadtree import Forest, Level, Places
from flexfa4.frontend.masks.search.tiles import (
    Tiles,
    decide,
    follows_diagonal,
    kinds_of_seen,
    probe,
)

# Parts are halved down to this many lanes along an axis.
_LEAST: Final = 16
# Parts that are judged together, at most.
_SLICE: Final = 1 << 16
# So few lanes are evaluated as soon as they are divided.
_FEW_LANES: Final = 1 << 20


def decide_by_parts(
    graph: Graph,
    values: Values,
    judge: Callable[[Boxes], torch.Tensor],
    tiles: Tiles,
    grid: BlockGrid,
    budget: Budget | None = None,
) -> torch.Tensor:
    """Return the kinds of tiles, as `tiles.decide` does.

    Args:
        graph: the mask.
        values: its captures and symbols.
        judge: `boxes.verdicts` of this mask.
        tiles: within `grid`.
        grid: the blocks over the mask's index space.
        budget: how many lanes may be evaluated; None for any number.

    Returns:
        int8 ``(n,)`` of EMPTY, PARTIAL or FULL, on the device of `values`.
    """
    depth = _depth(grid)
    block_q, block_kv = grid.block_size
    if (
        depth == 0
        or len(tiles) * block_q * block_kv <= _FEW_LANES
        or not {"q", "kv"} <= graph.root.depends
        or follows_diagonal(graph.root, values, grid.size)  # equal tiles are decided once
    ):
        return decide(graph, values, tiles, grid, budget)
    seen = probe(graph, values, tiles, grid)
    undecided = (~seen.all(0)).nonzero().squeeze(1)
    finer = BlockGrid(grid.size, (block_q >> depth, block_kv >> depth))
    step = max(1, _SLICE >> 2 * depth)
    for start in range(0, len(undecided), step):
        some = undecided[start : start + step]
        forest = Forest(finer, tiles.b[some], tiles.h[some])
        owner = torch.arange(len(some), device=some.device)
        whole = Places(owner, tiles.row[some] << depth, tiles.column[some] << depth)
        here = seen[:, some]
        left = _search(judge, forest, whole, depth, here)
        settled = here.all(0)
        if len(left) * 2 > (len(some) - int(settled.sum())) << 2 * depth:  # little is proved
            rest = (~settled).nonzero().squeeze(1)
            kinds = decide(graph, values, tiles[some[rest]], grid, budget)
            _note(here, whole[rest], kinds)
        else:
            kinds = decide(graph, values, forest.tiles(left), finer, budget)
            _note(here, left, kinds)
        seen[:, some] = here
    return kinds_of_seen(seen)


def _depth(grid: BlockGrid) -> int:
    """Return how often tiles can be halved along both axes."""
    depth, sizes = 0, grid.block_size
    while all(size >> depth >= 2 * _LEAST and (size >> depth) % 2 == 0 for size in sizes):
        depth += 1
    return depth


def _search(
    judge: Callable[[Boxes], torch.Tensor],
    forest: Forest,
    places: Places,
    depth: int,
    seen: torch.Tensor,
) -> Places:
    """Halve boxes and note what is proved of them; return the smallest ones that are open.

    Args:
        judge: `boxes.verdicts` of the mask.
        forest: over the grid of the smallest parts, with tiles as owners.
        places: the tiles.
        depth: how often to halve them.
        seen: bool ``(2, owners)``, see `tiles.probe`; boxes of tiles that have both are dropped.
    """
    for k in reversed(range(depth)):
        level, finer = Level(2 << k, 2 << k), Level(1 << k, 1 << k)
        places = forest.parts(places, level, finer)
        kinds = judge(forest.boxes(places, finer))
        proved = (kinds != PARTIAL).nonzero().squeeze(1)
        _note(seen, places[proved], kinds[proved])
        unsettled = ~seen.all(0)
        places = places[((kinds == PARTIAL) & unsettled[places.owner]).nonzero().squeeze(1)]
    return places


def _note(seen: torch.Tensor, places: Places, kinds: torch.Tensor) -> None:
    """Note which values the owners of boxes have, given the kinds of these."""
    for row, without in enumerate((FULL, EMPTY)):
        seen[row].index_fill_(0, places.owner[(kinds != without).nonzero().squeeze(1)], True)
