"""The choice of how a kernel finds the tiles that it visits, and what that needs on the device.

A mask that is one interval of keys for each query is walked without lists, its ends evaluated in
the kernel; any other by lists for the kernel's own tile.  In both cases the interval, where there
is one, also tells the kernel which keys of a partial tile a query sees.

The tiles of a forward pass are of queries, and visit keys; those of a backward pass are of keys,
and visit the queries that see them: "rows" and "columns", as of a block mask.

`walk_for` is the entry.  A `WalkPlan` is part of a kernel's plan: all that code depends on.  A
`Walk` adds what depends on the values of a call, and is kept with the mask: it is made once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch

from flexfa4.frontend.analysis.bounds import bound
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.masks.grid import block_count
from flexfa4.frontend.masks.runs import order
from flexfa4.frontend.masks.solving.solved import Solved
from flexfa4.frontend.masks.solving.spans import Span
from flexfa4.frontend.masks.structure import Lines, MaskBlocks
from flexfa4.kernels.blocks.counts import monotone_in_tiles, visited_tiles, visitors_of, visits_of
from flexfa4.kernels.blocks.intervals import (
    LINES,
    Interval,
    bound_interval,
    interval_of,
    joined,
    span_of,
)
from flexfa4.kernels.blocks.lists import TileLists, halves_of, listed
from flexfa4.kernels.blocks.ranks import best_turns
from flexfa4.kernels.blocks.steps import (
    Direction,
    direction_of_steps,
    neighbours_meet,
    steps_of,
)
from flexfa4.kernels.compile.signature import Int32, Parameter, Pointer
from flexfa4.primitives.arithmetic import Arithmetic, Value
from flexfa4.primitives.scheduler import NUMBERS, Order, OrderTable, Sections
from flexfa4.primitives.tile_walk import (
    ClassTable,
    Closed,
    Dense,
    Lengths,
    Listed,
    RowEnds,
    RowLimits,
    Sampling,
    TileShape,
    TileSource,
)

ORDER_PARAMETERS: Final = tuple(Int32(name) for name in NUMBERS)
"""The parameters that say in which order items are worked on: `Sections.numbers` of a call."""

# Visits for each tile that is not empty, from which on lists are better.
_MOST_VISITS: Final = 1.05
_NAMES: Final = {"rows": ("query", "queries", "keys"), "columns": ("key", "keys", "queries")}


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
        by: "rows": tiles of queries visit keys; "columns": tiles of keys visit queries, and what
            is said of queries and keys holds of keys and queries.
        ranked: for each visit it is known how many others of that tile come before
            (`primitives.tile_walk.Ranks`).
        halves: of each visit in a list it is known which halves of the tile of queries take part.
    """

    source: Literal["dense", "closed", "listed"]
    shape: TileShape
    interval: Interval | None = None
    sampling: Sampling = "edges"
    classes: bool = False
    order_table: bool = False
    by: Lines = "rows"
    ranked: bool = False
    halves: bool = False

    @property
    def across(self) -> TileShape:
        """The shape of a tile with what the lines are of first: queries, or keys."""
        return _across(self.shape, self.by)

    @property
    def from_first(self) -> bool:
        """Whether every query that sees a key sees the first one, whatever the values of a call."""
        return self.interval is None or self.interval.from_first

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What the kernel is given for it, beside what `interval` captures; pointers to int32."""
        found: list[Parameter] = []
        if self.source == "listed":
            found += [Pointer("line_begins"), Pointer("line_tiles")]
            found += [Pointer("visit_ranks")] * self.ranked
            found += [Pointer("visit_halves")] * self.halves
        if self.classes:
            strides = (Int32("class_batch_stride"), Int32("class_head_stride"))
            found += [Pointer("classes"), *strides]
        if self.order_table:
            found += [Pointer("tile_order")]
        return tuple(found)

    def limits_of(
        self, arithmetic: Arithmetic, lengths: Lengths, ends: RowEnds | None
    ) -> RowLimits:
        """Return the interval of each query, or of each key.

        Args:
            arithmetic: what computes.
            lengths: of the sequence.
            ends: those of `interval`, if there is one.
        """
        if self.by == "rows":
            return RowLimits(arithmetic, lengths, ends)
        return RowLimits(arithmetic, Lengths(lengths.keys, lengths.queries), ends, ragged=True)

    def source_of(self, values: Sequence[Any], limits: RowLimits) -> TileSource:
        """Return what gives the visits.

        Args:
            values: those of `parameters`.
            limits: what `limits_of` gives.
        """
        arithmetic, shape = limits.arithmetic, self.across
        if self.source == "dense":
            return Dense(shape, limits)
        if self.source == "closed":
            assert limits.ends is not None
            return Closed(shape, limits, self.sampling)
        given = self._named(values)
        length = limits.lengths.queries
        lines = arithmetic.quotient(length + (shape.queries - 1), shape.queries)
        table = self._class_table(given)
        return Listed(
            arithmetic,
            given["line_begins"],
            given["line_tiles"],
            lines,
            table,
            given.get("visit_ranks"),
            given.get("visit_halves"),
        )

    def order_of(
        self,
        values: Sequence[Any],
        sections: Sections,
        arithmetic: Arithmetic,
        heads_together: Value = 1,
    ) -> Order:
        """Return the order of work.

        Args:
            values: those of `parameters`.
            sections: of the call.
            arithmetic: what computes.
            heads_together: query heads of an item, without those that are packed: the first one
                stands for all.
        """
        if not self.order_table:
            return Order(arithmetic, sections)
        given = self._named(values)
        classes = self._class_table(given)
        classes = replace(classes, head_stride=classes.head_stride * heads_together)
        table = OrderTable(given["tile_order"], sections.tiles, classes)
        return Order(arithmetic, sections, table)

    @property
    def in_words(self) -> str:
        """How tiles are found, and in which order they are worked on, in one line."""
        one, all_, across = _NAMES[self.by]
        sampled = f"the first and the last {one}" if self.sampling == "edges" else f"all {all_}"
        found = {
            "dense": f"every tile of {across}",
            "closed": f"computed from the closed form at {sampled} of a tile",
            "listed": "listed for the kernel's tile",
        }[self.source]
        ordered = "from a table, most tiles first" if self.order_table else "by position"
        return f"tiles of {across}: {found}; order of {one} tiles: {ordered}"

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
        counted: makes `visits`; None where every tile visits all.
        found: makes `visitors`; likewise.
    """

    plan: WalkPlan
    values: tuple[torch.Tensor | int, ...] = ()
    descending: bool = False
    interval: BoundGraph | None = None
    counted: Callable[[], torch.Tensor] | None = None
    found: Callable[[], torch.Tensor] | None = None

    @functools.cached_property
    def visits(self) -> torch.Tensor | None:
        """How many tiles each tile visits, int64 ``(classes, tiles)``; None where it is all."""
        return None if self.counted is None else self.counted()

    @functools.cached_property
    def visitors(self) -> torch.Tensor | None:
        """How many tiles visit each tile, int32 ``(batches, heads, tiles)``, on the device.

        One for all batches, or for all heads, where they are alike; None where all tiles visit all.
        """
        return None if self.found is None else self.found()

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
    blocks: MaskBlocks | None,
    shape: TileShape,
    device: torch.device,
    *,
    by: Lines = "rows",
    ranked: bool = False,
    halves: bool = False,
) -> Walk:
    """Return how a kernel finds the tiles that it visits; kept with the mask.

    Args:
        blocks: the mask, for as many query heads as the call has, or one; None for none.
        shape: of a tile; heads that are packed are alike (`heads_alike`).
        device: of the call.
        by: see `WalkPlan`.
        ranked: likewise.
        halves: likewise, where there are lists.
    """
    if blocks is None:
        return Walk(WalkPlan("dense", shape, by=by, ranked=ranked))
    walks = blocks.cache(_Walks)
    key = (shape, device, by, ranked, halves)
    if key not in walks:
        chooser = _Chooser(blocks, shape, device, by, halves)
        walks[key] = chooser.ranked() if ranked else chooser.walk()
    return walks[key]


def visits_in_lists(
    blocks: MaskBlocks, shape: TileShape, device: torch.device, by: Lines
) -> TileLists:
    """Return the visits of all lines, in the order in which they are made without turns.

    Arguments are those of `walk_for`.
    """
    return _Chooser(blocks, shape, device, by)._lists()


def _across(shape: TileShape, by: Lines) -> TileShape:
    """Return a shape with what the lines are of in the place of queries."""
    return shape if by == "rows" else TileShape(shape.keys, shape.queries)


def _direction(span: Span, solved: Solved) -> Direction | None:
    """Return the order of work where it can be told without counting visits."""
    ends = (span.start, span.stop, LINES[solved.form.index])
    found = direction_of_steps(*ends, cut=True)
    if found is None:
        known = bound(span.stop, solved.size.domain(solved.values).leaf)
        found = direction_of_steps(*ends, cut=not known.within(-math.inf, solved.length))
    return found


@dataclass(frozen=True, eq=False)
class _Chooser:
    """A mask, a tile, a device, what the lines are of, and whether halves are told apart."""

    blocks: MaskBlocks
    shape: TileShape
    device: torch.device
    by: Lines
    halves: bool = False

    def walk(self) -> Walk:
        """Return the walk."""
        solved = self.blocks.by_rows if self.by == "rows" else self.blocks.by_columns
        if not isinstance(solved, Solved):
            return self._listed(None, None)
        solved = joined(solved)
        span, interval = span_of(solved), interval_of(solved)
        if span is None or interval is None:
            return self._listed(None, None)
        limits = bound_interval(interval, solved, self.device)
        if not solved.values.tensors:  # its ends are few: a GPU would have to be waited for
            solved = replace(solved, values=replace(solved.values, device=torch.device("cpu")))
        sampling = self._sampling(span, solved)
        plan = WalkPlan("closed", self.shape, interval, sampling, by=self.by)
        visited = functools.cache(
            functools.partial(
                visited_tiles, solved, self.blocks.classes, _across(self.shape, self.by), sampling
            )
        )
        found = self._visitors(lambda tiles: visitors_of(visited(), tiles))
        if neighbours_meet(span.start, span.stop, interval.line):
            direction = _direction(span, solved)
            if direction is not None:
                descending = direction == "descending"
                return Walk(plan, (), descending, limits, lambda: visits_of(visited()), found)
            return self._finished(plan, (), limits, visits_of(visited()), found)
        visits = visits_of(visited())
        if not self._wasteful(visits):
            return self._finished(plan, (), limits, visits, found)
        return self._listed(interval, limits)

    def ranked(self) -> Walk:
        """Return the walk with ranks, in the order of work in which lines wait the least."""
        walk = self.walk()
        turns = best_turns(self._lists(), self._lines(), not walk.plan.has_limits)
        lists = turns.lists
        own = (lists.begins, lists.tiles, turns.ranks)
        values: list[torch.Tensor | int] = [v.to(self.device) for v in own]
        plan = WalkPlan(
            "listed",
            self.shape,
            walk.plan.interval,
            classes=self._has_classes,
            by=self.by,
            ranked=True,
        )
        values += self._class_values()
        found = self._visitors(lists.visitors)
        counted = lambda: lists.counts  # noqa: E731
        return Walk(plan, tuple(values), turns.descending, walk.interval, counted, found)

    def _visitors(self, of_tiles: Callable[[int], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Return what makes `Walk.visitors`.

        Args:
            of_tiles: returns how many lines visit each of so many tiles, for each class.
        """
        size, shape = self.blocks.size, self.shape
        ends = (size.kv_len, shape.keys) if self.by == "rows" else (size.q_len, shape.queries)

        def found() -> torch.Tensor:
            of_class = of_tiles(block_count(*ends)).to(self.device)
            return of_class[self.blocks.classes.of_on(self.device)]

        return found

    def _lines(self) -> int:
        """Return how many lines a class has."""
        size, across = self.blocks.size, _across(self.shape, self.by)
        return block_count(size.q_len if self.by == "rows" else size.kv_len, across.queries)

    def _sampling(self, span: Span, solved: Solved) -> Sampling:
        """Return which rows tell what a tile sees."""
        line = LINES[solved.form.index]
        if all(steps_of(end, line).monotone for end in (span.start, span.stop)):
            return "edges"
        per_line = _across(self.shape, self.by).queries
        alike = monotone_in_tiles(solved, self.blocks.classes, per_line)
        return "edges" if alike else "all"

    def _wasteful(self, visits: torch.Tensor) -> bool:
        """Return whether too many of the tiles that would be visited are empty."""
        tile = (self.shape.queries, self.shape.keys)
        needed = self.blocks.with_block_size(tile).counts(self.by).sum(1).to(visits.device)
        return bool((visits.sum(1) > needed * _MOST_VISITS).any())

    def _lists(self) -> TileLists:
        tile = (self.shape.queries, self.shape.keys)
        runs = self.blocks.with_block_size(tile).lines(self.by)
        size, keys = self.blocks.size, self.shape.keys
        if self.by == "rows":
            return listed(runs, size.kv_len, keys)
        return listed(runs, size.q_len, self.shape.queries, ragged=size.kv_len % keys > 0)

    def _listed(self, interval: Interval | None, limits: BoundGraph | None) -> Walk:
        lists = self._lists()
        values: tuple[torch.Tensor, ...] = (
            lists.begins.to(self.device), lists.tiles.to(self.device),
        )  # fmt: skip
        if self.halves:
            shape = self.shape._replace(queries=self.shape.queries // 2)
            halves = halves_of(lists, replace(self, shape=shape)._lists())
            values += (halves.to(self.device),)
        plan = WalkPlan("listed", self.shape, interval, by=self.by, halves=self.halves)
        return self._finished(plan, values, limits, lists.counts, self._visitors(lists.visitors))

    def _finished(
        self,
        plan: WalkPlan,
        values: tuple[torch.Tensor | int, ...],
        limits: BoundGraph | None,
        visits: torch.Tensor,
        found: Callable[[], torch.Tensor],
    ) -> Walk:
        """Return a walk with tables of the order of work and of classes.

        Both are there for whatever a mask captures, also where tiles happen to be in order and
        batches equal: other documents, or more of them, compile nothing.
        """
        plan = replace(plan, classes=self._has_classes, order_table=True)
        values += (*self._class_values(), order(visits, "lpt").to(self.device))
        return Walk(plan, values, interval=limits, counted=lambda: visits, found=found)

    @property
    def _has_classes(self) -> bool:
        """Whether batches or heads may have masks of their own."""
        return bool(self.blocks.graph.root.depends & {"b", "h"})

    def _class_values(self) -> tuple[torch.Tensor | int, ...]:
        """Return the table of classes and its strides, a column for each head of a tile, if any."""
        if not self._has_classes:
            return ()
        of = self.blocks.classes.of_on(self.device)
        if of.shape[1] > 1:
            of = of[:, :: self.shape.group]
        batches, heads = of.shape
        table = of.to(torch.int32).contiguous()
        return (table, heads if batches > 1 else 0, 1 if heads > 1 else 0)
