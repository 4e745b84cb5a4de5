"""Proof that a mask reads its captured tensors within their bounds, before anything is analysed.

A mask reads its tensors for every score, visible or not, so each load has to be in range over the
whole index space.  What shapes alone do not prove (`analysis.bounds`) is tried with the values of
the tensors that indices are made of, such as the greatest id in ``start[ids[q]]``, and decided
exactly where bounds are too loose.  After that no evaluation checks an index again.

Loads of scores are not this module's business: they are checked on visible lanes, as they run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NoReturn

import torch

from flexfa4.errors import MaskOutOfRangeError
from flexfa4.frontend.analysis.bounds import bound
from flexfa4.frontend.analysis.intervals import ANY_I32, Interval
from flexfa4.frontend.evaluate import Program, Value, Values, mask_tile
from flexfa4.frontend.ir import Graph, Node, const, make_graph, topological
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.masks.classes import classes_of
from flexfa4.frontend.masks.contents import Contents
from flexfa4.frontend.masks.grid import FULL, BlockGrid, MaskSize
from flexfa4.frontend.masks.runs import BlockRun
from flexfa4.frontend.ops import apply

# Blocks that the index space is decided in.
_BLOCK_SIZE: Final = (128, 128)
# An index that takes more values than this is not evaluated for a message; its bounds are told.
_TOLD_EXACTLY: Final = 1 << 22


def check_loads(graph: Graph, values: Values, size: MaskSize) -> Values:
    """Prove that every load of a mask is in range everywhere in the index space.

    Args:
        graph: the mask.
        values: its captures and symbols; `unproved` are the loads to look at.
        size: the index space.

    Returns:
        The values without unproved loads.

    Raises:
        MaskOutOfRangeError: a load is out of range; it names the tensor, its size and the indices
            that the mask needs.
    """
    settled = replace(values, unproved=frozenset())
    if not values.unproved or 0 in (size.b, size.h, size.q_len, size.kv_len):
        return settled
    checks = _Checks(settled, size)
    for node in topological(graph.root):  # a load before those that it is an index of
        if node in values.unproved:
            checks.check(node)
    return settled


class _Checks:
    """The checks of one mask's loads.

    Args:
        values: captures and symbols.
        size: the index space, which is not empty.
    """

    def __init__(self, values: Values, size: MaskSize) -> None:
        self._values = values
        self._size = size
        self._known = size.domain(values).leaf
        self._contents = Contents(values)

    def check(self, load: Node) -> None:
        """Raise if a load is out of range anywhere; loads in its indices have been checked."""
        shape = self._values.tensors[load.attr].shape
        doubtful = [
            d
            for d, (index, size) in enumerate(zip(load.args, shape, strict=True))
            if not bound(index, self._leaf).within(-size, size - 1)
        ]
        if doubtful:
            lane = self._failure(_in_range(load, shape, doubtful))
            if lane is not None:
                self._refuse(load, lane)

    # ---- bounds ----------------------------------------------------------------------------------

    def _leaf(self, node: Node) -> Interval | None:
        return self._contents.bounds(node.attr) if node.op == "load" else self._known(node)

    # ---- exact decision --------------------------------------------------------------------------

    def _failure(self, holds: Node) -> Lanes | None:
        """Return a lane where a condition is False, None where there is none."""
        from flexfa4.frontend.masks.search.refine import refine  # bounds nearly always decide

        graph = make_graph("mask", holds)
        grid = BlockGrid(_varying(self._size, holds), _BLOCK_SIZE)
        classes = classes_of(graph, self._values, grid.size)
        runs = refine(graph, self._values, classes, grid)
        if int(runs.lengths_of(FULL).sum()) == len(classes) * grid.rows * grid.columns:
            return None
        for class_, (b, h) in enumerate(classes.members):
            for row in range(grid.rows):
                column = _first_gap(runs.line(class_, row), grid.columns)
                if column is not None:
                    return self._lane_in(holds, _block(b, h, row, column, grid))
        raise AssertionError("a block that is not full is in no row")

    def _lane_in(self, holds: Node, lanes: Lanes) -> Lanes:
        """Return the first lane of a block where a condition is False."""
        found = mask_tile(Program((holds,)), self._values, lanes).expand(lanes.shape)
        place = (~found).flatten().to(torch.uint8).argmax()
        starts = (lanes.b[0], lanes.h[0], lanes.q[0], lanes.kv[0])
        at = torch.unravel_index(place, lanes.shape)
        first = [start + int(i) for start, i in zip(starts, at, strict=True)]
        return Lanes(*((i, i + 1) for i in first))

    # ---- the error -------------------------------------------------------------------------------

    def _refuse(self, load: Node, lane: Lanes) -> NoReturn:
        """Raise the error about a load that is out of range at a lane."""
        shape = self._values.tensors[load.attr].shape
        indices = Program(load.args).run(self._values, lane)
        d, size, first = next(
            (d, size, i)
            for d, (index, size) in enumerate(zip(indices, shape, strict=True))
            for i in _numbers(index)
            if not -size <= i < size
        )
        error = MaskOutOfRangeError(
            tensor=f"captured tensor `{load.attr.name}`",
            size=size,
            dim=d,
            index=first,
            needed=self._needed(load.args[d]),
            low=-size,
            high=size - 1,
            rewrite="make the tensor long enough, or clamp the index",
        )
        error.load = load
        raise error

    def _needed(self, index: Node) -> str:
        """Return in words which values an index takes over the index space."""
        size = _varying(self._size, index)
        if size.b * size.h * size.q_len * size.kv_len * (index.length or 1) <= _TOLD_EXACTLY:
            (value,) = Program((index,)).run(self._values, size.lanes())
            low, high = torch.as_tensor(value).aminmax()
            return f"indices {int(low)} to {int(high)}"
        limits = bound(index, self._leaf)
        if limits == ANY_I32:
            return "indices that 64 bits may not hold"
        return f"indices within {limits.lo} to {limits.hi}"


def _in_range(load: Node, shape: torch.Size, dimensions: list[int]) -> Node:
    """Return the condition that some indices of a load are in range."""
    holds = const(True)
    for d in dimensions:
        index, size = load.args[d], shape[d]
        inside = apply("and", apply("ge", index, const(-size)), apply("lt", index, const(size)))
        holds = apply("and", holds, inside if index.length is None else apply("all", inside))
    return holds


def _varying(size: MaskSize, node: Node) -> MaskSize:
    """Return the index space with one element along the axes that a node does not vary with."""
    return MaskSize(
        size.b if "b" in node.depends else 1,
        size.h if "h" in node.depends else 1,
        size.q_len if "q" in node.depends else 1,
        size.kv_len if "kv" in node.depends else 1,
    )


def _first_gap(runs: list[BlockRun], width: int) -> int | None:
    """Return the first block of a line that is not full."""
    here = 0
    for start, stop, kind in runs:
        if start > here or kind != FULL:
            break
        here = stop
    return here if here < width else None


def _block(b: int, h: int, row: int, column: int, grid: BlockGrid) -> Lanes:
    """Return the real lanes of a block."""
    q, kv = row * grid.block_size[0], column * grid.block_size[1]
    return Lanes(
        (b, b + 1),
        (h, h + 1),
        (q, min(q + grid.block_size[0], grid.size.q_len)),
        (kv, min(kv + grid.block_size[1], grid.size.kv_len)),
    )


def _numbers(index: Value) -> list[int]:
    """Return an index at one lane: a number, or each of a vector."""
    return [int(i) for i in torch.as_tensor(index).flatten().tolist()]
