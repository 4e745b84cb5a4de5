"""Scores of a tile, transposed: where mod, mask and their derivatives are spliced in.

A thread has keys, its rows, and queries in its columns (`fragment`).  `KeyScores` is made for a
tile of keys and the queries of one batch and head, before the loop over tiles of queries: what
depends on a key alone is computed there, once.  In the loop it turns products into probabilities
and what is kept of them, and gradients of probabilities into those of scores.

Hidden scores have probability 0: those outside of the limits of each key where the queries that see
it are one interval, and otherwise those that the mask hides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import cutlass
from cutlass import Boolean, Float32, Int32, cute

from flexfa4.kernels.backward.captures import CapturedSums
from flexfa4.kernels.backward.fragment import Fragment
from flexfa4.kernels.backward.parameters import Parameters, anew
from flexfa4.kernels.blocks.intervals import Interval
from flexfa4.kernels.emit.evaluator import TraceTime
from flexfa4.kernels.emit.gradient_sites import GradientSite
from flexfa4.kernels.emit.places import Row
from flexfa4.kernels.emit.sites import MaskSite
from flexfa4.primitives import packed
from flexfa4.primitives.device_exponentials import exp2_or_emulated
from flexfa4.primitives.exponentials import EmulatedFraction
from flexfa4.primitives.registers import Numbers, several_of

_CHUNK: Final = 8
"""Elements that are rounded together: Hopper's products of depth 16 take as many of each thread."""


class Statistics(TraceTime):
    """A number of each query in a thread's columns, read where it is needed.

    Args:
        place: of the thread's first column, in shared memory.
        fragment: how the thread's columns lie.
    """

    def __init__(self, place: cute.Pointer, fragment: Fragment) -> None:
        self._place = place
        self._fragment = fragment

    def of_columns(self, first: int, count: int) -> list[Float32]:
        """Return those of columns that follow each other; both numbers are multiples of a run."""
        found, run = [], self._fragment.run
        for column in range(first, first + count, run):
            source = self._place + self._fragment.column_of(column)
            found += several_of(source, run)
        return found


class KeyScores(TraceTime):
    """The scores of a tile of keys with the queries of a head, in one thread.

    Args:
        parameters: of the launch.
        batch, head: of the queries.
        first_key: the first of the keys of the warpgroup.
        first_query: the first of its columns, in a tile of queries.
        thread: in the warpgroup.
        part: which of the warpgroups that have the same keys this is.
    """

    def __init__(
        self,
        parameters: Parameters,
        batch: Int32,
        head: Int32,
        first_key: Int32,
        first_query: Int32 | int,
        thread: Int32,
        part: Int32 | int,
    ) -> None:
        plan = parameters.plan
        self._queries = plan.tiling.queries
        self._emulated = plan.tiling.emulated
        fragment = plan.fragment
        self._fragment = fragment
        self._computes_anew = plan.computes_anew
        self._column = first_query + fragment.first_column(thread)
        self._first = fragment.first_row(first_key, thread)
        behind = [fragment.row_step * i for i in range(fragment.rows)]
        rows = [Row(self._first + offset, offset=offset) for offset in behind]
        self._sums: CapturedSums | None = None
        if plan.score.shares:
            self._sums = CapturedSums(parameters, batch, head, self._first, part)
        self._score = parameters.gradient_site(batch, head, self._sums).with_rows(rows)
        self._mask: MaskSite | None = None
        if plan.mask is not None:
            self._mask = parameters.mask_site(batch, head).with_rows(rows)
        limits, interval = parameters.limits, plan.walk.interval
        self._limits: list[tuple[Any, Any]] = []
        for row in rows:
            begin, end = limits.of_existing(batch, head, row.position)
            if _seen_by_the_last(interval):
                begin, end = cutlass.select_(begin < end, begin, parameters["q_len"]), None
            elif _seen_by_the_first(interval):
                begin = None
            self._limits.append((begin, end))

    def at_tile(self, q_tile: Int32, masked: bool) -> TileScores:
        """Return the scores of a tile of queries.

        Args:
            q_tile: the tile.
            masked: hide what the mask hides, and keys and queries that do not exist.
        """
        origin = q_tile * self._queries + self._column
        score = self._score.at_tile(origin, masked=masked)
        again = self._again(score, origin, masked) if self._computes_anew else lambda: score
        finish = None
        if self._sums is not None:
            self._sums.begin_tile(origin)
            finish = functools.partial(self._sums.finish_tile, origin)
        if not masked:
            return TileScores(score, again, self._fragment, self._emulated, finish=finish)
        limits = [
            tuple(None if limit is None else limit - origin for limit in row)
            for row in self._limits
        ]
        mask = None if self._mask is None else self._mask.at_tile(origin, tail=True)
        return TileScores(score, again, self._fragment, self._emulated, limits, mask, finish)

    def _again(
        self, before: GradientSite, origin: Int32, masked: bool
    ) -> Callable[[], GradientSite]:
        """Return what makes the site of a tile once more, for the first who asks.

        That is behind all exponentials, for which `before` was given the scores.
        """

        @functools.cache
        def made() -> GradientSite:
            again = self._score.at_tile(anew(origin), masked=masked)
            again.take_scores(before)
            return again

        return made

    def finish(self) -> None:
        """Write what was summed up for captured tensors; behind the last tile."""
        if self._sums is not None:
            self._sums.write()


class TileScores(TraceTime):
    """The scores of a tile, in one thread.

    Attributes:
        score: the score mod at the tile.
        again: returns the same for its derivatives.
        fragment: how the thread holds the tile.
        emulated: which exponentials are.
        limits: of each row the first visible column and the one behind the last, relative to the
            thread's first one; None for a limit that hides nothing, or where there are none.
        mask: the mask, where it is evaluated for each score.
        finish: is called behind the last gradient, and perhaps behind others before
            (`Fragment.summed`); None for nothing to do.
    """

    def __init__(
        self,
        score: GradientSite,
        again: Callable[[], GradientSite],
        fragment: Fragment,
        emulated: EmulatedFraction,
        limits: list[tuple[Any, ...]] | None = None,
        mask: MaskSite | None = None,
        finish: Callable[[], None] | None = None,
    ) -> None:
        self.score = score
        self.again = again
        self.fragment = fragment
        self.emulated = emulated
        self._finish = finish
        self.limits = limits
        self.mask = mask

    def probabilities(
        self, products: Any, lse: Statistics, rounded: Any | None, part: range | None = None
    ) -> None:
        """Turn products into probabilities, and these into what `gradients` needs of them.

        Args:
            products: the accumulator, keys by queries; overwritten.
            lse: of the columns.
            rounded: gets the probabilities, as an operand of the next product; or nothing does.
            part: which of them; None for all.
        """
        part = part or range(cute.size(products))
        products = Numbers(products, part)
        for start in range(part.start, part.stop, _CHUNK):
            chunk = cute.make_rmem_tensor(_CHUNK, Float32)
            rows = self.fragment.rows
            numbers = Numbers(chunk)
            own = lse.of_columns(start // rows, _CHUNK // rows)
            exponents = self._exponents(products, start, own)  # as they are asked for
            for i in range(_CHUNK):
                row, column = self.fragment.element(start + i)
                x = next(exponents)
                visible = self._visible(row, column)
                if visible is not None:
                    x = cutlass.select_(visible, x, -Float32.inf)
                p = exp2_or_emulated(x, self.emulated, start + i)
                numbers[i] = p
                products[start + i] = self.score.weight(row, column, p)
            if rounded is not None:
                _round(rounded, chunk, start)

    def gradients(
        self,
        weights: Any,
        changes: Any,
        delta: Statistics,
        rounded: Any | None,
        first: int = 0,
    ) -> None:
        """Turn the gradients of probabilities into those of products, but for the softmax scale.

        Args:
            weights: what `probabilities` left.
            changes: the gradients of all of them, or of a part, keys by queries; overwritten.
            delta: of the columns.
            rounded: gets the probabilities, where these are the weights; or nothing does.
            first: the element of `weights` that is the first of `changes`.
        """
        assert rounded is None or self.score.program.keeps_probabilities
        score = self.again()
        changes = Numbers(changes)
        given = Numbers(weights, range(first, first + len(changes)))
        for start in range(first, first + len(changes), _CHUNK):
            column_0 = start // self.fragment.rows
            own = delta.of_columns(column_0, _CHUNK // self.fragment.rows)
            if rounded is not None:
                part = cute.make_tensor(weights.iterator + start, cute.make_layout(_CHUNK))
                _round(rounded, part, start)
            if self.fragment.pairs and score.gradients_in_pairs:
                for i in range(start, start + _CHUNK, 2):
                    row, column = self.fragment.element(i)
                    both = own[column - column_0 : column - column_0 + 2]
                    place = (i - first) // 2
                    pairs = packed.load(given, i // 2), packed.load(changes, place)
                    packed.store(changes, place, score.gradient_pair(row, column, *pairs, both))
                continue
            for i in range(start, start + _CHUNK):
                row, column = self.fragment.element(i)
                weight, change = given[i], changes[i - first]
                found = score.gradient(row, column, weight, change, own[column - column_0])
                changes[i - first] = found
        done = (first + len(changes)) // self.fragment.rows
        if self._finish is not None and done % (self.fragment.summed or self.fragment.columns) == 0:
            self._finish()

    def _exponents(self, products: Numbers, start: int, lse: list[Float32]) -> Iterator[Float32]:
        """Yield the exponents of a chunk of products; `lse`: of its columns."""
        first = start // self.fragment.rows
        pairs = self.fragment.pairs and self.score.exponents_in_pairs
        for i in range(start, start + _CHUNK, 2 if pairs else 1):
            row, column = self.fragment.element(i)
            own = lse[column - first :]
            if pairs:
                both = packed.load(products, i // 2)
                yield from packed.lanes(self.score.exponent_pair(row, column, both, own[:2]))
            else:
                yield self.score.exponent(row, column, products[i], own[0])

    def _visible(self, row: int, column: int) -> Boolean | None:
        if self.limits is None:
            return None
        begin, end = self.limits[row]
        offset = self.fragment.column_of(column)
        if begin is None or end is None:
            within = Boolean(offset < end if begin is None else offset >= begin)
        else:
            within = Boolean((offset >= begin) & (offset < end))
        return within if self.mask is None else self.mask.visible(row, column, within)


def _seen_by_the_first(interval: Interval | None) -> bool:
    """Whether the first query sees every key that any sees, whatever the values of a call."""
    return interval is None or (interval.begin.op == "const" and interval.begin.attr <= 0)


def _seen_by_the_last(interval: Interval | None) -> bool:
    """Whether the last query sees every key that any sees.

    Queries behind it need no limit: their lse is infinity.
    """
    if interval is None or interval.end.op != "symbol" or interval.end.attr != "q_len":
        return False
    return not _seen_by_the_first(interval)


def _round(rounded: Any, chunk: Any, start: int) -> None:
    target = cute.make_tensor(rounded.iterator + start, cute.make_layout(_CHUNK))
    target.store(chunk.load().to(rounded.element_type))
