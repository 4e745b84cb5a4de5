"""Runs and counts of blocks from a closed form: the intervals of each row, swept line by line.

A mask in closed form gives each position of one axis the intervals that it sees of the other.
Which blocks a line of such positions touches, and which of them it sees whole, follows from the
ends of the intervals: neighbours whose ends lie in the same places of the grid count as one, and
the ends that are left are added up along the line (`overlay`).  Exact for any number of intervals,
in any order, overlapping or empty, in work that grows with positions and runs, never with their
product; positions are taken some at a time, so memory stays small at any length.

Does not solve masks (`solve`) nor evaluate the ends (`solved`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import torch

from flexfa4.frontend.gather import taken
from flexfa4.frontend.masks.classes import Classes
from flexfa4.frontend.masks.grid import BlockGrid, block_count, block_counts, blocks_of
from flexfa4.frontend.masks.limits import check_positions
from flexfa4.frontend.masks.overlay import Steps, Stretches, overlay, pitch_of
from flexfa4.frontend.masks.runs import BlockRuns, Cover
from flexfa4.frontend.masks.solving.solved import Solved, ends_of, ends_of_each

# Intervals evaluated at once, of whose ends some five temporaries are alive: of 2 MB each on a CPU,
# which its caches hold; of 16 MB elsewhere, where starting an operation costs more than running it.
_INTERVALS_AT_ONCE: Final = 1 << 17
_INTERVALS_AT_ONCE_DEVICE: Final = 1 << 20

Ends: TypeAlias = Callable[[range, range], torch.Tensor]
"""From classes and a range of positions to int64 ``(2, intervals, classes * positions)``: where
what each position of each class sees of the other axis starts and stops, within 0 to its length;
empty where they meet or cross."""


class _Part(NamedTuple):
    """Positions that are worked on at once.

    Attributes:
        classes: the classes.
        positions: of each of them; the first one begins a line.
        ends: the intervals, see `Ends`.
    """

    classes: range
    positions: range
    ends: torch.Tensor


@dataclass(frozen=True)
class Sweep:
    """The intervals of every position, and the grid that they are swept over.

    Attributes:
        ends: see `Ends`.
        intervals: how many of them a position has.
        classes: number of classes.
        positions: how many there are along the axis whose blocks are the lines.
        per_line: positions in a line; the last may have fewer.
        length: of the other axis.
        block: its block size; the last block may be ragged.
        device: where the intervals are.
    """

    ends: Ends
    intervals: int
    classes: int
    positions: int
    per_line: int
    length: int
    block: int
    device: torch.device

    @property
    def lines(self) -> int:
        """Lines of a class."""
        return block_count(self.positions, self.per_line)

    @property
    def width(self) -> int:
        """Blocks along a line."""
        return block_count(self.length, self.block)

    def runs(self) -> BlockRuns:
        """Return the runs of blocks."""
        parts = [self._kinds(part) for part in self._parts()]
        steps = Steps.concatenated(parts) if parts else Steps.none(self.device)
        return BlockRuns.from_steps(self.classes, self.lines, self.width, steps)

    def counts(self) -> torch.Tensor:
        """Return how many blocks of each line are not empty, int64 ``(classes, lines)``."""
        counts = torch.zeros(self.classes * self.lines, dtype=torch.int64, device=self.device)
        for part in self._parts():
            self._count(part, counts)
        return counts.view(self.classes, self.lines)

    def _parts(self) -> Iterator[_Part]:
        """Yield all positions, as many at once as may be: lines of a class, or classes.

        None where none of them sees anything.
        """
        if not self.intervals:
            return
        on_cpu = self.device.type == "cpu"
        intervals = _INTERVALS_AT_ONCE if on_cpu else _INTERVALS_AT_ONCE_DEVICE
        at_once = max(1, intervals // (self.intervals * self.per_line)) * self.per_line
        classes_at_once = max(1, at_once // max(1, self.positions))
        for c in range(0, self.classes, classes_at_once):
            classes = range(c, min(self.classes, c + classes_at_once))
            for first in range(0, self.positions, at_once):
                part = range(first, min(self.positions, first + at_once))
                yield _Part(classes, part, self.ends(classes, part))

    def _kinds(self, part: _Part) -> Steps:
        """Return the kinds of blocks along the lines of a part."""
        ends = coalesced(part.ends)
        # Twice the block that an end lies in, one more unless it is where that block begins: one
        # number that says both which blocks the interval touches and which it fills.
        codes = block_counts(ends, self.block)
        codes += blocks_of(ends, self.block)
        if self.length % self.block:  # the end of the axis completes its last block
            codes[1].masked_fill_(ends[1] == self.length, 2 * self.width)
        codes[1].masked_fill_(ends[1] <= ends[0], 0)
        bounds = self._distinct(part, codes.flatten(0, 1).unbind())
        first, times = bounds[:-1], bounds.diff()
        low, high = taken(codes, first)
        ends = torch.stack((low, low + 1, high + 1, high)).view(2, 2, *low.shape)
        ends >>= 1
        torch.maximum(ends[1], ends[0], out=ends[1])
        cover = Cover(self._lines_of(part, first), ends, times.unsqueeze(0))
        return cover.kinds(self.positions, self.per_line, self.width)

    def _count(self, part: _Part, counts: torch.Tensor) -> None:
        """Add the counts of the lines of a part to those of all lines."""
        start, stop = part.ends
        low = blocks_of(start, self.block)
        high = block_counts(stop, self.block).masked_fill_(stop <= start, 0)
        first = self._distinct(part, (*low, *high))[:-1]
        low, high = taken(low, first), taken(high, first)
        ends = torch.stack((low, torch.maximum(low, high)))
        seen = Stretches(self._lines_of(part, first), ends, torch.ones_like(low))
        union = overlay(seen, self.width)
        lengths = union.place.diff().masked_fill_(union.value[:-1] == 0, 0)
        counts.index_add_(0, union.place[:-1] // pitch_of(self.width), lengths)

    def _distinct(self, part: _Part, tables: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return where positions of a line that are alike begin.

        Args:
            part: the positions, those of all its classes one after the other.
            tables: at least one, ``(positions,)``: what those that are alike have in common.

        Returns:
            int64 ``(n + 1,)``: the first of each `n` neighbours that are alike, and last the number
            of positions.
        """
        positions = len(part.classes) * len(part.positions)
        new = torch.ones(positions + 1, dtype=torch.bool, device=self.device)
        within = new[1:-1]
        torch.ne(tables[0][1:], tables[0][:-1], out=within)
        for table in tables[1:]:
            within |= table[1:] != table[:-1]
        new[:-1].view(len(part.classes), -1)[:, :: self.per_line] = True
        return new.nonzero().squeeze(1)

    def _lines_of(self, part: _Part, at: torch.Tensor) -> torch.Tensor:
        """Return the lines of positions of a part, those of all classes numbered through."""
        first = part.classes.start * self.lines * self.per_line + part.positions.start
        if len(part.classes) == 1:
            return blocks_of(at + first, self.per_line)
        class_ = at // len(part.positions)
        ragged = self.lines * self.per_line - len(part.positions)
        return blocks_of(at + first + class_ * ragged, self.per_line)


def coalesced(ends: torch.Tensor) -> torch.Tensor:
    """Join the intervals of each position that overlap or touch.

    Args:
        ends: int64 ``(2, intervals, positions)``: starts and stops.

    Returns:
        Intervals of the same shape and union, disjoint and apart; those left over are empty.
    """
    start, stop = ends
    if len(start) < 2:
        return ends
    if not bool((start[1:] >= start[:-1]).all()):
        start, order = start.sort(0)
        stop = stop.gather(0, order)
    starts, stops = [], []
    begin, end = start[0], stop[0]
    for following, its_end in zip(start[1:], stop[1:], strict=True):
        meets = following <= end
        starts.append(torch.where(meets, 0, begin))
        stops.append(torch.where(meets, 0, end))
        begin = torch.where(meets, begin, following)
        end = torch.where(meets, torch.maximum(end, its_end), its_end)
    return torch.stack((*starts, begin, *stops, end)).view(ends.shape)


def _sweep(solved: Solved, classes: Classes, grid: BlockGrid) -> Sweep:
    """Return the sweep of a closed form."""
    axes = [(grid.size.q_len, grid.block_size[0]), (grid.size.kv_len, grid.block_size[1])]
    (positions, per_line), (length, block) = axes if solved.form.index == "kv" else axes[::-1]
    check_positions(len(classes), positions)

    def ends(some: range, part: range) -> torch.Tensor:
        if len(some) == 1:
            return ends_of(solved, *classes.members[some.start], part)
        return ends_of_each(solved, classes.members[some.start : some.stop], part)

    return Sweep(
        ends,
        len(solved.form.spans),
        len(classes),
        positions,
        per_line,
        length,
        block,
        solved.values.device,
    )


def runs_of_form(solved: Solved, classes: Classes, grid: BlockGrid) -> BlockRuns:
    """Return the runs of blocks of a mask in closed form.

    Args:
        solved: the form; of the keys that a query sees, and then lines are rows of blocks, or of
            the queries that see a key, and then lines are columns.
        classes: the batches and heads that share one mask.
        grid: the blocks.
    """
    return _sweep(solved, classes, grid).runs()


def counts_of_form(solved: Solved, classes: Classes, grid: BlockGrid) -> torch.Tensor:
    """Return how many blocks of each line are not empty, int64 ``(classes, lines)``.

    Makes no runs; arguments as for `runs_of_form`.
    """
    return _sweep(solved, classes, grid).counts()
