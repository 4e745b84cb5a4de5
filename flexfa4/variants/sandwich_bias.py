"""Sandwich: the inner product of two sinusoidal position embeddings as a bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

import flexfa4
from flexfa4.combine import ScoreMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import require_whole


@dataclass(frozen=True)
class Sandwich(ScoreMod):
    """Add ``sum(cos((q - kv) / 10000 ** (2 * i / d)), i < d / 2) * num_heads / (8 * (h + 1))``.

    The sum is the inner product of the sinusoidal embeddings of both positions, with d numbers
    each; it falls about as the logarithm of the distance.  Nothing is learned, and it is computed
    for each score rather than looked up, so it holds at any length, at the price of d / 2 cosines.
    In fp32 a cosine is right to ``1.2e-7 * |q - kv|``.

    Source: Chi et al., "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field
    Analysis" (2022), the construction of appendix E.

    Attributes:
        num_heads: query heads over which the factors spread, at least 1; None takes the number of
            query heads of each call.
        dimensions: d, even.
    """

    num_heads: int | None = None
    dimensions: int = 128

    def __post_init__(self) -> None:
        if self.num_heads is not None:
            require_whole("Sandwich.num_heads", self.num_heads, at_least=1)
        require_whole("Sandwich.dimensions", self.dimensions, at_least=2)
        if self.dimensions % 2:
            raise ArgumentError(
                name="Sandwich.dimensions",
                found_value=self.dimensions,
                expected="an even number: a sine and a cosine for each frequency",
                rewrite=f"Sandwich(dimensions={self.dimensions + 1})",
            )

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        heads: Any = flexfa4.num_heads if self.num_heads is None else self.num_heads
        half = int(self.dimensions) // 2  # int(): the number of terms is part of the graph
        distance = q_idx - kv_idx
        terms = [torch.cos(distance * 10000.0 ** (-i / half)) for i in range(half)]
        return score + sum(terms) * (heads / (8.0 * (h + 1)))


sandwich: Final = Sandwich()
