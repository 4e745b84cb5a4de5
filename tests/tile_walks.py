"""Masks with the tiles that they are walked in, and what is visited, by the definition.

What is compared with this is the model on the host (`tests/unit`) and the device code in the
emulator (`tests/emulate`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

import flexfa4
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.masks.grid import FULL, PARTIAL
from flexfa4.frontend.masks.structure import Lines, MaskBlocks
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.blocks.walk import Walk, walk_for
from flexfa4.primitives.arithmetic import PLAIN
from flexfa4.primitives.tile_walk import Lengths, RowEnds, RowLimits, TileShape, TileSource
from tests.brute_force import kinds_of

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A mask, sizes, and the tile that a kernel has.

    Attributes:
        mask: of index tensors; None for none.
        sizes: of the call.
        shape: of a tile.
        source: the source that is chosen.
        given_blocks: the structure of the mask, where it is not to be found.
        by: "rows": tiles of queries visit keys; "columns": the other way round.
    """

    mask: Callable[..., Any] | None
    sizes: Sizes
    shape: TileShape
    source: str
    given_blocks: MaskBlocks | None = None
    by: Lines = "rows"

    @property
    def one_interval(self) -> bool:
        """Whether each query sees one interval of keys; of columns, each key one of queries."""
        if self.by == "columns":
            return self.mask not in SEVERAL_INTERVALS_OF_QUERIES
        return self.mask not in SEVERAL_INTERVALS

    @property
    def blocks(self) -> MaskBlocks | None:
        """The structure of the mask."""
        if self.mask is None or self.given_blocks is not None:
            return self.given_blocks
        s = self.sizes
        made = flexfa4.create_block_mask(
            self.mask, batch=s.batch, heads=s.heads, q_len=s.q_len, kv_len=s.kv_len
        )
        return made.blocks_on(CPU)

    def walk(self) -> Walk:
        """Return how a kernel finds its tiles."""
        return walk_for(self.blocks, self.shape, CPU, by=self.by)

    def dense(self) -> torch.Tensor:
        """Return the mask, bool ``(batch, heads, q_len, kv_len)``."""
        s = self.sizes
        shape = (s.batch, s.heads, s.q_len, s.kv_len)
        blocks = self.blocks
        if blocks is None:
            return torch.ones(shape, dtype=torch.bool)
        return blocks.dense().expand(shape)

    def kinds(self) -> torch.Tensor:
        """Return the kinds of all tiles, int8 ``(batch, heads, q tiles, kv tiles)``.

        Heads are those of items: key heads where query heads are packed.  By columns, tiles of keys
        come before those of queries.
        """
        kinds = kinds_of(self.dense(), self.shape[:2])[:, :: self.shape.group]
        if self.sizes.kv_len % self.shape.keys:  # keys that do not exist are hidden
            kinds[..., -1].clamp_(max=PARTIAL)
        if self.by == "columns":
            if self.sizes.q_len % self.shape.queries:
                kinds[:, :, -1].clamp_(max=PARTIAL)
            kinds = kinds.transpose(2, 3).contiguous()
        return kinds


def ends_of_rows(walk: Walk, sizes: Sizes) -> RowEnds | None:
    """Return a function to the interval of a line, from the graph that a kernel evaluates."""
    bound, interval = walk.interval, walk.plan.interval
    if bound is None or interval is None:
        return None
    values = Values.of(bound, sizes, device=CPU)
    lines = (sizes.q_len, 1) if interval.line == "q" else (1, sizes.kv_len)
    shape = (sizes.batch, sizes.heads, *lines)
    found = Program((interval.begin, interval.end)).run(values, Lanes(*((0, n) for n in shape)))
    begin, end = (torch.as_tensor(v).expand(shape).flatten(2).tolist() for v in found)
    return lambda batch, head, line: (begin[batch][head][line], end[batch][head][line])


def limits_on_host(walk: Walk, sizes: Sizes) -> RowLimits:
    """Return the model of the limits of rows."""
    return walk.plan.limits_of(PLAIN, Lengths(sizes.q_len, sizes.kv_len), ends_of_rows(walk, sizes))


def source_on_host(walk: Walk, sizes: Sizes) -> TileSource:
    """Return the model of the source of a walk."""
    values = [v.flatten().tolist() if isinstance(v, torch.Tensor) else v for v in walk.values]
    return walk.plan.source_of(values, limits_on_host(walk, sizes))


def visited_on_host(case: Case) -> torch.Tensor:
    """Return the kinds as which the model visits tiles; checks that it does so once, in order."""
    expected = case.kinds()
    visited = torch.zeros_like(expected)
    source = source_on_host(case.walk(), case.sizes)
    for batch, head, line in itertools.product(*map(range, expected.shape[:3])):
        row = source.row(batch, head, line)
        partial = [row.partial(i) for i in range(row.partial_count)]
        full = [row.full(i) for i in range(row.full_count)]
        for kind, tiles in ((PARTIAL, partial), (FULL, full)):
            assert tiles == sorted(set(tiles), reverse=True)
            found = visited[batch, head, line]
            assert not found[tiles].any()
            found[tiles] = kind
        if partial or full:
            assert row.first == (partial or full)[0]
    return visited


# ---- cases ---------------------------------------------------------------------------------------


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def window(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q >= kv) & (q - kv < 100)


def both_ways(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q - kv).abs() <= 70


def bottom_right(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return kv - q <= flexfa4.kv_len - flexfa4.q_len


def prefix(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (kv <= q) | (kv < 150)


def sink_and_window(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q >= kv) & ((q - kv < 64) | (kv < 4))


def by_head(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q >= kv) & (q - kv < 40 * (h + 1))


def by_pairs(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q >= kv) & (q - kv < 50 * (h // 2 + 1))


def checkered(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return ((q // 90) + (kv // 70) + h) % 2 == 0


def documents_of(length: int, each: tuple[int, ...]) -> torch.Tensor:
    """Return the document of each position."""
    ids = torch.repeat_interleave(torch.arange(len(each)), torch.tensor(each))
    return ids[:length]


FAR = 1 << 40  # ends take 64 bits before they are clamped
DOC = documents_of(500, (90, 130, 3, 200, 77))
REVERSED = DOC.flip(0)
SHUFFLED = documents_of(500, (90, 130, 3, 200, 77)).mul(3).remainder(5)
TEXTS = torch.stack([DOC, documents_of(500, (250, 250))])
LENS = torch.tensor([500, 0, 37, 211])
LEVELS = (torch.sin(torch.arange(500.0) / 40) * 200 + 220).long()


def documents(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (DOC[q] == DOC[kv]) & (q >= kv)


def whole_documents(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return DOC[q] == DOC[kv]


def far(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (kv <= q + FAR) & (kv * 2 >= q - FAR)


def first_documents(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (DOC[kv] < 2) & (q >= kv)


def crossed_documents(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return SHUFFLED[q] == DOC[kv]


def reversed_documents(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return REVERSED[q] == DOC[kv]


def texts(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (TEXTS[b, q] == TEXTS[b, kv]) & (q >= kv)


def lens(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (kv < LENS[b]) & (q >= kv)


def levels(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return kv < LEVELS[q]


def empty_rows(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q >= kv) & (q % 64 < 32)


SEVERAL_INTERVALS = (sink_and_window, checkered)

CASES: dict[str, Case] = {
    "dense": Case(None, Sizes(2, 2, 2, 300, 500), TileShape(128, 96), "dense"),
    "dense, whole tiles": Case(None, Sizes(1, 2, 1, 60, 352), TileShape(64, 176, 2), "dense"),
    "causal": Case(causal, Sizes(1, 2, 2, 500, 500), TileShape(128, 128), "closed"),
    "causal, tall": Case(causal, Sizes(1, 1, 1, 500, 300), TileShape(192, 80), "closed"),
    "causal, packed": Case(causal, Sizes(1, 8, 1, 77, 500), TileShape(16, 176, 8), "closed"),
    "causal, one query": Case(causal, Sizes(1, 4, 1, 3, 300), TileShape(1, 128, 4), "closed"),
    "window": Case(window, Sizes(1, 1, 1, 777, 700), TileShape(128, 80), "closed"),
    "both ways": Case(both_ways, Sizes(1, 1, 1, 500, 500), TileShape(64, 176), "closed"),
    "bottom right": Case(bottom_right, Sizes(1, 1, 1, 300, 500), TileShape(128, 96), "closed"),
    "bottom right, empty rows": Case(
        bottom_right, Sizes(1, 1, 1, 500, 300), TileShape(128, 96), "closed"
    ),
    "prefix": Case(prefix, Sizes(1, 1, 1, 500, 500), TileShape(128, 80), "closed"),
    "sink and window": Case(
        sink_and_window, Sizes(1, 1, 1, 700, 700), TileShape(128, 80), "listed"
    ),
    "window by head": Case(by_head, Sizes(1, 4, 2, 500, 500), TileShape(128, 96), "closed"),
    "window by pair, packed": Case(
        by_pairs, Sizes(2, 4, 2, 500, 500), TileShape(64, 96, 2), "closed"
    ),
    "checkered": Case(checkered, Sizes(2, 3, 3, 500, 500), TileShape(128, 128), "listed"),
    "documents": Case(documents, Sizes(1, 2, 2, 500, 500), TileShape(128, 128), "closed"),
    "whole documents": Case(
        whole_documents, Sizes(1, 2, 1, 500, 500), TileShape(64, 80, 2), "closed"
    ),
    "far": Case(far, Sizes(1, 1, 1, 300, 300), TileShape(64, 80), "closed"),
    "first documents": Case(
        first_documents, Sizes(1, 1, 1, 500, 500), TileShape(128, 80), "closed"
    ),
    "crossed documents": Case(
        crossed_documents, Sizes(1, 2, 2, 500, 500), TileShape(128, 80), "listed"
    ),
    "reversed documents": Case(
        reversed_documents, Sizes(1, 2, 2, 500, 500), TileShape(128, 80), "closed"
    ),
    "texts": Case(texts, Sizes(2, 2, 2, 500, 500), TileShape(128, 96), "closed"),
    "lengths of batches": Case(lens, Sizes(4, 1, 1, 500, 500), TileShape(128, 176), "closed"),
    "levels": Case(levels, Sizes(1, 1, 1, 500, 500), TileShape(128, 96), "closed"),
    "empty rows": Case(empty_rows, Sizes(1, 1, 1, 500, 500), TileShape(48, 96), "closed"),
}

SEVERAL_INTERVALS_OF_QUERIES = (checkered, levels, empty_rows)

COLUMNS: dict[str, Case] = {
    name: replace(case, shape=case.shape._replace(group=1), by="columns", source="")
    for name, case in CASES.items()
}
"""The same by columns: the shape is of tiles of as many queries, and no heads are packed."""
