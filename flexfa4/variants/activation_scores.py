"""Attention with another function in place of the exponential, and without normalisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import ScoreMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import require_positive


@dataclass(frozen=True)
class ActivationScore(ScoreMod):
    """Return ``log(f(score) + offset)``, so that softmax's exponential gives ``f(score) + offset``.

    `undo_softmax` then takes the sum of the weights and the offset out of the result: what is left
    is ``f(scores) @ value``.

        mod = ActivationScore(torch.nn.functional.gelu)
        out, lse = flexfa4.attention(q, k, v, score_mod=mod, return_lse=True)
        out = mod.undo_softmax(out, lse, v.sum(-2, keepdim=True))

    ``f(score) + offset`` must be above 0 for every visible score; the larger the offset, the fewer
    digits are left of f.

    Source: the identity exp(log(x)) = x; attention without softmax as in Hua et al., "Transformer
    Quality in Linear Time" (2022), section 2.

    Attributes:
        activation: f, of element-wise torch functions.
        offset: what makes f positive, above 0.  gelu is at least -0.17.
    """

    activation: Callable[[Any], Any] = torch.nn.functional.gelu
    offset: float = 1.0

    def __post_init__(self) -> None:
        if not callable(self.activation):
            raise ArgumentError(
                name="ActivationScore.activation",
                found_value=repr(self.activation),
                expected="a function of the score",
                rewrite="pass a function such as torch.nn.functional.gelu",
            )
        require_positive("ActivationScore.offset", self.offset)

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the logarithm of the weight before normalisation."""
        return torch.log(self.activation(score) + self.offset)

    def undo_softmax(
        self, out: torch.Tensor, lse: torch.Tensor, value_sum: torch.Tensor
    ) -> torch.Tensor:
        """Return ``f(scores) @ value``, in the dtype of `out`.

        Args:
            out: (B, Hq, Lq, Dv), from attention with this mod.
            lse: (B, Hq, Lq), from the same call, which must have had no sink.
            value_sum: the sum of the values that a query sees, in a shape that broadcasts with
                `out`: ``value.sum(-2, keepdim=True)`` without a mask, ``value.cumsum(-2)`` under a
                causal one; for fewer key heads repeated, ``.repeat_interleave(group, dim=1)``.
        """
        total = lse.exp()[..., None] * out.to(lse.dtype)
        return (total - self.offset * value_sum.to(lse.dtype)).to(out.dtype)


activation_score: Final = ActivationScore()
