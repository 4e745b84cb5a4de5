"""The choice of how a kernel finds the tiles that it visits, and what that needs on the device.

A mask that is one interval of keys for each query is walked without lists, its ends evaluated in
the kernel; any other by lists for the kernel's own tile.  In both cases the interval, where there
is one, also tells the kernel which keys of a partial tile a query sees.

`walk_for` is the entry.  A `WalkPlan` is part of a kernel's plan: all that code depends on.  A
`Walk` adds what depends on the values of a call, and is kept with the mask: it is made once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch

from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.masks.runs import order
from flexfa4.frontend.masks.solving.solved import Solved
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.kernels.blocks.counts import direction_of, monotone_in_tiles, visits_of
from flexfa4.kernels.blocks.intervals import Interval, bound_interval, interval_of
from flexfa4.kernels.blocks.lists import TileLists, listed
from flexfa4.kernels.blocks.steps import neighbours_meet, steps_of
from flexfa4.kernels.compile.signature import Int32, Parameter, Pointer
from flexfa4.primitives.arithmetic import Arithmetic
from flexfa4.primitives.scheduler import NUMBERS, Order, OrderTable, Sections
from flexfa4.primitives.tile_walk import (
    ClassTable,
    Closed,
    Dense,
    Listed,
    RowLimits,
    Sampling,
    TileShape,
    TileSource,
)

ORDER_PARAMETERS: Final = tuple(Int32(name) for name in NUMBERS)
"""The parameters that say in which order items are worked on: `Sections.numbers` of a call."""

# Visits for each tile that is not empty, from which on lists are better.
_MOST_VISITS: Final = 1.05
_SAMPLED: Final = {"edges": "the first and the last query", "all": "all queries"}


@dataclass(frozen=True)
class WalkPlan:
    """How a kernel finds the tiles that it visits.

    Attributes:
        source: the class of `primitives.tile_walk` that gives them.
        shape: of a tile.
        interval: the keys of each query, where they are one interval.
        sampling: see `Closed`.
        classes: a table of classes is read.
        order_table: the order of work is read from a table.
    """

    source: Literal["dense", "closed", "listed"]
    shape: TileShape
    interval: Interval | None = None
    sampling: Sampling = "edges"
    classes: bool = False
    order_table: bool = False

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What the kernel is given for it, beside what `interval` captures; pointers to int32."""
        found: list[Parameter] = []
        if self.source == "listed":
            found += [Pointer("line_begins"), Pointer("line_tiles")]
        if self.classes:
            strides = (Int32("class_batch_stride"), Int32("class_head_stride"))
            found += [Pointer("classes"), *strides]
        if self.order_table:
            found += [Pointer("tile_order")]
        return tuple(found)

    def source_of(
        self,
        values: Sequence[Any],
        limits: RowLimits,
    ) -> TileSource:
        """Return what gives the visits.

        Args:
            values: those of `parameters`.
            limits: lengths of the sequence, and the ends of `interval`, if there is one.
        """
        arithmetic, lengths = limits.arithmetic, limits.lengths
        if self.source == "dense":
            return Dense(arithmetic, self.shape, lengths)
        if self.source == "closed":
            assert limits.ends is not None
            return Closed(self.shape, limits, self.sampling)
        given = self._named(values)
        lines = arithmetic.quotient(lengths.queries + (self.shape.queries - 1), self.shape.queries)
        table = self._class_table(given)
        return Listed(arithmetic, given["line_begins"], given["line_tiles"], lines, table)

    def order_of(self, values: Sequence[Any], sections: Sections, arithmetic: Arithmetic) -> Order:
        """Return the order of work.

        Args:
            values: those of `parameters`.
            sections: of the call.
            arithmetic: what computes.
        """
        if not self.order_table:
            return Order(arithmetic, sections)
        given = self._named(values)
        table = OrderTable(given["tile_order"], sections.tiles, self._class_table(given))
        return Order(arithmetic, sections, table)

    @property
    def in_words(self) -> str:
        """How tiles are found, and in which order they are worked on, in one line."""
        found = {
            "dense": "every tile of keys",
            "closed": f"computed from the closed form at {_SAMPLED[self.sampling]} of a tile",
            "listed": "listed for the kernel's tile",
        }[self.source]
        ordered = "from a table, most tiles first" if self.order_table else "by position"
        return f"tiles of keys: {found}; order of query tiles: {ordered}"

    @property
    def has_limits(self) -> bool:
        """Whether the keys that a query sees are one interval: the mask is that and no more."""
        return self.source == "dense" or self.interval is not None

    def _named(self, values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip((p.name for p in self.parameters), values, strict=True))

    def _class_table(self, given: dict[str, Any]) -> ClassTable:
        if not self.classes:
            return ClassTable(None)
        return ClassTable(given["classes"], given["class_batch_stride"], given["class_head_stride"])


@dataclass(frozen=True, eq=False)
class Walk:
    """How a kernel finds the tiles that it visits in a call.

    Attributes:
        plan: what its code depends on.
        values: those of ``plan.parameters``: int32 tensors, for pointers, and ints.
        descending: the last tile of queries is the first in the order of work.
        interval: ``plan.interval`` with what it captures.
        visits: int64 ``(classes, query tiles)``; None where every tile visits all.
    """

    plan: WalkPlan
    values: tuple[torch.Tensor | int, ...] = ()
    descending: bool = False
    interval: BoundGraph | None = None
    visits: torch.Tensor | None = None

    @functools.cached_property
    def arguments(self) -> tuple[int, ...]:
        """The values as a launch packs them: addresses, and numbers."""
        return tuple([v.data_ptr() if isinstance(v, torch.Tensor) else v for v in self.values])


def heads_alike(blocks: MaskBlocks | None, group: int) -> bool:
    """Return whether query heads that share a key head have the same mask, and may be packed."""
    if blocks is None or group == 1 or blocks.size.h == 1:
        return True
    of = blocks.classes.of
    groups = of.view(of.shape[0], -1, group)
    return bool((groups == groups[..., :1]).all())


class _Walks(dict[Any, Walk]):
    """The walks of one mask."""


def walk_for(
    blocks: MaskBlocks | None, shape: TileShape, device: torch.device, *, whole_warp: bool = True
) -> Walk:
    """Return how a kernel finds the tiles that it visits; kept with the mask.

    Args:
        blocks: the mask, for as many query heads as the call has, or one; None for none.
        shape: of a tile; heads that are packed are alike (`heads_alike`).
        device: of the call.
        whole_warp: sources that need all lanes of a warp may be chosen.
    """
    if blocks is None:
        return Walk(WalkPlan("dense", shape))
    walks = blocks.cache(_Walks)
    key = (shape, device, whole_warp)
    if key not in walks:
        walks[key] = _Chooser(blocks, shape, device).walk(whole_warp)
    return walks[key]


@dataclass(frozen=True, eq=False)
class _Chooser:
    """A mask, a tile and a device."""

    blocks: MaskBlocks
    shape: TileShape
    device: torch.device

    def walk(self, whole_warp: bool) -> Walk:
        """Return the walk."""
        solved = self.blocks.by_rows
        interval = interval_of(solved) if isinstance(solved, Solved) else None
        if not isinstance(solved, Solved) or interval is None:
            return self._listed(None, None)
        bound = bound_interval(interval, solved, self.device)
        sampling = self._sampling(interval, solved)
        if sampling == "edges" or whole_warp:
            visits = visits_of(solved, self.blocks.classes, self.shape, sampling)
            if neighbours_meet(interval.begin, interval.end) or not self._wasteful(visits):
                plan = WalkPlan("closed", self.shape, interval, sampling)
                return self._finished(plan, (), bound, visits)
        return self._listed(interval, bound)

    def _sampling(self, interval: Interval, solved: Solved) -> Sampling:
        """Return which rows tell what a tile sees."""
        if all(steps_of(end).monotone for end in (interval.begin, interval.end)):
            return "edges"
        alike = monotone_in_tiles(solved, self.blocks.classes, self.shape.queries)
        return "edges" if alike else "all"

    def _wasteful(self, visits: torch.Tensor) -> bool:
        """Return whether too many of the tiles that would be visited are empty."""
        tile = (self.shape.queries, self.shape.keys)
        needed = self.blocks.with_block_size(tile).counts("rows").sum(1)
        return bool((visits.sum(1) > needed * _MOST_VISITS).any())

    def _listed(self, interval: Interval | None, bound: BoundGraph | None) -> Walk:
        tile = (self.shape.queries, self.shape.keys)
        runs = self.blocks.with_block_size(tile).runs
        lists: TileLists = listed(runs, self.blocks.size.kv_len, self.shape.keys)
        values = (lists.begins.to(self.device), lists.tiles.to(self.device))
        return self._finished(WalkPlan("listed", self.shape, interval), values, bound, lists.counts)

    def _finished(
        self,
        plan: WalkPlan,
        values: tuple[torch.Tensor | int, ...],
        bound: BoundGraph | None,
        visits: torch.Tensor,
    ) -> Walk:
        """Return a walk with the order of work and the classes that it needs."""
        direction = direction_of(visits)
        by_table = direction == "neither"
        classes = len(self.blocks.classes) > 1 and (plan.source == "listed" or by_table)
        plan = replace(plan, classes=classes, order_table=by_table)
        if classes:
            values += self._class_values()
        if by_table:
            values += (order(visits, "lpt").to(self.device),)
        return Walk(plan, values, direction == "descending", bound, visits)

    def _class_values(self) -> tuple[torch.Tensor | int, ...]:
        """Return the table of classes and its strides, a column for each head of a tile."""
        of = self.blocks.classes.of
        if of.shape[1] > 1:
            of = of[:, :: self.shape.group]
        batches, heads = of.shape
        table = of.to(torch.int32).contiguous().to(self.device)
        return (table, heads if batches > 1 else 0, 1 if heads > 1 else 0)
