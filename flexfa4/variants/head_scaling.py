"""A factor for each head: the inverse temperature that goes with normalised queries and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import ScoreMod
from flexfa4.variants.parameters import given, require_float_tensor, require_positive


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class HeadScale(ScoreMod):
    """Return ``score * factor[h]``.

    With queries and keys of unit length and ``scale=1.0``, scores are cosines, and the factor says
    how sharp the softmax of each head is.  It may have any sign and be zero.

        factor = torch.nn.Parameter(torch.full((heads,), 10.0))
        unit = torch.nn.functional.normalize
        out = flexfa4.attention(
            unit(q, dim=-1), unit(k, dim=-1), v, score_mod=HeadScale(factor), scale=1.0
        )

    Swin's form learns the logarithm: ``HeadScale.from_log(log_factor)``.

    Source: Henry et al., "Query-Key Normalization for Transformers" (2020), section 3.

    Attributes:
        factor: (H,), learnable.
    """

    factor: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.factor is not None:
            require_float_tensor("HeadScale.factor", self.factor, ("H",))

    @classmethod
    def from_log(cls, log_factor: torch.Tensor, *, most: float = 100.0) -> HeadScale:
        """Return the factors ``min(exp(log_factor), most)``; make the mod anew in each forward.

        Source: Liu et al., "Swin Transformer V2" (2022), section 3.2 (scaled cosine attention).

        Args:
            log_factor: (H,), or (H, 1, 1) as in the authors' code, learnable.
            most: the largest factor, above 0.
        """
        require_float_tensor("HeadScale.from_log(log_factor)", log_factor, ("H",), ("H", 1, 1))
        require_positive("HeadScale.from_log(most)", most)
        return cls(log_factor.flatten().exp().clamp(max=most))

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the scaled score."""
        factor: Any = given(
            "HeadScale.factor",
            self.factor,
            expected="a factor for each head, a tensor of shape (H,)",
            rewrite="HeadScale(torch.nn.Parameter(torch.ones(heads)))",
        )
        return score * factor[h]


head_scale: Final = HeadScale()
