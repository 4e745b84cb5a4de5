"""Which tiles of keys a tile of queries visits: those that need the mask, and then the others.

Nothing is handed from warp to warp: each one works out the visits of its query tile for itself, and
the n-th visit is found without those before it.  There are three sources:

``Dense``   every key is visible; a last tile that the length cuts short is partial
``Closed``  the mask is one interval of keys for each query, whose ends are computed here: there are
            no index tensors
``Listed``  the visits are listed in memory, line by line

Partial tiles come first and full ones last, each kind from the last keys to the first: where the
mask is causal, the tile on the diagonal leads.

A backward pass works on tiles of keys, which visit tiles of queries: then queries and keys change
places in all that follows, and `RowLimits.ragged` hides the keys that do not exist.

Written once for hosts and kernels (`arithmetic`).  Knows no masks: where the ends of intervals, the
lists and the choice among sources come from is the business of `kernels.blocks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from flexfa4.primitives.arithmetic import Arithmetic, Extremes, Value

RowEnds: TypeAlias = Callable[[Value, Value, Value], tuple[Value, Value]]
"""From batch, query head and query to the interval of keys that it sees, not yet clamped to the
keys that there are; integers of 32 or 64 bits; empty where the ends cross."""

Sampling = Literal["edges", "all"]
"""Which rows of a tile say what the tile sees: its first and its last, or all of them."""


class TileShape(NamedTuple):
    """The shape of a tile of scores.

    Attributes:
        queries: positions in a query tile.
        keys: positions in a key tile.
        group: query heads that are packed into the rows of one tile; 1 for none.  Row ``r`` is then
            query ``r // group`` of head ``r % group`` of the group.
    """

    queries: int
    keys: int
    group: int = 1

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.queries * self.group


class Lengths(NamedTuple):
    """Numbers of queries and keys of a sequence."""

    queries: Value
    keys: Value


class Visits(Protocol):
    """The tiles of keys that a tile of queries visits."""

    @property
    def partial_count(self) -> Value:
        """How many need the mask."""

    @property
    def full_count(self) -> Value:
        """How many do not."""

    @property
    def first(self) -> Value:
        """The tile that is visited first, if any is."""

    def partial(self, i: Value) -> Value:
        """Return the i-th tile that needs the mask, ``0 <= i < partial_count``."""

    def full(self, i: Value) -> Value:
        """Return the i-th tile that does not, ``0 <= i < full_count``."""


@dataclass(frozen=True)
class AtLeastOne:
    """Visits, with one tile of which nothing is visible where there are none.

    A kernel that has a tile for each item needs no other way for those that see nothing.

    Attributes:
        arithmetic: what computes.
        visits: what is visited.
    """

    arithmetic: Arithmetic
    visits: Visits

    @property
    def full_count(self) -> Value:
        """How many tiles do not need the mask."""
        return self.visits.full_count

    @property
    def partial_count(self) -> Value:
        """How many tiles need the mask."""
        none = self.visits.partial_count + self.visits.full_count == 0
        return self.arithmetic.select(none, 1, self.visits.partial_count)

    @property
    def first(self) -> Value:
        """The tile that is visited first."""
        return self._clamped(self.visits.first)

    def partial(self, i: Value) -> Value:
        """Return the i-th tile that needs the mask."""
        return self._clamped(self.visits.partial(i))

    def full(self, i: Value) -> Value:
        """Return the i-th tile that does not need the mask."""
        return self.visits.full(i)

    def _clamped(self, tile: Value) -> Value:
        """Return a tile that exists: behind none, visits are asked for one they do not have."""
        none = self.visits.partial_count + self.visits.full_count == 0
        return self.arithmetic.select(none, 0, tile)


class Ranks(Protocol):
    """A source that knows when it is a line's turn at a tile that others visit, too.

    Lines are worked on in an order, and those that visit one tile have their turns in that order.
    """

    def rank(self, row: Any, q_tile: Value, partial: bool, i: Value) -> Value:
        """Return how many lines visit a tile before this one does.

        Args:
            row: the visits of the line.
            q_tile: the line.
            partial: the tile is one that needs the mask.
            i: which of these, or of the others, it is.
        """


class TileSource(Protocol):
    """Gives the visits of each tile of queries.

    All lanes of a warp ask together, with equal arguments.
    """

    def row(self, batch: Value, head: Value, q_tile: Value) -> Visits:
        """Return the visits of a tile of queries that has at least one.

        Args:
            batch: the batch.
            head: the query head; the key head where query heads are packed.
            q_tile: the tile of queries.
        """


@dataclass(frozen=True)
class RowLimits:
    """The keys that a query sees, where they are one interval: also what masks a partial tile.

    Attributes:
        arithmetic: what computes.
        lengths: of the sequence.
        ends: of the intervals; None: every key is visible.
        ragged: queries behind the last one see nothing, so that tiles which reach there have to be
            masked.  Otherwise it does not matter what they see, since nothing of it is used.
    """

    arithmetic: Arithmetic
    lengths: Lengths
    ends: RowEnds | None = None
    ragged: bool = False

    def __call__(self, batch: Value, head: Value, query: Value) -> tuple[Value, Value]:
        """Return the keys of a query: from the first to (not including) the second.

        Args:
            batch: the batch.
            head: the query head.
            query: any row of a tile: behind the last query it is taken for the last.
        """
        keys = self.lengths.keys
        if self.ends is None:
            return keys * 0, keys
        query = self.arithmetic.minimum(query, self.lengths.queries - 1)
        begin, end = self.ends(batch, head, query)
        return self.arithmetic.clamped(begin, 0, keys), self.arithmetic.clamped(end, 0, keys)

    def of_existing(self, batch: Value, head: Value, query: Value) -> tuple[Value, Value]:
        """Return the keys of a query: none behind the last query, where that is `ragged`."""
        begin, end = self(batch, head, query)
        if not self.ragged:
            return begin, end
        exists = query < self.lengths.queries
        return begin, self.arithmetic.select(exists, end, self.lengths.keys * 0)

    def filled(self, stretch: Stretch, q_tile: Value, queries: int) -> Stretch:
        """Return visits of a tile of so many queries, without full ones where it is cut short."""
        if not self.ragged:
            return stretch
        whole = q_tile * queries + queries <= self.lengths.queries
        select, first = self.arithmetic.select, stretch.begin
        return replace(
            stretch,
            begin_full=select(whole, stretch.begin_full, first),
            end_full=select(whole, stretch.end_full, first),
        )


# ---- intervals of tiles --------------------------------------------------------------------------


@dataclass(frozen=True)
class Stretch:
    """Visits that are one interval of tiles, with the full ones in one interval inside.

    Attributes:
        arithmetic: what computes.
        begin, end: all visits.
        begin_full, end_full: the full ones; both equal `begin` where there are none.
    """

    arithmetic: Arithmetic
    begin: Value
    end: Value
    begin_full: Value
    end_full: Value

    @property
    def full_count(self) -> Value:
        """How many tiles do not need the mask."""
        return self.end_full - self.begin_full

    @property
    def partial_count(self) -> Value:
        """How many tiles need the mask."""
        return self.end - self.begin - self.full_count

    @property
    def first(self) -> Value:
        """The tile that is visited first, if any is."""
        return self.arithmetic.select(self.partial_count > 0, self.partial(0), self.full(0))

    def partial(self, i: Value) -> Value:
        """Return the i-th tile that needs the mask: those behind the full ones, then the others."""
        place = self.end - 1 - i
        return self.arithmetic.select(place >= self.end_full, place, place - self.full_count)

    def full(self, i: Value) -> Value:
        """Return the i-th tile that does not need the mask."""
        return self.end_full - 1 - i

    def joined(self, other: Stretch) -> Stretch:
        """Return what two tiles of queries visit together: full is what is full for both."""
        select, minimum, maximum = (
            self.arithmetic.select, self.arithmetic.minimum, self.arithmetic.maximum,
        )  # fmt: skip
        none, other_none = self.begin == self.end, other.begin == other.end
        begin = select(
            none, other.begin, select(other_none, self.begin, minimum(self.begin, other.begin))
        )
        end = select(none, other.end, select(other_none, self.end, maximum(self.end, other.end)))
        begin_full = maximum(self.begin_full, other.begin_full)
        end_full = minimum(self.end_full, other.end_full)
        some = begin_full < end_full
        return Stretch(
            self.arithmetic,
            begin,
            end,
            select(some, begin_full, begin),
            select(some, end_full, begin),
        )


@dataclass(frozen=True)
class Dense:
    """Every key is visible to every query.

    Attributes:
        shape: of a tile.
        limits: which have no ends.
    """

    shape: TileShape
    limits: RowLimits

    def rank(self, row: Visits, q_tile: Value, partial: bool, i: Value) -> Value:
        """Return how many lines visit a tile before this one does: see `Ranks`."""
        return q_tile

    def row(self, batch: Value, head: Value, q_tile: Value) -> Visits:
        """Return the visits of a tile of queries, which are the same for all whole tiles."""
        keys, lengths, arithmetic = self.shape.keys, self.limits.lengths, self.limits.arithmetic
        full = arithmetic.quotient(lengths.keys, keys)
        stop = arithmetic.quotient(lengths.keys + (keys - 1), keys)
        stretch = Stretch(arithmetic, full * 0, stop, full * 0, full)
        return self.limits.filled(stretch, q_tile, self.shape.queries)


@dataclass(frozen=True)
class Closed:
    """Every query sees one interval of keys.

    A tile is visited if it meets the interval from the least begin to the greatest end of the rows,
    and full if the intersection of their intervals holds it: right for any ends.  Where intervals
    of neighbouring queries leave a gap, tiles in it are visited although nobody sees them.

    Attributes:
        shape: of a tile.
        limits: the interval of each query; heads that are packed have the same.
        sampling: "edges" where both ends are monotone along the queries of a tile: then all four
            extremes are found at its edges.
    """

    shape: TileShape
    limits: RowLimits
    sampling: Sampling

    def row(self, batch: Value, head: Value, q_tile: Value) -> Stretch:
        """Return the visits of a tile of queries."""
        queries, first_head = self.shape.queries, head * self.shape.group

        def ends(row: Value) -> tuple[Value, Value]:
            return self.limits(batch, first_head, q_tile * queries + row)

        if self.sampling == "edges":
            stretch = self._of_edges(ends(0), ends(queries - 1))
        else:
            stretch = self._tiles(self.limits.arithmetic.extremes(ends, queries))
        return self.limits.filled(stretch, q_tile, queries)

    def _of_edges(self, one: tuple[Value, Value], other: tuple[Value, Value]) -> Stretch:
        """Return the visits of rows of which two have the extremes of both ends."""
        minimum, maximum = self.limits.arithmetic.minimum, self.limits.arithmetic.maximum
        (begin, end), (other_begin, other_end) = one, other
        return self._tiles(
            Extremes(
                minimum(begin, other_begin),
                maximum(end, other_end),
                maximum(begin, other_begin),
                minimum(end, other_end),
            )
        )

    def _tiles(self, found: Extremes) -> Stretch:
        """Return the visits, from the extremes of the rows' ends."""
        arithmetic, keys = self.limits.arithmetic, self.shape.keys
        first = arithmetic.quotient(found.first, keys)
        stop = arithmetic.quotient(found.stop + (keys - 1), keys)
        stop = arithmetic.select(found.first < found.stop, stop, first)
        first_full = arithmetic.quotient(found.last_begin + (keys - 1), keys)
        stop_full = arithmetic.quotient(found.first_stop, keys)
        some = first_full < stop_full
        return Stretch(
            arithmetic,
            first,
            stop,
            arithmetic.select(some, first_full, first),
            arithmetic.select(some, stop_full, first),
        )


# ---- lists ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassTable:
    """Which class a batch and head belong to: those of one class have one mask.

    Attributes:
        classes: int32 ``(batches, heads)``; None: there is one class.
        batch_stride, head_stride: elements from a batch or a head to the next; 0 where all of them
            have the same.
    """

    classes: Any
    batch_stride: Value = 0
    head_stride: Value = 0

    def of(self, batch: Value, head: Value, arithmetic: Arithmetic) -> Value:
        """Return the class of a batch and head; the head as for `TileSource.row`."""
        if self.classes is None:
            return 0
        place = batch * self.batch_stride + head * self.head_stride
        return arithmetic.load(self.classes, place)


@dataclass(frozen=True)
class Line:
    """Visits that are listed in memory.

    Attributes:
        arithmetic: what computes.
        tiles: int32, see `Listed`.
        begin: where the partial ones begin.
        begin_full: where they end and the full ones begin.
        end: where these end.
    """

    arithmetic: Arithmetic
    tiles: Any
    begin: Value
    begin_full: Value
    end: Value

    @property
    def partial_count(self) -> Value:
        """How many tiles need the mask."""
        return self.begin_full - self.begin

    @property
    def full_count(self) -> Value:
        """How many tiles do not need the mask."""
        return self.end - self.begin_full

    @property
    def first(self) -> Value:
        """The tile that is visited first, if any is."""
        return self.arithmetic.load(self.tiles, self.begin)

    def partial(self, i: Value) -> Value:
        """Return the i-th tile that needs the mask."""
        return self.arithmetic.load(self.tiles, self.begin + i)

    def full(self, i: Value) -> Value:
        """Return the i-th tile that does not need the mask."""
        return self.arithmetic.load(self.tiles, self.begin_full + i)


@dataclass(frozen=True)
class Listed:
    """The visits of each line of tiles are listed, for each class of batches and heads.

    Attributes:
        arithmetic: what computes.
        begins: int32 ``(classes * lines * 2 + 1,)``: for each line where its partial and where its
            full tiles begin in `tiles`; last, where all end.
        tiles: int32: the visits of each line, in order, and one element more: `Line.first` may be
            asked for where there are none.
        ranks: int32, beside `tiles`, see `Ranks`; None where nobody asks for them.
        halves: int32, likewise: which halves of the tile of queries take part in a visit, a bit
            for each.
        lines: query tiles of a class.
        classes: which class a batch and head belong to.
    """

    arithmetic: Arithmetic
    begins: Any
    tiles: Any
    lines: Value
    classes: ClassTable
    ranks: Any = None
    halves: Any = None

    def rank(self, row: Line, q_tile: Value, partial: bool, i: Value) -> Value:
        """Return how many lines visit a tile before this one does: see `Ranks`."""
        place = (row.begin if partial else row.begin_full) + i
        return self.arithmetic.load(self.ranks, place)

    def row(self, batch: Value, head: Value, q_tile: Value) -> Line:
        """Return the visits of a tile of queries."""
        class_ = self.classes.of(batch, head, self.arithmetic)
        place = 2 * (class_ * self.lines + q_tile)
        begin, begin_full, end = (self.arithmetic.load(self.begins, place + i) for i in range(3))
        return Line(self.arithmetic, self.tiles, begin, begin_full, end)
