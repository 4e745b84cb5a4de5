"""Sizes and block kinds -> chunks of heads, tiles of queries and runs of keys.

A chunk is what is worked on at once: a range of batches and heads whose block structure is the
same, sized so that its tile of scores stays in the caches.  Grouped heads (GQA) of one key head are
packed into the rows of one matrix product.  The height of a query tile is chosen by cost: tall
tiles need fewer and larger products, short ones waste less beside a narrow band.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from flexfa4.frontend.blocks import Blocks
from flexfa4.frontend.sizes import Sizes
from flexfa4.primitives.block_runs import QueryTile, dense_tiles, merge_rows, query_tiles

# Scores held at once: 1M of fp32 are 4 MB. Measured on 2 cores with 1 MB of L2 each (S = 8192, 8
# heads, D = 64): 256 x 512 x 8 heads was fastest; half and double of it cost 2 to 6 % more.
SCORES_AT_ONCE: Final = 1 << 20
# With work for each score beside the products there are more temporaries of that size.
SCORES_AT_ONCE_WITH_CORE: Final = 1 << 19
# Elements of a vector for each score (or each pair of positions, where all heads share it) held at
# once: of each temporary, 4 MB of fp32. Measured: 8 MB take 3 to 5 % less time, 1 MB 20 % more.
VECTORS_AT_ONCE: Final = 1 << 20
RUN_WIDTH: Final = 512
MAX_TILE_Q: Final = 256
# Cost model: seconds for a score (both products and softmax) and for a run (dispatch of its ops).
_SECONDS_PER_SCORE: Final = 1.8e-9
_SECONDS_PER_RUN: Final = 6e-5


class Problem(NamedTuple):
    """The sizes of a call, as far as the schedule depends on them; schedules are kept by it.

    Attributes:
        sizes: sizes of the call.
        join_batches: several batches may be worked on at once.
        scores_at_once: see `SCORES_AT_ONCE`.
        pairs_at_once: pairs of a query and a key, whatever the number of heads; None for any.
    """

    sizes: Sizes
    join_batches: bool
    scores_at_once: int = SCORES_AT_ONCE
    pairs_at_once: int | None = None

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

    Attributes:
        largest: scores in the largest rectangle of one head.
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


def _largest(tiles: tuple[QueryTile, ...]) -> int:
    return max(((t.stop - t.start) * (r.stop - r.start) for t in tiles for r in t.runs), default=0)


@functools.lru_cache(maxsize=64)
def dense_schedule(problem: Problem) -> tuple[Chunk, ...]:
    """Return the schedule where every key is visible."""
    rows, width = _largest_tile(problem)
    tile = (min(rows, problem.sizes.q_len), min(width, problem.sizes.kv_len))
    if not tile[0] or not tile[1]:
        return ()
    tiles = tuple(dense_tiles((problem.sizes.q_len, problem.sizes.kv_len), tile))
    largest = _largest(tiles)
    return _chunks(problem, 1, 1, tile, lambda b, h: (tiles, largest))


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


def mask_schedule(problem: Problem, blocks: Blocks) -> tuple[Chunk, ...]:
    """Return the schedule of a mask; kept with the mask."""
    schedules = blocks.cache(_Schedules)
    if problem not in schedules:
        schedules[problem] = _mask_schedule(problem, blocks)
    return schedules[problem]


def _mask_schedule(problem: Problem, blocks: Blocks) -> tuple[Chunk, ...]:
    kinds = blocks.kinds
    if not kinds.numel():
        return ()
    batches, heads = kinds.shape[:2]
    tile = _choose_tile(problem, blocks)
    lengths = (problem.sizes.q_len, problem.sizes.kv_len)

    @functools.cache
    def tiles(b: int, h: int) -> tuple[tuple[QueryTile, ...], int]:
        found = tuple(query_tiles(kinds[b, h], blocks.block_size, lengths, tile))
        return found, _largest(found)

    return _chunks(problem, batches, heads, tile, tiles)


def _choose_tile(problem: Problem, blocks: Blocks) -> tuple[int, int]:
    """Return the tile height and run width of least estimated cost."""
    block_q, block_kv = blocks.block_size
    most_rows, most_width = _largest_tile(problem)
    width = max(block_kv, most_width // block_kv * block_kv)
    flat = blocks.kinds.view(-1, *blocks.kinds.shape[2:])[:8]  # a sample of heads is enough
    best: tuple[float, int] | None = None
    rows = 1
    while rows == 1 or (rows * block_q <= most_rows and rows <= 2 * flat.shape[1]):
        tile_q = rows * block_q
        filled = sum(merge_rows(k, rows).ne(0).sum(1).float() for k in flat)
        assert isinstance(filled, torch.Tensor)
        filled = filled / len(flat)
        scores = float(filled.sum()) * tile_q * block_kv * problem.sizes.batch * problem.sizes.heads
        at_once = max(1, problem.scores_at_once // (tile_q * width * problem.group))
        chunks = problem.sizes.batch * -(-problem.sizes.kv_heads // at_once)
        runs = float((filled * block_kv / width).ceil().sum()) * chunks
        cost = scores * _SECONDS_PER_SCORE + runs * _SECONDS_PER_RUN
        if best is None or cost < best[0]:
            best = (cost, tile_q)
        rows *= 2
    assert best is not None
    return best[1], width


def _chunks(
    problem: Problem,
    mask_batches: int,
    mask_heads: int,
    tile: tuple[int, int],
    tiles: Callable[[int, int], tuple[tuple[QueryTile, ...], int]],
) -> tuple[Chunk, ...]:
    """Split batches and heads into chunks of one block structure each."""
    g, sizes = problem.group, problem.sizes
    scores = min(tile[0], sizes.q_len) * min(tile[1], sizes.kv_len)
    if mask_heads > 1:  # heads differ in structure: each query head alone
        head_spans = [((h, h + 1), (h // g, h // g + 1)) for h in range(sizes.heads)]
    else:
        step = min(sizes.kv_heads, max(1, problem.scores_at_once // (scores * g)))
        starts = range(0, sizes.kv_heads, step)
        kv_spans = [(k, min(k + step, sizes.kv_heads)) for k in starts]
        head_spans = [((k * g, end * g), (k, end)) for k, end in kv_spans]
    batch_step = 1
    if mask_batches == 1 and len(head_spans) == 1 and problem.join_batches:
        batch_step = max(1, problem.scores_at_once // (scores * sizes.heads))
    return tuple(
        Chunk(
            (b, min(b + batch_step, problem.sizes.batch)),
            h,
            kv_heads,
            *tiles(min(b, mask_batches - 1), h[0] if mask_heads > 1 else 0),
        )
        for b in range(0, problem.sizes.batch, batch_step)
        for h, kv_heads in head_spans
    )
