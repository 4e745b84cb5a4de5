"""Pair bias: a number of its own for each pair of query and key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import ScoreMod
from flexfa4.variants.parameters import given, require_float_tensor


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class PairBias(ScoreMod):
    """Add ``bias[b, h, q, kv]``, as a projection of a pair representation gives it.

    An axis of size 1 for batch or head serves all of them, and missing ones count as such; a whole
    score matrix is stored by whoever makes the bias, not by attention.  It gets gradients.

        bias = torch.einsum("bqkc,ch->bhqk", pairs, weight)
        out = flexfa4.attention(q, k, v, score_mod=PairBias(bias))

    Source: Jumper et al., "Highly accurate protein structure prediction with AlphaFold" (2021),
    supplement, algorithm 7.

    Attributes:
        bias: (B or 1, H or 1, Lq, Lk), (H or 1, Lq, Lk) or (Lq, Lk), learnable.
    """

    bias: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.bias is not None:
            require_float_tensor(
                "PairBias.bias",
                self.bias,
                ("B", "H", "Lq", "Lk"),
                ("H", "Lq", "Lk"),
                ("Lq", "Lk"),
            )

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        bias = given(
            "PairBias.bias",
            self.bias,
            expected="a number for each pair, a tensor of shape (B, H, Lq, Lk), (H, Lq, Lk) or"
            " (Lq, Lk)",
            rewrite="PairBias(bias)",
        )
        leading = (b, h)[4 - bias.dim() :]
        index = [0 if bias.shape[axis] == 1 else i for axis, i in enumerate(leading)]
        return score + bias[(*index, q_idx, kv_idx)]


pair_bias: Final = PairBias()
