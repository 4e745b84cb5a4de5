"""Multi-head latent attention: the rotary part of the scores, which has vectors of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

import flexfa4
from flexfa4.combine import ScoreMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import given, require_float_tensor, require_positive


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class MlaRope(ScoreMod):
    """Add ``scale * dot(q_rope[b, h, q], k_rope[b, h // group, kv])``.

    Query and key of attention hold the part without positions; this adds the part that was rotated
    by the positions.  Both take one scale, of the whole length:

        scale = (dim + rope_dim) ** -0.5
        mod = MlaRope(q_rope, k_rope, scale=scale)
        out = flexfa4.attention(q, k, v, score_mod=mod, scale=scale)

    A query head reads the rotary key head ``h // group`` with ``group = Hq // Hr``, so that one
    rotary key head (as in the paper) serves all; the key heads of attention may be others.

    Source: DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1.3 (decoupled rotary position embedding).

    Attributes:
        q_rope: (B, Hq, Lq, R), rotated; gets gradients.  A call of other than Hq query heads is an
            `OutOfRangeError`.
        k_rope: (B, Hr, Lk, R), rotated; gets gradients.  Hr divides Hq.
        scale: factor of the product, above 0; by default 1.
    """

    q_rope: torch.Tensor | None = None
    k_rope: torch.Tensor | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive("MlaRope.scale", self.scale)
        if self.q_rope is None:
            return
        batch, heads, _, dim = require_float_tensor(
            "MlaRope.q_rope", self.q_rope, ("B", "Hq", "Lq", "R")
        ).shape
        shape = (batch, "Hr", "Lk", dim)
        key_heads = require_float_tensor("MlaRope.k_rope", self.k_rope, shape).shape[1]
        if not key_heads or heads % key_heads:
            raise ArgumentError(
                name="MlaRope.k_rope",
                found_value=f"a tensor of {key_heads} heads, with q_rope of {heads}",
                expected="a number of heads that divides q_rope's",
                rewrite="one head for all: k_rope of shape (B, 1, Lk, R)",
            )

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the score of both parts."""
        rewrite = "MlaRope(q_rope, k_rope, scale=scale)"
        expected = "the rotated vectors, tensors of shape (B, Hq, Lq, R) and (B, Hr, Lk, R)"
        q_rope = given("MlaRope.q_rope", self.q_rope, expected=expected, rewrite=rewrite)
        k_rope = given("MlaRope.k_rope", self.k_rope, expected=expected, rewrite=rewrite)
        heads = q_rope.shape[1]
        group = heads // k_rope.shape[1]
        # vectors for other query heads than the call's would pair the wrong ones: out of range
        head = torch.where(flexfa4.num_heads == heads, h, heads)
        return score + self.scale * (q_rope[b, head, q_idx] * k_rope[b, h // group, kv_idx]).sum(-1)


mla_rope: Final = MlaRope()
