"""Sizes and runs of blocks -> chunks of heads, tiles of queries and runs of keys.

A chunk is what is worked on at once: a range of batches and heads that share one mask (a class, as
mask analysis calls it), sized so that its tile of scores stays in the caches.  Grouped heads (GQA)
of one key head are packed into the rows of one matrix product.  The height of a query tile is
chosen by cost: tall tiles need fewer and larger products, short ones waste less beside a narrow
band.  Where that band follows the diagonal, many short tiles make one batch of products.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from flexfa4.frontend.masks.runs import BlockRuns
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.sizes import Sizes
from flexfa4.primitives.key_runs import (
    QueryTile,
    dense_tiles,
    joined_along_diagonal,
    query_tiles,
)

# Scores held at once: 1M of fp32 are 4 MB. Measured on 2 cores with 1 MB of L2 each (S = 8192, 8
# heads, D = 64): 256 x 512 x 8 heads was fastest; half and double of it cost 2 to 6 % more.
SCORES_AT_ONCE: Final = 1 << 20
# With work for each score beside the products there are more temporaries of that size (bar cores,
# see `lowering`, which work piece by piece).
SCORES_AT_ONCE_WITH_CORE: Final = 1 << 19
# Elements of a vector for each score (or each pair of positions, where all heads share it) held at
# once: of each temporary, 4 MB of fp32. Measured: 8 MB take 3 to 5 % less time, 1 MB 20 % more.
VECTORS_AT_ONCE: Final = 1 << 20
RUN_WIDTH: Final = 512
MAX_TILE_Q: Final = 256
# Cost model: seconds for a score (both products and softmax) and for a run (dispatch of its ops).
_SECONDS_PER_SCORE: Final = 1.8e-9
_SECONDS_PER_RUN: Final = 6e-5
# A score of a tile of few rows costs more, by the share that this many rows have in it: measured
# products of 128, 64, 32 and 16 rows reach 97, 93, 88 and 78 Gflop/s on a core.
_ROWS_OF_OVERHEAD: Final = 3.0
# Blocks of tiles with copies; and the seconds from which on it pays to look for these, once.
_BAND_BLOCK: Final = 16
_WORTH_BANDS: Final = 2e-3


class Problem(NamedTuple):
    """The sizes of a call, as far as the schedule depends on them; schedules are kept by it.

    Attributes:
        sizes: sizes of the call.
        join_batches: several batches may be worked on at once.
        scores_at_once: see `SCORES_AT_ONCE`.
        pairs_at_once: pairs of a query and a key, whatever the number of heads; None for any.
        bands: tiles may have copies, where the mask follows the diagonal.
    """

    sizes: Sizes
    join_batches: bool
    scores_at_once: int = SCORES_AT_ONCE
    pairs_at_once: int | None = None
    bands: bool = False

    @property
    def group(self) -> int:
        """Query heads for each key head."""
        return self.sizes.heads // self.sizes.kv_heads

    def for_vectors(self, shared: int, separate: int) -> Problem:
        """Return the problem with room for vectors, see `CpuPlan.shared_vector`."""
        if not shared and not separate:
            return self
        scores, pairs = self.scores_at_once, self.pairs_at_once
        if separate:
            scores = min(scores, max(1, VECTORS_AT_ONCE // separate))
        if shared:
            pairs = max(1, VECTORS_AT_ONCE // shared)
        return self._replace(scores_at_once=scores, pairs_at_once=pairs)


@dataclass(frozen=True)
class Chunk:
    """Batches ``b`` and query heads ``h`` worked on at once, their key heads, and their tiles.

    All of them have the same mask.  Where tiles have copies, there is one batch and one key head.

    Attributes:
        largest: scores in the largest rectangle of one head, all copies together.
    """

    b: tuple[int, int]
    h: tuple[int, int]
    kv_heads: tuple[int, int]
    tiles: tuple[QueryTile, ...]
    largest: int


def scratch_size(chunks: tuple[Chunk, ...]) -> int:
    """Return the number of scores in the largest rectangle of a schedule."""
    sizes = ((c.b[1] - c.b[0]) * (c.h[1] - c.h[0]) * c.largest for c in chunks)
    return max(sizes, default=0)


def _sized(tiles: Iterable[QueryTile]) -> tuple[tuple[QueryTile, ...], int]:
    """Return tiles, and the number of scores in their largest rectangle, copies included."""
    tiles = tuple(tiles)
    return tiles, max((t.copies * t.rows * t.widest for t in tiles), default=0)


@functools.lru_cache(maxsize=64)
def dense_schedule(problem: Problem) -> tuple[Chunk, ...]:
    """Return the schedule where every key is visible."""
    rows, width = _largest_tile(problem)
    tile = (min(rows, problem.sizes.q_len), min(width, problem.sizes.kv_len))
    if not tile[0] or not tile[1]:
        return ()
    tiles = _Tiles(_sized(dense_tiles((problem.sizes.q_len, problem.sizes.kv_len), tile)))
    classes = ((0,) * problem.sizes.heads,) * problem.sizes.batch
    return tuple(_chunks(problem, classes, tile, lambda _: tiles))


def _largest_tile(problem: Problem) -> tuple[int, int]:
    """Return the queries and keys of the largest tile that the problem's limits have room for."""
    rows, width = MAX_TILE_Q, RUN_WIDTH
    pairs = problem.scores_at_once // problem.group
    if problem.pairs_at_once is not None:
        pairs = min(pairs, problem.pairs_at_once)
    while rows * width > pairs and rows > 16:
        rows, width = (rows // 2, width) if 2 * rows >= width else (rows, width // 2)
    return rows, width


class _Schedules(dict[Problem, "tuple[Chunk, ...]"]):
    """The schedules of one mask."""


def mask_schedule(problem: Problem, blocks: MaskBlocks) -> tuple[Chunk, ...]:
    """Return the schedule of a mask; kept with the mask."""
    schedules = blocks.cache(_Schedules)
    if problem not in schedules:
        schedules[problem] = _mask_schedule(problem, blocks)
    return schedules[problem]


def _mask_schedule(problem: Problem, blocks: MaskBlocks) -> tuple[Chunk, ...]:
    runs, sizes = blocks.runs, problem.sizes
    if not (runs.classes and runs.lines and runs.width):
        return ()
    of = blocks.classes.of
    share = torch.bincount(of.flatten(), minlength=runs.classes) / of.numel()
    tiling = min(_tilings(problem, blocks.block_size, runs, share), key=lambda t: t.seconds)
    tiles = _tiles_of(problem, tiling, joined=False)
    if problem.bands and tiling.seconds > _WORTH_BANDS and blocks.follows_diagonal:
        tiling, tiles = _banded(problem, blocks, share, tiling.seconds) or (tiling, tiles)
    classes = [tuple(heads) for heads in of.expand(sizes.batch, sizes.heads).tolist()]
    return tuple(_chunks(problem, classes, tiling.tile, tiles))


class _Tiles(NamedTuple):
    """The tiles of a class, each kind with its largest rectangle.

    Attributes:
        single: tiles without copies, which several heads share.
        bands: those with copies.
    """

    single: tuple[tuple[QueryTile, ...], int]
    bands: tuple[tuple[QueryTile, ...], int] = ((), 0)


@dataclass(frozen=True, eq=False)
class _Tiling:
    """A way to cut a mask into tiles.

    Attributes:
        tile: queries of a tile, and most keys of a run.
        block: queries of a tile and keys of a block.
        runs: of such blocks, a line for each tile.
        scores: how many there are, those of all batches and heads.
        chunks: into how many chunks batches and heads are split, about.
        seconds: estimate of the time, without copies.
    """

    tile: tuple[int, int]
    block: tuple[int, int]
    runs: BlockRuns
    scores: float
    chunks: int
    seconds: float


def _tiles_of(problem: Problem, tiling: _Tiling, joined: bool) -> Callable[[int], _Tiles]:
    """Return a function from a class to its tiles, which it keeps: many heads may share them.

    Args:
        problem: the sizes.
        tiling: how they are cut.
        joined: tiles that are copies of each other are joined.
    """

    @functools.cache
    def tiles(class_: int) -> _Tiles:
        lengths = (problem.sizes.q_len, problem.sizes.kv_len)
        found = query_tiles(tiling.runs.every_line(class_), tiling.block, lengths, tiling.tile[1])
        if not joined:
            return _Tiles(_sized(found))
        every = list(joined_along_diagonal(found, problem.scores_at_once // problem.group))
        single = _sized(t for t in every if t.copies == 1)
        return _Tiles(single, _sized(t for t in every if t.copies > 1))

    return tiles


def _tilings(
    problem: Problem, block_size: tuple[int, int], runs: BlockRuns, share: torch.Tensor
) -> Iterator[_Tiling]:
    """Yield tilings of all heights, with their estimated times.

    Args:
        problem: the sizes.
        block_size: of the mask's blocks.
        runs: their runs.
        share: the share of each class in all batches and heads.
    """
    block_q, block_kv = block_size
    sizes = problem.sizes
    most_rows, most_width = _largest_tile(problem)
    width = max(block_kv, most_width // block_kv * block_kv)
    rows = 1
    while rows == 1 or (rows * block_q <= most_rows and rows < 2 * runs.lines):
        tile_q = rows * block_q
        merged = runs.coarsened(rows, 1)
        keys = merged.counts().cpu() * block_kv
        scores = float(share @ keys.sum(1).to(share.dtype)) * tile_q * sizes.batch * sizes.heads
        at_once = max(1, problem.scores_at_once // (tile_q * width * problem.group))
        chunks = sizes.batch * -(-sizes.kv_heads // at_once)
        products = float(share @ (keys / width).ceil().sum(1)) * chunks
        seconds = scores * _seconds_per_score(problem, tile_q) + products * _SECONDS_PER_RUN
        yield _Tiling((tile_q, width), (tile_q, block_kv), merged, scores, chunks, seconds)
        rows *= 2


def _seconds_per_score(problem: Problem, rows: int) -> float:
    return _SECONDS_PER_SCORE * (1.0 + _ROWS_OF_OVERHEAD / (rows * problem.group))


def _banded(
    problem: Problem, blocks: MaskBlocks, share: torch.Tensor, best: float
) -> tuple[_Tiling, Callable[[int], _Tiles]] | None:
    """Return the best tiling with copies, and its tiles; None where none is better than without.

    Copies make a batch of their products, so that tiles may be as low as a narrow band asks for and
    still be worked on many at a time: head by head, since one stride along the keys leads from each
    copy to the next.

    Args:
        problem: the sizes.
        blocks: the mask, which follows the diagonal.
        share: see `_tilings`.
        best: seconds without copies.
    """
    if not blocks.is_closed:  # smaller blocks would have to be searched for
        return None
    fine = blocks.with_block_size((_BAND_BLOCK, _BAND_BLOCK))
    sizes, found = problem.sizes, None
    candidates = [
        (tiling.scores * _seconds_per_score(problem, tiling.tile[0]), tiling)
        for tiling in _tilings(problem, fine.block_size, fine.runs, share)
    ]
    for seconds, tiling in sorted(candidates, key=lambda candidate: candidate[0]):
        if seconds >= best:  # by its scores alone
            break
        tiles = _tiles_of(problem, tiling, joined=True)
        copies = False
        for class_, part in enumerate(share.tolist()):
            single, bands = (sum(len(t.runs) for t in kind) for kind, _ in tiles(class_))
            calls = single * tiling.chunks + bands * sizes.batch * sizes.kv_heads
            seconds += part * calls * _SECONDS_PER_RUN
            copies |= bands > 0
        if copies and seconds < best:
            best, found = seconds, (tiling, tiles)
    return found


def _chunks(
    problem: Problem,
    classes: Sequence[tuple[int, ...]],
    tile: tuple[int, int],
    tiles: Callable[[int], _Tiles],
) -> Iterator[Chunk]:
    """Split batches and heads into chunks of one class each.

    Args:
        problem: the sizes.
        classes: for each batch the class of each query head.
        tile: queries and keys of the largest tile.
        tiles: from a class to its tiles.
    """
    sizes = problem.sizes
    scores = min(tile[0], sizes.q_len) * min(tile[1], sizes.kv_len)
    kv_heads = max(1, problem.scores_at_once // (scores * problem.group))
    batches = max(1, problem.scores_at_once // (scores * sizes.heads))
    for alike in _equal_neighbours(classes):
        ranges = list(_head_ranges(classes[alike[0]], problem.group, kv_heads))
        step = batches if len(ranges) == 1 and problem.join_batches else 1
        for b in range(*alike, step):
            for h, class_ in ranges:
                own = (h[0] // problem.group, -(-h[1] // problem.group))
                single, bands = tiles(class_)
                together = Chunk((b, min(b + step, alike[1])), h, own, *single)
                if single[0]:
                    yield together
                if bands[0]:
                    yield from _one_by_one(together, bands, problem.group)


def _one_by_one(
    together: Chunk, bands: tuple[tuple[QueryTile, ...], int], group: int
) -> Iterator[Chunk]:
    """Yield a chunk of tiles with copies for each batch and key head of a chunk."""
    for b, kv in itertools.product(range(*together.b), range(*together.kv_heads)):
        h = (max(together.h[0], kv * group), min(together.h[1], (kv + 1) * group))
        yield Chunk((b, b + 1), h, (kv, kv + 1), *bands)


def _head_ranges(
    classes: tuple[int, ...], group: int, kv_heads: int
) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield ranges of query heads that share a class, and the class.

    A range is some whole groups, at most `kv_heads` of them, or a part of one group: its rows are
    then packed into one matrix product either way.
    """
    uniform = [
        classes[h] if len(set(classes[h : h + group])) == 1 else None
        for h in range(0, len(classes), group)
    ]
    for first, end in _equal_neighbours(uniform):
        class_ = uniform[first]
        if class_ is not None:
            for k in range(first, end, kv_heads):
                yield (k * group, min(k + kv_heads, end) * group), class_
            continue
        for h in range(first * group, end * group, group):
            for start, stop in _equal_neighbours(classes[h : h + group]):
                yield (h + start, h + stop), classes[h + start]


def _equal_neighbours(items: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Yield ranges of neighbours that are equal, as long as they can be."""
    for _, places in itertools.groupby(range(len(items)), key=items.__getitem__):
        found = list(places)
        yield found[0], found[-1] + 1
