"""The visits of each line of tiles, listed on the device that the mask's runs are on.

Lists are made for a kernel's own tile, whatever blocks the mask was given in, and kept with the
mask: a repeated call finds them.  They take 4 bytes for each tile that is not empty and 8 for each
line; neither the number of all tiles nor that of batches and heads matters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from flexfa4.frontend.csr import ranges
from flexfa4.frontend.masks.grid import FULL, PARTIAL
from flexfa4.frontend.masks.limits import check_listed
from flexfa4.frontend.masks.overlay import Stretches
from flexfa4.frontend.masks.runs import BlockRuns


@dataclass(frozen=True, eq=False)
class TileLists:
    """The visits of each line, see `primitives.tile_walk.Listed`.

    Attributes:
        begins: int32 ``(classes * lines * 2 + 1,)``.
        tiles: int32 ``(visits + 1,)``; of the last one nothing but that it is there is meant.
        counts: int64 ``(classes, lines)``: visits of each line.
    """

    begins: torch.Tensor
    tiles: torch.Tensor
    counts: torch.Tensor

    def visitors(self, tiles: int) -> torch.Tensor:
        """Return how many lines visit each of so many tiles, int32 ``(classes, tiles)``."""
        classes, visits = len(self.counts), len(self.tiles) - 1
        of_class = torch.arange(classes, device=self.tiles.device)
        of_visit = of_class.repeat_interleave(self.counts.sum(1), output_size=visits)
        found = torch.zeros(classes * tiles, dtype=torch.int32, device=self.tiles.device)
        place = of_visit * tiles + self.tiles[:visits]
        found.index_add_(0, place, torch.ones_like(place, dtype=torch.int32))
        return found.view(classes, tiles)


def listed(runs: BlockRuns, length: int, tile: int, *, ragged: bool = False) -> TileLists:
    """Return the visits of runs of tiles.

    Args:
        runs: the non-empty tiles of each line.
        length: keys.
        tile: keys of a tile.
        ragged: the last line reaches beyond what there is, and that has to be hidden: it has no
            full tiles.

    Raises:
        ArgumentError: there are more tiles than can be listed.
    """
    if length % tile:
        runs = with_partial_end(runs)
    if ragged and runs.lines:
        last = runs.line_of_run % runs.lines == runs.lines - 1
        runs = replace(runs, kind=runs.kind.masked_fill(last, PARTIAL))
    # Two lines for each: of its partial tiles and of its full ones.
    line = 2 * runs.line_of_run + (runs.kind == FULL)
    # Runs of a line descend, and the tiles of a run: the runs of each kind are taken from the last.
    back = torch.arange(len(line) - 1, -1, -1, device=line.device)
    order = back[line[back].argsort(stable=True)]
    line, lengths = line[order], runs.lengths[order]
    lines = 2 * runs.classes * runs.lines
    of_line = torch.zeros(lines + 1, dtype=torch.int64, device=line.device)
    of_line[1:].index_add_(0, line, lengths)
    begins = of_line.cumsum(0)
    check_listed(int(begins[-1]))
    _run, tiles = ranges(1 - runs.stop[order].to(torch.int64), lengths)
    counts = begins[::2].diff().view(runs.classes, runs.lines)
    # One more: a kernel may look at the first tile of a line that has none.
    tiles = torch.nn.functional.pad(tiles.neg_(), (0, 1))
    return TileLists(begins.to(torch.int32), tiles.to(torch.int32), counts)


def halves_of(whole: TileLists, halves: TileLists) -> torch.Tensor:
    """Return which halves of a tile of queries take part in each visit, int32 ``(visits + 1,)``.

    Bit 0 stands for the first half, bit 1 for the second.

    Args:
        whole: the visits of each line.
        halves: those of lines of half as many queries each, for the same tiles of keys.
    """
    lines, half_lines = whole.counts.shape[1], halves.counts.shape[1]
    (line, tile), (own, own_tile) = _visits(whole), _visits(halves)
    width = 1 + int(whole.tiles.amax())
    known = own * width + own_tile
    flags = torch.zeros_like(tile)
    for half in range(2):
        of_class = 2 * (line % lines) + half
        asked = (line // lines * half_lines + of_class) * width + tile
        flags |= (torch.isin(asked, known) & (of_class < half_lines)).to(flags.dtype) << half
    return torch.nn.functional.pad(flags, (0, 1)).to(torch.int32)


def _visits(lists: TileLists) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the line, of all classes, and the tile of each visit, int64."""
    counts = lists.counts.flatten()
    line = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    return line, lists.tiles[:-1].long()


def with_partial_end(runs: BlockRuns) -> BlockRuns:
    """Return the runs with the last tile of every line partial, if it is there at all.

    Of a tile that reaches beyond the last key, a kernel has to hide the keys that do not exist.
    """
    at_end = (runs.kind == FULL) & (runs.stop == runs.width)
    whole = at_end & (runs.stop - runs.start == 1)
    split = at_end & ~whole
    of, part = ranges(torch.zeros_like(runs.start, dtype=torch.int64), 1 + split.to(torch.int64))
    second = part == 1  # the last tile, cut off its run
    start, stop, kind = runs.start[of].long(), runs.stop[of].long(), runs.kind[of]
    first_of_two = split[of] & ~second
    start = torch.where(second, stop - 1, start)
    stop = torch.where(first_of_two, stop - 1, stop)
    kind = torch.where(second | whole[of], PARTIAL, kind)
    ends = torch.stack((start, stop))
    line = runs.line_of_run[of]
    return BlockRuns.from_sorted(runs.classes, runs.lines, runs.width, Stretches(line, ends, kind))
