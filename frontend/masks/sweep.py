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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import torch

from flexfa4.frontend.masks.classes import Classes
from flexfa4.frontend.masks.grid import BlockGrid, block_count, block_counts, blocks_of
from flexfa4.frontend.masks.limits import check_positions
from flexfa4.frontend.masks.overlay import Stretches, overlay
from flexfa4.frontend.masks.runs import BlockRuns, Cover
from flexfa4.frontend.masks.solving.solved import Solved, ends_of, ends_of_each

# Intervals evaluated at once, of which some ten temporaries are alive: of 1 MB each on a CPU, which
# its caches hold; of 8 MB elsewhere, where starting an operation costs more than running it.
_INTERVALS_AT_ONCE: Final = 1 << 17
_INTERVALS_AT_ONCE_DEVICE: Final = 1 << 20

Ends: TypeAlias = Callable[[range, range], tuple[torch.Tensor, torch.Tensor]]
"""From classes and a range of positions to ``(start, stop)``, int64 ``(intervals, classes *
positions)``: what each position of each class sees of the other axis, ``0 <= start``, ``stop <=
length``; empty where they meet or cross."""


class _Part(NamedTuple):
    """Positions that are worked on at once.

    Attributes:
        line: int64 ``(positions,)``: the line of each, those of all classes numbered through.
        start, stop: their intervals, see `Ends`.
    """

    line: torch.Tensor
    start: torch.Tensor
    stop: torch.Tensor


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
        parts = [Stretches.none(self.device)]
        parts += [self._kinds(part) for part in self._parts()]
        return BlockRuns.from_sorted(
            self.classes, self.lines, self.width, Stretches.concatenated(parts)
        )

    def counts(self) -> torch.Tensor:
        """Return how many blocks of each line are not empty, int64 ``(classes, lines)``."""
        parts = [torch.empty(0, dtype=torch.int64, device=self.device)]
        parts += [self._counts(part) for part in self._parts()]
        return torch.cat(parts).view(self.classes, self.lines)

    def _parts(self) -> Iterator[_Part]:
        """Yield all positions, as many at once as may be: lines of a class, or classes."""
        on_cpu = self.device.type == "cpu"
        intervals = _INTERVALS_AT_ONCE if on_cpu else _INTERVALS_AT_ONCE_DEVICE
        at_once = max(1, intervals // (max(1, self.intervals) * self.per_line)) * self.per_line
        classes_at_once = max(1, at_once // max(1, self.positions))
        for c in range(0, self.classes, classes_at_once):
            classes = range(c, min(self.classes, c + classes_at_once))
            numbers = torch.arange(c, classes.stop, device=self.device).unsqueeze(1)
            for first in range(0, self.positions, at_once):
                part = range(first, min(self.positions, first + at_once))
                along = torch.arange(part.start, part.stop, device=self.device)
                line = numbers * self.lines + blocks_of(along, self.per_line)
                yield _Part(line.flatten(), *self.ends(classes, part))

    def _kinds(self, part: _Part) -> Stretches:
        """Return the stretches of blocks of a part, sorted; the weight is the kind."""
        start, stop = coalesced(part.start, part.stop)
        # Twice the block that an end lies in, one more unless it is where that block begins: one
        # number that says both which blocks the interval touches and which it fills.
        low = blocks_of(start, self.block) + block_counts(start, self.block)
        high = blocks_of(stop, self.block) + block_counts(stop, self.block)
        if self.length % self.block:  # the end of the axis completes its last block
            high = torch.where(stop == self.length, 2 * self.width, high)
        high = torch.where(stop > start, high, 0)
        first, times = _distinct(part.line, low, high)
        low, high = low[:, first], high[:, first]
        of = part.line[first].expand_as(low)
        return Cover(
            touched=_stretches(of, low >> 1, (high + 1) >> 1, torch.ones_like(of)),
            filled=_stretches(of, (low + 1) >> 1, high >> 1, times.expand_as(of)),
        ).kinds(self.positions, self.per_line, self.width)

    def _counts(self, part: _Part) -> torch.Tensor:
        """Return the counts of the lines of a part."""
        low = blocks_of(part.start, self.block)
        high = torch.where(part.stop > part.start, block_counts(part.stop, self.block), 0)
        first, _times = _distinct(part.line, low, high)
        low, high = low[:, first], high[:, first]
        lines = part.line - part.line[0]
        of = lines[first].expand_as(low)
        union = overlay(_stretches(of, low, high, torch.ones_like(of)), self.width)
        counts = low.new_zeros(int(lines[-1]) + 1)
        return counts.index_add_(0, union.line, union.stop - union.start)


def _distinct(
    line: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first of the positions of a line that are alike, and how many they are.

    Those are neighbours whose ends, ``(intervals, positions)``, are the same.
    """
    new = torch.ones_like(line, dtype=torch.bool)
    new[1:] = line[1:] != line[:-1]
    for ends in (*low, *high):
        new[1:] |= ends[1:] != ends[:-1]
    first = new.nonzero().squeeze(1)
    return first, first.diff(append=first.new_full((1,), len(line)))


def coalesced(start: torch.Tensor, stop: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Join the intervals of each position that overlap or touch.

    Args:
        start: int64 ``(intervals, positions)``.
        stop: the same.

    Returns:
        Intervals of the same shape and union, disjoint and apart; those left over are empty.
    """
    if len(start) < 2:
        return start, stop
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
    return torch.stack((*starts, begin)), torch.stack((*stops, end))


def _stretches(
    line: torch.Tensor, start: torch.Tensor, stop: torch.Tensor, weight: torch.Tensor
) -> Stretches:
    """Return stretches of ``(intervals, positions)``; those that would end before they start are
    empty."""
    stop = torch.maximum(start, stop)
    return Stretches(line.flatten(), start.flatten(), stop.flatten(), weight.flatten())


def _sweep(solved: Solved, classes: Classes, grid: BlockGrid) -> Sweep:
    """Return the sweep of a closed form."""
    axes = [(grid.size.q_len, grid.block_size[0]), (grid.size.kv_len, grid.block_size[1])]
    (positions, per_line), (length, block) = axes if solved.form.index == "kv" else axes[::-1]
    check_positions(len(classes), positions)

    def ends(some: range, part: range) -> tuple[torch.Tensor, torch.Tensor]:
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
