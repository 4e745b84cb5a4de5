"""What `masks` measures: masks of many tokens, at which lengths, and what is aimed for.

Measures nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from flexfa4.variants import (
    BlockCausal,
    BlockDiffusion,
    ChunkedCausal,
    DilatedWindow,
    KeyPadding,
    Neighborhood,
    PrefixLM,
    PrefixTree,
    SinkWindow,
    SlidingTile,
    SlidingWindow,
    TreeAttention,
    causal,
)
from flexfa4.variants.token_order import Morton, Tiled

Mask = Callable[..., Any]


# ---- masks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """What a mask is made for.

    Attributes:
        q_len, kv_len: lengths.
        batch, heads: None where the mask is the same for all.
        device: of its captures.
    """

    q_len: int
    kv_len: int
    batch: int | None = None
    heads: int | None = None
    device: str = "cpu"

    def numbers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return random integers below `high`, the same each time."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(low, high, shape, generator=generator)

    def documents(self, *, permuted: bool) -> torch.Tensor:
        """Return the document of each position, of 512 to 3584 positions each."""
        lengths = self.numbers(512, 3585, self.kv_len // 512 + 1)
        ids = torch.arange(len(lengths))
        if permuted:
            ids = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0))
        return ids.repeat_interleave(lengths)[: self.kv_len].to(self.device)


def packed(problem: Problem, *, permuted: bool) -> Mask:
    """Return documents, each causal, with ids that ascend or are in arbitrary order."""
    ids = problem.documents(permuted=permuted)
    return lambda b, h, q_idx, kv_idx: (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)


def bottom_right(problem: Problem) -> Mask:
    """Return the causal mask of queries that are the last positions, lengths captured."""
    ahead = problem.kv_len - problem.q_len
    return lambda b, h, q_idx, kv_idx: kv_idx <= q_idx + ahead


def random_table(problem: Problem) -> Mask:
    """Return a mask of which nothing can be proved."""
    table = problem.numbers(0, 2, problem.q_len, problem.kv_len).bool().to(problem.device)
    return lambda b, h, q_idx, kv_idx: table[q_idx, kv_idx]


def prefix_tree(problem: Problem) -> Mask:
    """Return a binary tree of texts, each of which sees itself and its ancestors."""
    lengths = problem.numbers(256, 769, problem.kv_len // 768).tolist()
    parents = [-1, *((node - 1) // 2 for node in range(1, len(lengths)))]
    return PrefixTree.from_lengths(lengths, parents, device=problem.device)


def drafted_tree(problem: Problem) -> Mask:
    """Return a binary tree of drafted tokens, the queries, behind the tokens so far."""
    parents = [-1, *((node - 1) // 2 for node in range(1, problem.q_len))]
    prefix = problem.kv_len - problem.q_len
    return TreeAttention.from_parents(parents, prefix=prefix, device=problem.device)


def padded(problem: Problem) -> Mask:
    """Return the causal mask of batch entries of random lengths."""
    assert problem.batch is not None
    lengths = problem.numbers(1, problem.kv_len, problem.batch).to(problem.device)
    return KeyPadding(lengths) & causal


def windows_of_heads(problem: Problem) -> Mask:
    """Return causal windows of eight widths, 128 to 16,384."""
    assert problem.heads is not None
    window = (2 ** (7 + torch.arange(problem.heads) % 8)).to(problem.device)
    return lambda b, h, q_idx, kv_idx: (kv_idx <= q_idx) & (q_idx - kv_idx < window[h])


def fixed(mask: Mask) -> Callable[[Problem], Mask]:
    """Return the maker of a mask that is the same for all lengths."""
    return lambda problem: mask


def video(problem: Problem) -> tuple[int, int, int]:
    """Return frames, height and width of a video with as many tokens as there are keys."""
    side = 64 if problem.kv_len >= 131_072 else 32
    return (problem.kv_len // side**2, side, side)


MAKERS: Final[dict[str, Callable[[Problem], Mask]]] = {
    "causal": fixed(causal),
    "bottom-right causal": bottom_right,
    "window": fixed(SlidingWindow(1024)),
    "prefix": lambda p: PrefixLM(p.kv_len // 8),
    "chunked": fixed(ChunkedCausal(4096)),
    "sinks + window": fixed(SinkWindow(4, 1024)),
    "block-causal": fixed(BlockCausal(32)),
    "documents & causal, sorted": functools.partial(packed, permuted=False),
    "documents & causal, permuted": functools.partial(packed, permuted=True),
    "sliding tile, 3-D": lambda p: SlidingTile(video(p), kernel=(12, 24, 24), tile=(4, 8, 8)),
    "neighborhood, 3-D": lambda p: Neighborhood(video(p), (7, 9, 9)),
    "neighborhood, 3-D tiles": lambda p: Neighborhood(video(p), (7, 9, 9), order=Tiled((2, 8, 8))),
    "neighborhood, 3-D Morton": lambda p: Neighborhood(video(p), (7, 9, 9), order=Morton()),
    "neighborhood, 3-D dilated": lambda p: Neighborhood(video(p), (5, 7, 7), (1, 2, 2)),
    "dilated window": fixed(DilatedWindow(1024, 7)),
    "block diffusion": lambda p: BlockDiffusion(p.kv_len // 2, 32),
    "tree of texts": prefix_tree,
    "tree of drafted tokens": drafted_tree,
    "random table": random_table,
    "lengths by batch & causal": padded,
    "windows by head": windows_of_heads,
}
CLOSED: Final = tuple(MAKERS)[:7]
SPLIT: Final = tuple(MAKERS)[9:17]  # found by splitting boxes


# ---- rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """What is aimed for: milliseconds and MiB, None for no aim, or torch's own of the same row."""

    ms: float | None = None
    mib: float | None = None
    as_torch: bool = False


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        mask: a name of `MAKERS`.
        problem: what it is made for.
        then: what is timed with its creation: "lists" of blocks both ways, an "order", or nothing.
        limits: on the CPU.
        cuda: on a GPU.
    """

    mask: str
    problem: Problem
    then: str = ""
    limits: Limits = Limits()
    cuda: Limits = Limits()

    @property
    def lengths(self) -> str:
        """The lengths as people write them."""
        q_len, kv_len = self.problem.q_len, self.problem.kv_len
        return f"{kv_len:,}" if q_len == kv_len else f"{q_len:,} x {kv_len:,}"


def square(length: int, *, batch: int | None = None, heads: int | None = None) -> Problem:
    """Return the problem of as many queries as keys."""
    return Problem(length, length, batch, heads)


def rows(*, quick: bool) -> list[Row]:
    """Return what is measured; quick: the same masks at small lengths, with nothing aimed for."""
    lengths = (2048,) if quick else (8192, 131_072, 1 << 20, 16 << 20)
    long, middle, short, nodes = (8192, 16_384, 512, 64) if quick else (
        1 << 20, 131_072, 8192, 4096
    )  # fmt: skip
    closed, seconds, as_torch = Limits(1.0, 1.0), Limits(2000.0), Limits(as_torch=True)
    table = [
        *(Row(name, Problem(n // 2 if "right" in name else n, n), limits=closed, cuda=closed)
          for name in CLOSED for n in lengths),
        *(Row("documents & causal, sorted", square(n)) for n in lengths),
        Row("causal", square(lengths[-1]), "order"),
        Row("window", square(long), "lists"),
        Row("documents & causal, sorted", square(long), "lists", Limits(150.0, 100.0),
            Limits(10.0)),
        Row("documents & causal, permuted", square(long), "lists", Limits(1000.0, 100.0),
            Limits(10.0)),
        *(Row(name, square(middle), "lists", seconds, seconds) for name in SPLIT),
        Row("tree of drafted tokens", Problem(nodes, middle), "lists", seconds, seconds),
        Row("random table", square(short), "lists", as_torch, as_torch),
        Row("lengths by batch & causal", square(middle, batch=8, heads=32), "lists"),
        Row("windows by head", square(middle, batch=8, heads=32), "lists"),
    ]  # fmt: skip
    return [replace(row, limits=Limits(), cuda=Limits()) for row in table] if quick else table
