"""The index space of a mask and the grid of blocks that is laid over it.

Names and sizes only; what the blocks contain is found by the other modules of this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from flexfa4.frontend.analysis.bounds import Domain
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.lanes import Lanes

EMPTY: Final = 0
PARTIAL: Final = 1
FULL: Final = 2


@dataclass(frozen=True)
class MaskSize:
    """The index space of a mask: batch and head count (1 where they do not matter), lengths."""

    b: int
    h: int
    q_len: int
    kv_len: int

    def lanes(self) -> Lanes:
        """Return the whole index space as one rectangle."""
        return Lanes((0, self.b), (0, self.h), (0, self.q_len), (0, self.kv_len))

    def domain(self, values: Values) -> Domain:
        """Return what a mask's values and index space tell interval analysis about its leaves.

        Symbols are those of the values: a space that is smaller than the call (one lane of an axis
        that does not matter) leaves ``q_len`` as it is.
        """
        symbols = values.symbols
        return Domain(
            b=self.b,
            h=self.h,
            q_len=symbols.get("q_len", self.q_len),
            kv_len=symbols.get("kv_len", self.kv_len),
            q=(0, max(self.q_len - 1, 0)),
            kv=(0, max(self.kv_len - 1, 0)),
            num_heads=symbols.get("num_heads", 1),
            num_kv_heads=symbols.get("num_kv_heads", 1),
            scalars=values.scalars,
            shapes={buffer: tuple(t.shape) for buffer, t in values.tensors.items()},
        )


def block_count(length: int, block: int) -> int:
    """Return how many blocks cover `length`."""
    return -(-length // block)


def blocks_of(indices: torch.Tensor, block: int) -> torch.Tensor:
    """Return which block each of some indices lies in."""
    if block & (block - 1):
        return indices // block
    # Shifts are vectorised, divisions are not (measured on a CPU: 0.2 and 1.9 ns per index).
    return indices >> (block.bit_length() - 1)


def block_counts(lengths: torch.Tensor, block: int) -> torch.Tensor:
    """Return how many blocks cover each of some lengths."""
    return blocks_of(lengths + (block - 1), block)


@dataclass(frozen=True)
class BlockGrid:
    """Blocks of `block_size` (queries, keys) over an index space; the last ones may be ragged."""

    size: MaskSize
    block_size: tuple[int, int]

    @property
    def rows(self) -> int:
        """How many blocks cover the queries."""
        return block_count(self.size.q_len, self.block_size[0])

    @property
    def columns(self) -> int:
        """How many blocks cover the keys."""
        return block_count(self.size.kv_len, self.block_size[1])
