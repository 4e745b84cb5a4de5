"""The blocks of any mask: boxes split until they are proved or single tiles, and these decided.

A quad-tree over the grid of blocks.  A box that is proved to be always visible is a rectangle of
full blocks, one that is never visible is dropped, and what may be either is split in four, down to
single blocks, which are evaluated (`tiles`).  So the work follows the boundary of the mask, and the
result is exact.

Boxes of one level are judged together.  Levels are worked on depth first in slices of bounded size:
memory follows the result and not the number of boxes, also where nothing can be proved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import torch

from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import Graph, make_graph
from flexfa4.frontend.masks.classes import Classes
from flexfa4.frontend.masks.grid import FULL, PARTIAL, BlockGrid
from flexfa4.frontend.masks.limits import Budget
from flexfa4.frontend.masks.runs import BlockRuns, Rectangles
from flexfa4.frontend.masks.search.boxes import Boxes, verdicts
from flexfa4.frontend.masks.search.labels import labelled
from flexfa4.frontend.masks.search.membership import tabulated
from flexfa4.frontend.masks.search.parts import decide_by_parts
from flexfa4.frontend.masks.search.quadtree import Forest, Level, Places, levels_over
from flexfa4.frontend.masks.search.tiles import decide_all, follows_diagonal
from flexfa4.frontend.masks.search.zones import Zones
from flexfa4.frontend.masks.unroll import unrolled

# The tree begins with so many boxes: judging them takes about as long as judging one.
_FIRST: Final = 1 << 10
# Boxes of one level that are worked on together, and tiles that are decided together.
_SLICE: Final = 1 << 16
# One level of so many is worked on: boxes are split in two along each axis.
_EVERY: Final = 1
# On other devices, time is the number of operations, whatever their size: more boxes, fewer rounds.
_FIRST_DEVICE: Final = 1 << 16
_SLICE_DEVICE: Final = 1 << 20
_EVERY_DEVICE: Final = 2
# A sample of blocks tells how much work all are: so many lanes, and at least so many blocks.
_SAMPLED_LANES: Final = 1 << 25
_LEAST_SAMPLE: Final = 1 << 8
_BLOCK: Final = Level(1, 1)
# So few lanes are evaluated sooner than boxes are judged.
_FEW_LANES: Final = 1 << 19


def refine(graph: Graph, values: Values, classes: Classes, grid: BlockGrid) -> BlockRuns:
    """Return the blocks of a mask.

    Args:
        graph: the mask.
        values: its captures and symbols; loads are in range.
        classes: batches and heads that share one mask.
        grid: the blocks over the mask's index space.

    Returns:
        The runs of each row of blocks, on the device of `values`.

    Raises:
        ArgumentError: next to nothing is proved of the mask, and it has too many blocks.
    """
    size = grid.size
    if 0 < size.b * size.h * size.q_len * size.kv_len <= _FEW_LANES:
        return BlockRuns.from_kinds(decide_all(graph, values, classes.members, grid))
    root, values = tabulated(graph.root, values, size)
    return _Search(make_graph("mask", root), values, classes, grid).runs()


class _Search:
    """The search of one mask's blocks, and the rectangles that it has found."""

    def __init__(self, graph: Graph, values: Values, classes: Classes, grid: BlockGrid) -> None:
        self._graph = graph
        self._values = values
        self._grid = grid
        self._forest = Forest(grid, *classes.members_on(values.device))
        on_cpu = values.device.type == "cpu"
        first, self._slice, every = (
            (_FIRST, _SLICE, _EVERY) if on_cpu else (_FIRST_DEVICE, _SLICE_DEVICE, _EVERY_DEVICE)
        )
        most = max(1, first // max(1, len(classes)))
        self._levels = levels_over(grid, graph.root.depends, most)[::every]
        self._found: list[Rectangles] = []
        self._budget = Budget()

    @functools.cached_property
    def _judge(self) -> Callable[[Boxes], torch.Tensor]:
        root, values = labelled(unrolled(self._graph.root), self._values)
        known = self._grid.size.domain(values).leaf
        zones = Zones(values, self._grid.block_size, known)
        return functools.partial(verdicts, root, known, zones)

    def runs(self) -> BlockRuns:
        """Find the rectangles and return their runs."""
        grid, classes = self._grid, len(self._forest.b)
        self._foresee()
        top = len(self._levels) - 1
        places = self._forest.all_places(self._levels[top])
        self._search(top, places)
        found = Rectangles.concatenated(self._found)
        return BlockRuns.from_rectangles(classes, grid.rows, grid.columns, found)

    def _foresee(self) -> None:
        """Refuse a mask of which next to nothing is proved, by the work that some blocks take.

        Raises:
            ArgumentError: all of them would take too much.
        """
        grid, owners = self._grid, len(self._forest.b)
        lanes = grid.block_size[0] * grid.block_size[1]
        blocks = owners * grid.rows * grid.columns
        count = _SAMPLED_LANES // lanes
        if (
            blocks * lanes <= self._budget.lanes
            or count < _LEAST_SAMPLE
            or not {"q", "kv"} <= self._graph.root.depends  # boxes stand for many blocks
            or follows_diagonal(self._graph.root, self._values, grid.size)  # tiles for many tiles
        ):
            return
        which = torch.Generator().manual_seed(0)
        owner, row, column = (
            torch.randint(n, (count,), generator=which).to(self._values.device)
            for n in (owners, grid.rows, grid.columns)
        )
        sample = Places(owner, row, column)
        kinds = self._judge(self._forest.boxes(sample, _BLOCK))
        tiles = self._forest.tiles(sample[(kinds == PARTIAL).nonzero().squeeze(1)])
        spent = Budget()
        decide_by_parts(self._graph, self._values, self._judge, tiles, grid, spent)
        self._budget.foresee(Budget().lanes - spent.lanes, blocks / count)

    def _search(self, top: int, places: Places) -> None:
        """Judge boxes of a level and all below."""
        stack, undecided = [(top, places)], places[:0]
        while stack:
            at, places = stack.pop()
            if len(places) > self._slice:
                stack.append((at, places[self._slice :]))
                places = places[: self._slice]
            level = self._levels[at]
            kinds = self._judge(self._forest.boxes(places, level))
            full = places[(kinds == FULL).nonzero().squeeze(1)]
            self._add(full, level, torch.full_like(full.row, FULL))
            maybe = places[(kinds == PARTIAL).nonzero().squeeze(1)]
            if at and len(maybe):
                finer = self._levels[at - 1]
                stack.append((at - 1, self._forest.parts(maybe, level, finer)))
            elif not at:
                undecided = Places.joined((undecided, maybe))
            if len(undecided) >= self._slice:
                self._decide(undecided)
                undecided = undecided[:0]
        self._decide(undecided)

    def _decide(self, places: Places) -> None:
        """Add boxes of the finest level, decided at the block that all of each is like."""
        tiles = self._forest.tiles(places)
        kinds = decide_by_parts(
            self._graph, self._values, self._judge, tiles, self._grid, self._budget
        )
        self._add(places, self._levels[0], kinds.to(torch.int64))

    def _add(self, places: Places, level: Level, kind: torch.Tensor) -> None:
        """Note what boxes were found to be."""
        self._budget.keep(len(places))
        rows = (self._grid.rows - places.row).clamp(max=level.rows)
        stop = (places.column + level.columns).clamp(max=self._grid.columns)
        self._found.append(Rectangles(places.owner, places.row, rows, places.column, stop, kind))
