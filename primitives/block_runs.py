"""Iteration over the non-empty blocks of a mask, as long runs of keys.

A query tile meets the key blocks of its rows; neighbouring non-empty blocks are joined into runs of
at most a given width, so that one matrix product covers them.  Which columns of a run belong to
partial blocks is kept: mask work is done there and nowhere else.

Plain Python over small tensors; independent of the device that runs the tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from flexfa4.frontend.blocks import EMPTY, PARTIAL


@dataclass(frozen=True)
class Run:
    """Keys ``start ... stop`` of which the ranges in `partial` need the mask."""

    start: int
    stop: int
    partial: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class QueryTile:
    """Queries ``start ... stop`` and the runs of keys that they see."""

    start: int
    stop: int
    runs: tuple[Run, ...]


def merge_rows(kinds: torch.Tensor, rows: int) -> torch.Tensor:
    """Join `rows` block rows into one: full if all are full, empty if all are empty.

    Args:
        kinds: int8 ``(nq, nk)``.
        rows: how many block rows one query tile spans.

    Returns:
        int8 ``(ceil(nq / rows), nk)``.
    """
    nq, nk = kinds.shape
    missing = -nq % rows
    if missing:  # repeat the last row: it changes neither "all full" nor "all empty"
        kinds = torch.cat((kinds, kinds[-1:].expand(missing, nk)))
    grouped = kinds.view(-1, rows, nk)
    low, high = grouped.amin(1), grouped.amax(1)
    return torch.where(low == high, low, torch.full_like(low, PARTIAL))


def runs_of_row(kinds: list[int], block: int, length: int, width: int) -> tuple[Run, ...]:
    """Return the runs of one row of blocks.

    Args:
        kinds: kind of each key block.
        block: keys in a block.
        length: number of keys; the last block may be ragged.
        width: largest number of keys in a run, at least `block`.
    """
    runs: list[Run] = []
    start = stop = -1
    partial: list[tuple[int, int]] = []

    def close() -> None:
        if start >= 0:
            runs.append(Run(start, stop, tuple(partial)))

    for j, kind in enumerate(kinds):
        if kind == EMPTY:
            continue
        low, high = j * block, min(length, (j + 1) * block)
        if low != stop or high - start > width:
            close()
            start, partial = low, []
        stop = high
        if kind == PARTIAL:
            if partial and partial[-1][1] == low:
                partial[-1] = (partial[-1][0], high)
            else:
                partial.append((low, high))
    close()
    return tuple(runs)


def query_tiles(
    kinds: torch.Tensor, block: tuple[int, int], lengths: tuple[int, int], tile: tuple[int, int]
) -> Iterator[QueryTile]:
    """Yield the query tiles of a mask, with their runs of keys.

    Args:
        kinds: int8 ``(nq, nk)`` on the CPU.
        block: queries and keys in a block.
        lengths: number of queries and keys.
        tile: queries in a tile (a multiple of the block's) and the largest width of a run.
    """
    merged = merge_rows(kinds, tile[0] // block[0]).tolist()
    for i, row in enumerate(merged):
        start, stop = i * tile[0], min(lengths[0], (i + 1) * tile[0])
        yield QueryTile(start, stop, runs_of_row(row, block[1], lengths[1], tile[1]))


def dense_tiles(lengths: tuple[int, int], tile: tuple[int, int]) -> Iterator[QueryTile]:
    """Yield the query tiles where every key is visible."""
    q_len, kv_len = lengths
    runs = tuple(Run(k, min(kv_len, k + tile[1])) for k in range(0, kv_len, tile[1]))
    for q in range(0, q_len, tile[0]):
        yield QueryTile(q, min(q_len, q + tile[0]), runs)
