"""Which blocks a `BlockMask` has and of which kind, whether or not they are written as lists.

Lists of blocks take four bytes for each block of the whole mask, four times over.  Blocks that were
found from a mask are therefore kept as runs (`FoundBlocks`) until somebody reads a list.  Blocks
that were given as lists, and those of torch's graphs, where only tensors of known shape exist, are
a table of kinds (`ListedKinds`).  Both answer the same questions.

Knows no mask functions, and refuses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import torch

from flexfa4.flex.block_lists import Lists, lists_by
from flexfa4.frontend.csr import offsets_of_owners
from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL
from flexfa4.frontend.masks.runs import BlockRuns, Rectangles

Pair: TypeAlias = tuple[int, int]


class BlockTable(Protocol):
    """The blocks of a mask: for each batch and head a table of kinds."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``(B, H, rows, columns)``."""

    @property
    def device(self) -> torch.device:
        """Where lists are written."""

    def kinds(self) -> torch.Tensor:
        """Return int8 `shape`: 0 empty, 1 partial, 2 full."""

    def share(self) -> float:
        """Return the share of the blocks that are computed, 1 where there are none."""

    def runs_of(self, batch: int, head: int) -> BlockRuns:
        """Return the runs of one batch and head, a single class."""

    def lists(self, *, full: bool) -> Lists:
        """Return the lists of the rows: partial pair, full pair (None without `full`)."""

    def transposed(self) -> BlockTable:
        """Return the same blocks with rows and columns exchanged."""

    def picked(self, positions: list[torch.Tensor]) -> BlockTable:
        """Return the part for some batches, heads and rows, int64 positions on the CPU."""

    def cropped(self, rows: int, columns: int) -> BlockTable:
        """Return the upper left part."""

    def without_ragged_full(self, lengths: Pair, block_size: Pair) -> BlockTable:
        """Return the blocks as torch has them: one that reaches beyond a length is never full."""

    def to(self, device: torch.device) -> BlockTable:
        """Return the same with lists on a device."""


@dataclass(frozen=True, eq=False)
class ListedKinds:
    """Blocks as a table, int8 ``(B, H, rows, columns)``, on the device of the lists."""

    table: torch.Tensor

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `BlockTable`."""
        b, h, rows, columns = self.table.shape
        return b, h, rows, columns

    @property
    def device(self) -> torch.device:
        """See `BlockTable`."""
        return self.table.device

    def kinds(self) -> torch.Tensor:
        """See `BlockTable`; one tensor always, so that what was made for it can be kept."""
        return self.table

    def share(self) -> float:
        """See `BlockTable`."""
        return float(self.table.ne(EMPTY).double().mean()) if self.table.numel() else 1.0

    def runs_of(self, batch: int, head: int) -> BlockRuns:
        """See `BlockTable`."""
        return BlockRuns.from_kinds(self.table[batch, head][None])

    def lists(self, *, full: bool) -> Lists:
        """See `BlockTable`."""
        return lists_by(self.table, full=full)

    def transposed(self) -> ListedKinds:
        """See `BlockTable`."""
        return ListedKinds(self.table.transpose(-2, -1))

    def picked(self, positions: list[torch.Tensor]) -> ListedKinds:
        """See `BlockTable`."""
        table = self.table
        for axis, at in enumerate(positions):
            table = table.index_select(axis, at.to(table.device))
        return ListedKinds(table)

    def cropped(self, rows: int, columns: int) -> ListedKinds:
        """See `BlockTable`."""
        return ListedKinds(self.table[:, :, :rows, :columns])

    def without_ragged_full(self, lengths: Pair, block_size: Pair) -> ListedKinds:
        """See `BlockTable`."""
        kinds = self.table
        for axis, (length, size) in enumerate(zip(lengths, block_size, strict=True)):
            if length % size:
                blocks = torch.arange(kinds.shape[2 + axis], device=kinds.device)
                last = (blocks == len(blocks) - 1).view(-1, *[1] * (1 - axis))
                kinds = torch.where(last & (kinds == FULL), PARTIAL, kinds)
        return ListedKinds(kinds)

    def to(self, device: torch.device) -> ListedKinds:
        """See `BlockTable`."""
        return ListedKinds(self.table.to(device))


@dataclass(frozen=True, eq=False)
class FoundBlocks:
    """Blocks that were found from a mask, as runs.

    Attributes:
        of: int64 ``(B, H)`` on the CPU: the class of each batch and head.
        runs: the runs of the rows of blocks of each class.
        device: where lists and tables are written.
    """

    of: torch.Tensor
    runs: BlockRuns
    device: torch.device

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `BlockTable`."""
        return self.of.shape[0], self.of.shape[1], self.runs.lines, self.runs.width

    def kinds(self) -> torch.Tensor:
        """See `BlockTable`; written anew each time."""
        kinds = self.runs.to_kinds().to(self.device)
        return kinds[self.of.to(self.device)]  # which torch's graphs can hold, too

    def share(self) -> float:
        """See `BlockTable`."""
        b, h, rows, columns = self.shape
        blocks = b * h * rows * columns
        computed = self.runs.counts().sum(1).cpu()[self.of].sum()
        return float(computed) / blocks if blocks else 1.0

    def runs_of(self, batch: int, head: int) -> BlockRuns:
        """See `BlockTable`."""
        return self.runs.of_classes([int(self.of[batch, head])])

    def lists(self, *, full: bool) -> Lists:
        """See `BlockTable`."""
        if not full:
            return (*self._pair(self.runs.kind != EMPTY), None, None)
        return (*self._pair(self.runs.kind == PARTIAL), *self._pair(self.runs.kind == FULL))

    def _pair(self, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        num, indices = (t.to(self.device) for t in _written(self.runs, kept))
        if torch.equal(self.of.reshape(-1), torch.arange(len(num))):  # no copies then
            return num.view(self.shape[:3]), indices.view(self.shape)
        of = self.of.to(self.device)
        return num[of], indices[of]

    def transposed(self) -> FoundBlocks:
        """See `BlockTable`."""
        return replace(self, runs=self.runs.transposed())

    def picked(self, positions: list[torch.Tensor]) -> FoundBlocks:
        """See `BlockTable`."""
        batches, heads, rows = positions
        lines = torch.arange(self.runs.classes)[:, None] * self.runs.lines + rows
        runs = self.runs.taken(lines.to(self.runs.offsets.device))
        return replace(self, of=self.of[batches][:, heads], runs=runs)

    def cropped(self, rows: int, columns: int) -> FoundBlocks:
        """See `BlockTable`."""
        runs = self.runs.cut(range(rows))
        line, kept = runs.line_of_run, runs.start < columns
        return replace(
            self,
            runs=replace(
                runs,
                width=columns,
                offsets=offsets_of_owners(line[kept], runs.classes * rows),
                start=runs.start[kept],
                stop=runs.stop[kept].clamp(max=columns),
                kind=runs.kind[kept],
            ),
        )

    def without_ragged_full(self, lengths: Pair, block_size: Pair) -> FoundBlocks:
        """See `BlockTable`."""
        runs = self.runs
        ragged = [bool(length % size) for length, size in zip(lengths, block_size, strict=True)]
        if not any(ragged) or not len(runs.start):
            return self
        line = runs.line_of_run
        kind, start, stop = runs.kind.long(), runs.start.long(), runs.stop.long()
        last = runs.width - 1
        if ragged[0]:
            kind = torch.where(line % runs.lines == runs.lines - 1, PARTIAL, kind)
        if ragged[1]:  # the last block of a run of full ones becomes a run of its own
            ends = ((kind == FULL) & (stop == runs.width)).nonzero().squeeze(1)
            line = torch.cat((line, line[ends]))
            start = torch.cat((start, torch.full_like(ends, last)))
            stop = torch.cat((stop.index_fill(0, ends, last), torch.full_like(ends, runs.width)))
            kind = torch.cat((kind, torch.full_like(ends, PARTIAL)))
        class_ = line // runs.lines
        first, one = line - class_ * runs.lines, torch.ones_like(line)
        parted = Rectangles(class_, first, one, start, stop, kind)
        return replace(
            self,
            runs=BlockRuns.from_rectangles(runs.classes, runs.lines, runs.width, parted),
        )

    def to(self, device: torch.device) -> FoundBlocks:
        """See `BlockTable`."""
        return replace(self, device=device)


def _written(runs: BlockRuns, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the list pair of the runs that are kept, for each class.

    Each line lists the blocks of its runs, and after them those of the gaps between: stretches of
    consecutive numbers.  So a list is the running sum of its steps, 1 but where a stretch begins.
    """
    lines, width = runs.classes * runs.lines, runs.width
    line, start, stop = (t[kept].long() for t in (runs.line_of_run, runs.start, runs.stop))
    ends = (stop - start).cumsum(0)
    first = offsets_of_owners(line, lines)
    before = torch.nn.functional.pad(ends, (1, 0))[first]  # blocks of all lines before each
    counts = before.diff()
    # A gap follows each run, and one precedes the first of each line.
    every = torch.arange(lines, device=line.device)
    gap_line, gap = torch.cat((every, line)), torch.cat((torch.zeros_like(every), stop))
    seen = torch.cat((torch.zeros_like(every), ends - before[line]))  # blocks of the line before it
    place = torch.cat(
        (line * width + (ends - (stop - start)) - before[line],
         gap_line * width + counts[gap_line] + gap - seen)
    )  # fmt: skip
    value = torch.cat((start, gap))
    # An empty stretch begins where the next one does, whose first number is no smaller.
    within = place < (torch.cat((line, gap_line)) + 1) * width
    place, value = place[within], value[within]
    order = (place * (width + 1) + value).argsort()
    place, value = place[order], value[order]
    last = place.diff(append=place.new_full((1,), -1)) != 0
    place, value = place[last], value[last]
    steps = torch.ones(lines * width, dtype=torch.int32, device=line.device)
    jumps = value.diff(prepend=value.new_zeros(1)) - place.diff(prepend=place.new_zeros(1)) + 1
    jumps[:1] = value[:1]
    steps[place] = jumps.to(torch.int32)
    indices = steps.cumsum_(0).view(runs.classes, runs.lines, width)
    return counts.to(torch.int32).view(runs.classes, runs.lines), indices
