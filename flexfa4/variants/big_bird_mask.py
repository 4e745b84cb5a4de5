"""BigBird mask: global blocks, a window of blocks, and random blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import element, require_index_tensor, require_whole


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class BigBird(MaskMod):
    """Attend by blocks of positions, with ``i = q // block`` and ``j = kv // block``, where

    - ``i < global_blocks or j < global_blocks`` (both ways), or
    - ``abs(i - j) <= window_blocks // 2`` (a window of `window_blocks` blocks, the own one in its
      middle), or
    - j is one of ``random_blocks[i]``.

    Bidirectional.  The window does not wrap around the ends of the sequence.

    Source: Zaheer et al., "Big Bird: Transformers for Longer Sequences" (2020), section 2 and
    appendix D, in the form with global tokens inside the sequence (ITC).

    Attributes:
        random_blocks: (QB, R) or (H, QB, R), integers: the random key blocks of each query block
            (and query head), with QB at least the number of query blocks (`OutOfRangeError`
            otherwise, when the blocks are found); -1 stands for none.  None: no random blocks.
        block: positions of a block, at least 1.
        window_blocks: blocks of the window, odd, at least 1.
        global_blocks: global blocks at the start, at least 0.
    """

    random_blocks: torch.Tensor | None = None
    block: int = 64
    window_blocks: int = 3
    global_blocks: int = 2

    def __post_init__(self) -> None:
        require_whole("BigBird.block", self.block, at_least=1)
        require_whole("BigBird.window_blocks", self.window_blocks, at_least=1)
        require_whole("BigBird.global_blocks", self.global_blocks, at_least=0)
        if self.window_blocks % 2 == 0:
            raise ArgumentError(
                name="BigBird.window_blocks",
                found_value=repr(self.window_blocks),
                expected="an odd number: the own block with as many on either side",
                rewrite=f"window_blocks={self.window_blocks + 1}",
            )
        if self.random_blocks is not None:
            require_index_tensor("BigBird.random_blocks", self.random_blocks, dims=(2, 3))

    @classmethod
    def from_seed(
        cls,
        seed: int,
        *,
        length: int,
        random: int = 3,
        shape: BigBird | None = None,
        device: torch.device | str | None = None,
    ) -> BigBird:
        """Return the mask with random blocks drawn for a length, the same ones for every head.

        Each query block draws without replacement among the key blocks that it would not see
        otherwise; where there are fewer than `random`, it gets all of them.

        Args:
            seed: of the drawing; equal seeds give equal blocks.
            length: positions of the sequence, at least 0; the last block may be short.
            random: random blocks of a query block, at least 0.
            shape: the mask whose other parameters are taken, by default ``BigBird()``.
            device: where the blocks live.
        """
        require_whole("BigBird.from_seed(seed)", seed, at_least=0)
        require_whole("BigBird.from_seed(length)", length, at_least=0)
        require_whole("BigBird.from_seed(random)", random, at_least=0)
        base = cls() if shape is None else replace(shape, random_blocks=None)
        count = -(-length // base.block)
        first = torch.arange(count) * base.block
        seen = base(0, 0, first[:, None], first)
        draw = torch.rand(count, count, generator=torch.Generator().manual_seed(seed))
        chosen = draw.masked_fill(seen, 2.0).sort(dim=1)  # draws are below 1: seen blocks come last
        blocks = chosen.indices.masked_fill(chosen.values == 2.0, -1)[:, :random]
        return replace(base, random_blocks=blocks.to(device))

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        i, j = q_idx // self.block, kv_idx // self.block
        in_window = (i - j).abs() <= self.window_blocks // 2
        seen = in_window | (i < self.global_blocks) | (j < self.global_blocks)
        if self.random_blocks is None:
            return seen
        drawn = element(self.random_blocks, h, i, slice(None))
        return seen | (drawn == j).any(-1)


big_bird: Final = BigBird()
