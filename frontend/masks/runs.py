"""Runs of blocks: which blocks of a mask are not empty, as a list of runs for each line of blocks.

A line is a row of blocks (one block of queries and its key blocks) or, transposed, a column.  A run
is a stretch of blocks of one kind along a line.  Masks have few runs in a line, so this takes
memory for what varies rather than for each block.

Made by `refine` and `sweep`; does not know masks, only their blocks.  Everything but
`line` and `every_line` is vectorised and runs on the device of the tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import torch

from flexfa4.frontend.csr import offsets_of_lengths, offsets_of_owners, ranges
from flexfa4.frontend.gather import taken
from flexfa4.frontend.lanes import arange
from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL, block_count, block_counts
from flexfa4.frontend.masks.limits import check_listed
from flexfa4.frontend.masks.overlay import Steps, Stretches, overlay, pitch_of

BlockRun: TypeAlias = tuple[int, int, int]
"""Blocks ``start ... stop - 1`` of a line, and their kind, PARTIAL or FULL."""

Priority = Literal["lpt", "spt"]
"""Which work comes first: "lpt", the longest processing time, or "spt", the shortest."""

# In a sum of kinds over two neighbouring lines, those of the second line count this much.
_SECOND: Final = FULL + 1


@dataclass(frozen=True, eq=False)
class Cover:
    """What rows that are joined to lines cover of the blocks of these lines.

    Attributes:
        line: int64, broadcasts to the shape of a start: the line that rows are joined to.
        ends: int64 ``(2, 2, ...)``: starts and stops of what rows touch, seeing something of each
            block, and of what they fill, seeing all of it; ``start <= stop``.
        rows: int64, of as many dimensions as a start: how many rows that holds for.
    """

    line: torch.Tensor
    ends: torch.Tensor
    rows: torch.Tensor

    def kinds(self, rows: int, per_line: int, width: int) -> Steps:
        """Return the kinds of blocks along the lines, int8, settled.

        Args:
            rows: how many rows a class has.
            per_line: how many rows make a line; the last one of a class may have fewer.
            width: blocks along a line.
        """
        radix = per_line + 1  # more than the rows that fill a block: one sum tells both counts
        weight = torch.stack((self.rows * radix, self.rows))
        sums = overlay(Stretches(self.line, self.ends, weight), width).settled()
        present: int | torch.Tensor = per_line
        if rows % per_line:
            line = sums.place // pitch_of(width) % block_count(rows, per_line)
            present = (rows - line * per_line).clamp(max=per_line)
        touched, filled = sums.value != 0, sums.value % radix == present
        return Steps(sums.place, touched.view(torch.int8) + filled.view(torch.int8))


@dataclass(frozen=True, eq=False)
class Rectangles:
    """Rectangles of blocks of one kind: int64 tensors ``(n,)``.

    Attributes:
        class_: the class of each.
        first, lines: its first line, and how many it covers.
        start, stop: the blocks ``start ... stop - 1`` that it covers of each line.
        kind: EMPTY, PARTIAL or FULL.
    """

    class_: torch.Tensor
    first: torch.Tensor
    lines: torch.Tensor
    start: torch.Tensor
    stop: torch.Tensor
    kind: torch.Tensor

    @classmethod
    def concatenated(cls, parts: Sequence[Rectangles]) -> Rectangles:
        """Return the rectangles of all parts; at least one part."""
        return cls(
            torch.cat([p.class_ for p in parts]),
            torch.cat([p.first for p in parts]),
            torch.cat([p.lines for p in parts]),
            torch.cat([p.start for p in parts]),
            torch.cat([p.stop for p in parts]),
            torch.cat([p.kind for p in parts]),
        )


@dataclass(frozen=True, eq=False)
class BlockList:
    """Blocks of one kind in CSR form.

    Attributes:
        offsets: int64 ``(classes, lines + 1)``: where each line begins in `indices`.
        indices: int32 ``(blocks,)``: positions along the line, ascending within one.
    """

    offsets: torch.Tensor
    indices: torch.Tensor


@dataclass(frozen=True, eq=False)
class BlockRuns:
    """The non-empty blocks of a mask, line by line, for each class of batches and heads.

    Runs of a line ascend, do not overlap, and are as long as they can be: two of one kind never
    touch.  So equal structures have equal tensors.

    Attributes:
        classes: number of classes (`classes.Classes`).
        lines: number of lines, rows of blocks or columns.
        width: number of blocks along a line.
        offsets: int64 ``(classes * lines + 1,)``: line ``l`` of class ``c`` has the runs
            ``offsets[c * lines + l]`` to (not including) ``offsets[c * lines + l + 1]``.
        start, stop: int32 ``(runs,)``: the blocks ``start ... stop - 1`` of the line.
        kind: int8 ``(runs,)``: PARTIAL or FULL.
    """

    classes: int
    lines: int
    width: int
    offsets: torch.Tensor
    start: torch.Tensor
    stop: torch.Tensor
    kind: torch.Tensor

    # ---- made from -------------------------------------------------------------------------------

    @classmethod
    def from_rectangles(
        cls,
        classes: int,
        lines: int,
        width: int,
        rectangles: Rectangles,
    ) -> BlockRuns:
        """Return the runs of disjoint rectangles of blocks.

        Args:
            classes: see the class.
            lines: see the class.
            width: see the class.
            rectangles: in any order; those of kind EMPTY or without blocks are ignored.
        """
        start, stop, kind = rectangles.start, rectangles.stop, rectangles.kind
        kept = ((kind != EMPTY) & (start < stop) & (rectangles.lines > 0)).nonzero().squeeze(1)
        first = rectangles.class_ * lines + rectangles.first
        of, line = ranges(first[kept], rectangles.lines[kept])
        of = kept[of]  # the rectangle of each run
        order = (line * width + start[of]).argsort()
        of, line = of[order], line[order]
        runs = Stretches(line, torch.stack((start[of], stop[of])), kind[of])
        return cls.from_sorted(classes, lines, width, runs)

    @classmethod
    def from_sorted(cls, classes: int, lines: int, width: int, runs: Stretches) -> BlockRuns:
        """Return runs that are sorted and disjoint already; where two of a kind touch, join them.

        Args:
            classes: see the class.
            lines: see the class.
            width: see the class.
            runs: ``(n,)``, none empty; the line is ``class * lines + line``, the weight the kind.
        """
        place = torch.add(runs.ends, runs.line, alpha=pitch_of(width))
        kind = torch.stack((runs.weight, torch.full_like(runs.weight, EMPTY))).to(torch.int8)
        steps = Steps(place.t().flatten(), kind.t().flatten())
        return cls.from_steps(classes, lines, width, steps.settled())

    @classmethod
    def from_steps(cls, classes: int, lines: int, width: int, steps: Steps) -> BlockRuns:
        """Return the runs of kinds that are known along the lines.

        Args:
            classes: see the class.
            lines: see the class.
            width: see the class.
            steps: int8 kinds on lines ``class * lines + line``, settled.
        """
        pitch = pitch_of(width)
        kind = torch.nn.functional.pad(steps.value, (1, 0))  # EMPTY, which is 0, before the first
        changes = kind[1:] != kind[:-1]
        # At a change the run of the kind before ends, and one of the kind behind begins, but for
        # EMPTY: where is asked for both at once, (2, steps), as each answer waits for the device.
        both = kind.unfold(0, len(changes), 1)
        at = torch.logical_and(changes, both).nonzero()[:, 1]
        place = taken(steps.place, at).view(2, -1)
        offsets = offsets_of_owners(place[1], classes * lines, pitch)
        stop, start = (place % pitch).to(torch.int32)
        kind = taken(steps.value, at[len(start) :])
        return cls(classes, lines, width, offsets, start, stop, kind)

    @classmethod
    def from_kinds(cls, kinds: torch.Tensor) -> BlockRuns:
        """Return the runs of a table of kinds, int8 ``(classes, lines, width)``."""
        classes, lines, width = kinds.shape
        flat = torch.nn.functional.pad(kinds, (0, 1)).view(-1)  # each line ends EMPTY
        new = torch.ones_like(flat, dtype=torch.bool)
        torch.ne(flat[1:], flat[:-1], out=new[1:])
        place = new.nonzero().squeeze(1)
        return cls.from_steps(classes, lines, width, Steps(place, taken(flat, place)))

    # ---- asked for -------------------------------------------------------------------------------

    @property
    def line_of_run(self) -> torch.Tensor:
        """The line of each run, ``class * lines + line``, int64 ``(runs,)``."""
        return torch.repeat_interleave(self.offsets.diff(), output_size=len(self.start))

    @property
    def lengths(self) -> torch.Tensor:
        """How many blocks each run has, int64 ``(runs,)``."""
        return (self.stop - self.start).to(torch.int64)

    def lengths_of(self, kind: int) -> torch.Tensor:
        """Return `lengths`, with 0 for runs of another kind."""
        return torch.where(self.kind == kind, self.lengths, 0)

    def counts(self, kind: int | None = None) -> torch.Tensor:
        """Return how many blocks of each line are not empty, int64 ``(classes, lines)``.

        Args:
            kind: PARTIAL or FULL, to count blocks of that kind only.
        """
        lengths = self.lengths if kind is None else self.lengths_of(kind)
        before = offsets_of_lengths(lengths)
        return taken(before, self.offsets).diff().view(self.classes, self.lines)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the tensors."""
        return sum(t.nbytes for t in (self.offsets, self.start, self.stop, self.kind))

    def line(self, class_: int, line: int) -> list[BlockRun]:
        """Return the runs of one line."""
        first, last = self.offsets[class_ * self.lines + line :][:2].tolist()
        runs = (t[first:last].tolist() for t in (self.start, self.stop, self.kind))
        return list(zip(*runs, strict=True))

    def every_line(self, class_: int) -> list[list[BlockRun]]:
        """Return `line` for every line of a class."""
        at = self.offsets[class_ * self.lines :][: self.lines + 1].tolist()
        found = (t[at[0] : at[-1]].tolist() for t in (self.start, self.stop, self.kind))
        runs = list(zip(*found, strict=True))
        return [runs[a - at[0] : b - at[0]] for a, b in itertools.pairwise(at)]

    def to_kinds(self) -> torch.Tensor:
        """Return the kind of every block, int8 ``(classes, lines, width)``."""
        size = self.classes * self.lines * self.width
        at = self.line_of_run * self.width
        steps = torch.zeros(size + 1, dtype=torch.int8, device=at.device)
        steps.index_add_(0, at + self.start, self.kind)
        steps.index_add_(0, at + self.stop, -self.kind)
        kinds = steps.cumsum(0, dtype=torch.int8)[:size]
        return kinds.view(self.classes, self.lines, self.width)

    def lists(self) -> tuple[BlockList, BlockList]:
        """Return every partial block, and every full one.

        Raises:
            ArgumentError: there are more of a kind than can be listed.
        """
        # Both kinds at once, (2, ...), the partial blocks before the full ones: on a GPU starting
        # the operations is what takes time.
        count, device = len(self.start), self.start.device
        each = arange(PARTIAL, FULL + 1, device).unsqueeze(1)
        lengths = ((self.stop - self.start) * (self.kind == each)).view(-1)
        before = offsets_of_lengths(lengths)
        partial, total = torch.stack((before[count], before[2 * count])).tolist()
        check_listed(partial)
        check_listed(total - partial)
        # As `ranges`, in 32 bits and without owners: there are far more blocks than runs.
        first = (self.start - before[:-1].view(2, count)).to(torch.int32).view(-1)
        indices = torch.repeat_interleave(first, lengths, output_size=total)
        indices += torch.arange(total, dtype=torch.int32, device=device)
        offsets = taken(before.as_strided((2, count + 1), (count, 1)), self.offsets)
        offsets[1].sub_(partial)
        lines = (self.classes, self.lines + 1)  # the last offset of a class is the next one's first
        of_partial, of_full = offsets.as_strided((2, *lines), (offsets.shape[1], self.lines, 1))
        return (
            BlockList(of_partial.contiguous(), indices[:partial]),
            BlockList(of_full.contiguous(), indices[partial:]),
        )

    # ---- the same otherwise ----------------------------------------------------------------------

    def transposed(self) -> BlockRuns:
        """Return the runs along the other axis: lines become positions, positions lines.

        Work and memory are those of both sets of runs, not of the blocks.
        """
        # Runs along a column begin and end where two neighbouring lines differ.  Lay each line over
        # itself and, with another weight, over its successor (there is one after the last):
        # stretches whose two kinds differ hold one such place in each of their columns.
        pair = self.line_of_run  # of a line and the one before it
        if self.classes > 1:
            pair = pair + pair // max(1, self.lines)
        ends = torch.stack((self.start, self.stop)).unsqueeze(1)
        weight = torch.stack((self.kind * _SECOND, self.kind))
        pairs = overlay(Stretches(torch.stack((pair, pair + 1)), ends, weight), self.width)
        place, weight = pairs.place[:-1], pairs.value[:-1]
        lengths = pairs.place.diff()
        lengths.masked_fill_(weight % (1 + _SECOND) == 0, 0)  # one kind in both
        # Along the columns, pair `class * pitch + line` is the place `line` of the line
        # `class * width + column`.
        pair, column = place // pitch_of(self.width), place % pitch_of(self.width)
        pitch = pitch_of(self.lines)
        first = torch.add(pair, column, alpha=pitch)
        if self.classes > 1:
            first.add_(pair // pitch, alpha=(self.width - 1) * pitch)
        of, place = ranges(first, lengths, pitch)
        place, order = place.sort()
        kind = taken(weight, taken(of, order)) // _SECOND
        return BlockRuns.from_steps(self.classes, self.width, self.lines, Steps(place, kind))

    def coarsened(self, lines_by: int, width_by: int) -> BlockRuns:
        """Return the runs of larger blocks, made of `lines_by` by `width_by` of these.

        A larger block is FULL if all its blocks are, EMPTY if all are, else PARTIAL; the last ones
        are made of fewer.
        """
        if lines_by == width_by == 1:
            return self
        lines, width = block_count(self.lines, lines_by), block_count(self.width, width_by)
        line = self.line_of_run
        class_ = line // max(1, self.lines)
        group = class_ * lines + (line - class_ * self.lines) // lines_by
        start, stop = self.start.to(torch.int64), self.stop.to(torch.int64)
        first, last = start // width_by, block_counts(stop, width_by)
        # A full run fills what it covers whole; the end of the line completes the last block.
        inner = block_counts(start, width_by)
        whole = torch.where(stop == self.width, last, stop // width_by)
        whole = torch.maximum(inner, torch.where(self.kind == FULL, whole, 0))
        ends = torch.stack((first, inner, last, whole)).view(2, 2, -1)
        joined = Cover(group, ends, torch.ones_like(group)).kinds(self.lines, lines_by, width)
        return BlockRuns.from_steps(self.classes, lines, width, joined)

    def cut(self, lines: range) -> BlockRuns:
        """Return the runs of a range of lines, of step 1, that lies within the lines."""
        if lines == range(self.lines):
            return self
        begins = torch.arange(self.classes, device=self.offsets.device).unsqueeze(1) * self.lines
        return self.taken(begins + torch.arange(lines.start, lines.stop, device=begins.device))

    def of_classes(self, classes: Sequence[int]) -> BlockRuns:
        """Return the runs of some of the classes, in the order given."""
        if list(classes) == list(range(self.classes)):
            return self
        at = torch.tensor(classes, dtype=torch.int64, device=self.offsets.device)
        return self.taken(at.unsqueeze(1) * self.lines + torch.arange(self.lines, device=at.device))

    def taken(self, lines: torch.Tensor) -> BlockRuns:
        """Return the runs of some lines.

        Args:
            lines: int64 ``(classes, lines)`` of the result: ``class * self.lines + line`` of each.
        """
        first = self.offsets[lines].view(-1)
        lengths = self.offsets[lines + 1].view(-1) - first
        _line, runs = ranges(first, lengths)
        return BlockRuns(
            lines.shape[0],
            lines.shape[1],
            self.width,
            offsets_of_lengths(lengths),
            self.start[runs],
            self.stop[runs],
            self.kind[runs],
        )

    def to(self, device: torch.device) -> BlockRuns:
        """Return the runs on a device."""
        if self.offsets.device == device:
            return self
        tensors = (t.to(device) for t in (self.offsets, self.start, self.stop, self.kind))
        return BlockRuns(self.classes, self.lines, self.width, *tensors)


def order(counts: torch.Tensor, priority: Priority) -> torch.Tensor:
    """Return the lines in the order in which to work on them, by their number of blocks.

    Args:
        counts: int64 ``(..., lines)``.
        priority: "lpt" or "spt".

    Returns:
        int32 ``(..., lines)``, a permutation; lines of equal work stay in order.
    """
    assert priority in get_args(Priority)
    return counts.argsort(dim=-1, descending=priority == "lpt", stable=True).to(torch.int32)
