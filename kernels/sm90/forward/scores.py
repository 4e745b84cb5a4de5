"""Scores of a tile: the places of the forward kernel where the user's mod and mask are spliced in.

`ItemScores` is made for a tile of queries, before its loop over tiles of keys: what depends on a
row alone is computed there, once.  In the loop it turns the products of a tile into scores, and
hides those that the mask does: by the limits of each row where visible keys are one interval, and
otherwise by the mask itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import cutlass
from cutlass import Boolean, Float32, Int32, cute
from cutlass._mlir.dialects import arith

from flexfa4.kernels.emit.evaluator import TraceTime
from flexfa4.kernels.emit.places import Row
from flexfa4.kernels.emit.sites import MaskSite, ScoreSite
from flexfa4.kernels.forward.parameters import Parameters
from flexfa4.kernels.sm90.forward.parts import Parts, columns_of, parts_of
from flexfa4.kernels.sm90.forward.plan import ForwardPlan
from flexfa4.primitives import wgmma
from flexfa4.primitives.running_softmax import Ends
from flexfa4.primitives.scheduler import Item

ROWS: Final = 2
"""Rows of a thread."""


class ItemScores(TraceTime):
    """The scores of a tile of queries, in one thread.

    Attributes:
        queries: positions of the thread's rows; not clamped to those that exist.
        heads: query heads of the rows.
        batch: their batch.
    """

    def __init__(self, parameters: Parameters, item: Item, warpgroup: Int32, thread: Int32) -> None:
        plan = parameters.plan
        assert isinstance(plan, ForwardPlan)
        self._plan = plan
        self._kv_len = parameters["kv_len"]
        self._column = 2 * (thread % 4)
        group, shape = plan.group, plan.walk.shape
        warp, lane = thread // wgmma.WARP, thread % wgmma.WARP
        first = warpgroup * wgmma.ROWS + warp * 16 + lane // 4
        rows = [first + 8 * i for i in range(ROWS)]
        self.batch = item.batch
        self.queries = [item.q_tile * shape.queries + row // group for row in rows]
        self.heads = [item.head * group + row % group if group > 1 else item.head for row in rows]
        head = None if group > 1 else item.head
        if group > 1:
            own = [Row(q, h) for q, h in zip(self.queries, self.heads, strict=True)]
        else:
            own = [Row(q, offset=8 * i) for i, q in enumerate(self.queries)]
        self._score: ScoreSite = parameters.score_site(item.batch, head).with_rows(own)
        self._limits: list[tuple[Any, Any]] = []
        self._mask: MaskSite | None = None
        self._parts = parts_of(plan)
        if plan.mask is not None:
            columns = columns_of(plan, ahead=0)
            self._mask = parameters.mask_site(item.batch, head, columns).with_rows(own)
        else:
            limits, from_start = parameters.limits, plan.walk.from_first
            for h, q in zip(self.heads, self.queries, strict=True):
                begin, end = limits(item.batch, h, q)
                self._limits.append((0 if from_start else begin, end))

    def ends(self, sinks: Sequence[Float32 | None]) -> list[Ends]:
        """Return what the end of each row needs to know; `sinks` are in base 2."""
        score = self._score
        return [Ends(score.unit(row), score.constant(row), sink) for row, sink in enumerate(sinks)]

    def at_tile(self, kv_tile: Int32, masked: bool) -> TileScores:
        """Return the scores of a tile of keys; issues the loads that serve a whole column.

        Args:
            kv_tile: the tile of keys.
            masked: hide what the mask hides, and what lies behind the last key.
        """
        origin = kv_tile * self._plan.walk.shape.keys + self._column
        mask = None
        if masked and self._mask is not None:
            mask = self._mask.at_tile(origin, tail=True)
        limits = None
        if masked:
            end = self._kv_len - origin
            limits = [(0, end) for _ in range(ROWS)]
            if self._limits:
                limits = [(_less(begin, origin), end - origin) for begin, end in self._limits]
        modified = not self._plan.score.max_of_products
        score = self._score.at_tile(origin, tail=masked)
        return TileScores(score, mask, limits, modified, self._parts, self._kv_len)


@dataclass(frozen=True)
class TileScores(TraceTime):
    """The scores of a tile, in one thread.

    Attributes:
        score: the score mod at the tile.
        mask: the mask, where it is evaluated for each score.
        limits: of each row the visible columns, relative to the thread's first one; None where all
            are visible.
        modified: scores are not the products themselves.
        parts: for how many columns these are evaluated together.
        kv_len: how many keys there are.
    """

    score: ScoreSite
    mask: MaskSite | None
    limits: list[tuple[Any, Any]] | None
    modified: bool
    parts: Parts
    kv_len: Int32

    def factor(self, row: int) -> Float32:
        """Return what multiplies the scores of a row into units of log2: positive."""
        return self.score.factor(row)

    def shift(self, row: int) -> Float32 | None:
        """Return what is added to scores times `factor`; None for nothing."""
        return self.score.shift(row)

    def apply(self, scores: wgmma.Rows) -> None:
        """Turn products into scores, minus infinity where they are hidden.

        Args:
            scores: of a tile; overwritten.
        """
        if self.modified:
            for columns in _cut(scores.columns, self.parts.scores):
                if len(columns) == scores.columns:
                    _modify(scores, self.score, columns)
                else:
                    _in_branch(_modify, scores, self.score, columns, self.kv_len)
        if self.mask is not None:
            for columns in _cut(scores.columns, self.parts.mask):
                _in_branch(_hide, scores, self.mask, columns, self.kv_len)
        if self.limits is not None:
            ends = [end for _, end in self.limits]
            _hide_from(scores, ends)
            begins = [begin for begin, _ in self.limits]
            if not isinstance(begins[0], int):
                _hide_before(scores, begins)


def _cut(columns: int, part: int) -> list[range]:
    """Return the columns of each part, in order."""
    return [range(first, min(first + part, columns)) for first in range(0, columns, part)]


def _modify(scores: wgmma.Rows, site: ScoreSite, columns: range) -> None:
    for row in range(ROWS):
        for column in columns:
            product = Float32(scores.value(row, column))
            scores.set(row, column, site.value(row, column, product).ir_value())


def _hide(scores: wgmma.Rows, site: MaskSite, columns: range) -> None:
    for row in range(ROWS):
        for column in columns:
            score = Float32(scores.value(row, column))
            score = Float32(cutlass.select_(site.visible(row, column), score, -Float32.inf))
            scores.set(row, column, score.ir_value())


@cute.jit
def _in_branch(
    apply: Callable[..., None],
    scores: wgmma.Rows,
    site: ScoreSite | MaskSite,
    columns: range,
    kv_len: Int32,
) -> None:
    """Apply a mod to some columns, in a branch that is always taken; see `parts`.

    The condition holds for any length, which no compiler knows, and is another one for each part:
    branches of one condition may be joined.
    """
    if kv_len > -1 - columns[0]:
        apply(scores, site.inside(), columns)


@cute.jit
def _hide_from(scores: wgmma.Rows, ends: Any) -> None:
    """Hide the columns from each row's end on; most warps of a partial tile have none."""
    last = wgmma.column_of(scores.columns - 1)
    some = Boolean(False)
    for row in cutlass.range_constexpr(ROWS):
        some = some | (ends[row] <= last)
    if cute.arch.vote_any_sync(some):
        _keep(scores, arith.CmpIPredicate.slt, ends)


@cute.jit
def _hide_before(scores: wgmma.Rows, begins: Any) -> None:
    """Hide the columns before each row's begin; most warps of a partial tile have none."""
    some = Boolean(False)
    for row in cutlass.range_constexpr(ROWS):
        some = some | (begins[row] > 0)
    if cute.arch.vote_any_sync(some):
        _keep(scores, arith.CmpIPredicate.sge, begins)


def _keep(scores: wgmma.Rows, comparison: Any, limits: Any) -> None:
    """Hide the columns that do not compare so with each row's limit."""
    hidden = Float32(-Float32.inf).ir_value()
    for row in range(ROWS):
        limit = Int32(limits[row]).ir_value()
        for column in range(scores.columns):
            place = Int32(wgmma.column_of(column)).ir_value()
            visible = arith.cmpi(comparison, place, limit)
            score = arith.select(visible, scores.value(row, column), hidden)
            scores.set(row, column, score)


def _less(begin: Any, origin: Int32) -> Any:
    """Return the first visible column relative to an origin; 0 where that is the first key."""
    return 0 if isinstance(begin, int) and begin == 0 else begin - origin
