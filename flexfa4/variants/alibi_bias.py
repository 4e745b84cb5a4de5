"""ALiBi: a bias that falls linearly with the distance, with a slope of its own for each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

import flexfa4
from flexfa4.combine import ScoreMod
from flexfa4.variants.parameters import require_whole


@dataclass(frozen=True)
class Alibi(ScoreMod):
    """Add ``slope * (kv - q)`` with ``slope = 2 ** (-8 * (h + 1) / num_heads)``.

    The bias is zero at the query's own position and falls towards earlier keys; a causal mask is
    not part of it.  For a number of heads that is no power of two this is the same geometric
    sequence; some implementations interleave two sequences there.

    Source: Press et al., "Train Short, Test Long" (2021), section 3.

    Attributes:
        num_heads: query heads over which the slopes spread, at least 1; None takes the number of
            query heads of each call.
    """

    num_heads: int | None = None

    def __post_init__(self) -> None:
        if self.num_heads is not None:
            require_whole("Alibi.num_heads", self.num_heads, at_least=1)

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        heads: Any = flexfa4.num_heads if self.num_heads is None else self.num_heads
        slope = torch.exp2(-8.0 * (h + 1) / heads)
        return score + slope * (kv_idx - q_idx)


alibi: Final = Alibi()
