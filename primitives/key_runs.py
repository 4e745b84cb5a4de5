"""Iteration over the non-empty blocks of a mask, as long runs of keys.

A query tile meets the key blocks of its rows; neighbouring non-empty blocks are joined into runs of
at most a given width, so that one matrix product covers them.  Which columns of a run belong to
partial blocks is kept: mask work is done there and nowhere else.

Where a mask is a band along the diagonal, neighbouring tiles see the same but for a shift, and are
joined into one tile with copies, whose products are then one batch.

Plain Python over the runs of blocks that mask analysis found; independent of the device that runs
the tiles.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from flexfa4.frontend.masks.grid import PARTIAL
from flexfa4.frontend.masks.runs import BlockRun


@dataclass(frozen=True)
class KeyRun:
    """Keys ``start ... stop - 1``, of which the ranges in `partial` need the mask."""

    start: int
    stop: int
    partial: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class QueryTile:
    """Queries ``start ... stop - 1`` and the runs of keys that they see.

    Attributes:
        copies: how many tiles like this one there are, itself included: each begins where the one
            before ends, and its runs are as many keys further.
    """

    start: int
    stop: int
    runs: tuple[KeyRun, ...]
    copies: int = 1

    @property
    def rows(self) -> int:
        """Queries of one copy."""
        return self.stop - self.start

    @property
    def end(self) -> int:
        """Where the queries of the last copy end."""
        return self.start + self.copies * self.rows

    @property
    def widest(self) -> int:
        """Keys in the longest run; 0 for none."""
        return max((run.stop - run.start for run in self.runs), default=0)


def _joined(line: Sequence[BlockRun]) -> Iterator[list[BlockRun]]:
    """Yield the runs of a line in groups, between which there are empty blocks."""
    group: list[BlockRun] = []
    for run in line:
        if group and run[0] != group[-1][1]:
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def runs_of_line(
    line: Sequence[BlockRun], block: int, length: int, width: int
) -> tuple[KeyRun, ...]:
    """Return the runs of keys of one line of blocks.

    Args:
        line: its runs of blocks, as `frontend.masks.runs` keeps them: ascending, disjoint.
        block: keys in a block.
        length: number of keys; the last block may be ragged.
        width: largest number of keys in a run, a multiple of `block`.
    """
    found: list[KeyRun] = []
    for group in _joined(line):
        first, last = group[0][0] * block, min(length, group[-1][1] * block)
        masked = [(a * block, min(length, b * block)) for a, b, kind in group if kind == PARTIAL]
        for start in range(first, last, width):
            stop = min(last, start + width)
            while masked and masked[0][1] <= start:
                del masked[0]
            if masked and masked[0][0] < stop:
                found.append(KeyRun(start, stop, tuple(_within(masked, start, stop))))
            else:
                found.append(_full_run(start, stop))
    return tuple(found)


@functools.lru_cache(maxsize=1 << 12)
def _full_run(start: int, stop: int) -> KeyRun:
    """Return a run without partial blocks; tiles of one mask have many in common."""
    return KeyRun(start, stop)


def _within(ranges: list[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield what of ascending ranges, of which none ends before `start`, lies within bounds."""
    for a, b in ranges:
        if a >= stop:
            return
        yield max(a, start), min(b, stop)


def query_tiles(
    lines: Iterable[Sequence[BlockRun]],
    block: tuple[int, int],
    lengths: tuple[int, int],
    width: int,
) -> Iterator[QueryTile]:
    """Yield the query tiles of a mask, with their runs of keys.

    Args:
        lines: the runs of blocks of each tile of queries.
        block: queries in a tile and keys in a block.
        lengths: number of queries and keys.
        width: see `runs_of_line`.
    """
    for i, line in enumerate(lines):
        start, stop = i * block[0], min(lengths[0], (i + 1) * block[0])
        yield QueryTile(start, stop, runs_of_line(line, block[1], lengths[1], width))


def joined_along_diagonal(tiles: Iterable[QueryTile], scores_at_once: int) -> Iterator[QueryTile]:
    """Yield the tiles with those in a row that are copies of each other joined.

    Args:
        tiles: as `query_tiles` yields them.
        scores_at_once: most scores of one run, all copies together; a single tile may have more.
    """
    first: QueryTile | None = None
    copies = most = 0
    for tile in tiles:
        if first is not None and copies < most and _is_copy(tile, first):
            copies += 1
            continue
        if first is not None:
            yield replace(first, copies=copies)
        first, copies = tile, 1
        most = scores_at_once // (tile.rows * tile.widest) if tile.runs else 1
    if first is not None:
        yield replace(first, copies=copies)


def _is_copy(tile: QueryTile, first: QueryTile) -> bool:
    """Whether a tile is one before it, moved along the diagonal."""
    by = tile.start - first.start
    return (
        tile.rows == first.rows
        and len(tile.runs) == len(first.runs)
        and all(
            run.start == other.start + by
            and run.stop == other.stop + by
            and run.partial == tuple((a + by, b + by) for a, b in other.partial)
            for run, other in zip(tile.runs, first.runs, strict=True)
        )
    )


def dense_tiles(lengths: tuple[int, int], tile: tuple[int, int]) -> Iterator[QueryTile]:
    """Yield the query tiles where every key is visible."""
    q_len, kv_len = lengths
    runs = tuple(KeyRun(k, min(kv_len, k + tile[1])) for k in range(0, kv_len, tile[1]))
    for q in range(0, q_len, tile[0]):
        yield QueryTile(q, min(q_len, q + tile[0]), runs)
