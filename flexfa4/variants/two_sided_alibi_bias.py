"""ALiBi for encoders: the bias falls to both sides, alike or with slopes that are learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

import flexfa4
from flexfa4.combine import ScoreMod
from flexfa4.variants.parameters import given, require_float_tensor, require_whole


@dataclass(frozen=True)
class SymmetricAlibi(ScoreMod):
    """Add ``-slope * |kv - q|`` with ``slope = 2 ** (-8 * (h + 1) / num_heads)``.

    Under a causal mask this is `Alibi`.

    Source: Press et al., "Train Short, Test Long" (2021), section 3, with the distance that its
    authors propose for models without a causal mask.

    Attributes:
        num_heads: query heads over which the slopes spread, at least 1; None takes the number of
            query heads of each call.
    """

    num_heads: int | None = None

    def __post_init__(self) -> None:
        if self.num_heads is not None:
            require_whole("SymmetricAlibi.num_heads", self.num_heads, at_least=1)

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        heads: Any = flexfa4.num_heads if self.num_heads is None else self.num_heads
        slope = torch.exp2(-8.0 * (h + 1) / heads)
        return score - slope * (kv_idx - q_idx).abs()


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class AsymmetricAlibi(ScoreMod):
    """Add ``earlier[h] * (kv - q)`` for earlier keys and ``later[h] * (q - kv)`` for later ones.

    Source: Lee et al., "LittleBird: Efficient Faster & Longer Transformer for Question Answering"
    (2022), section 3 (BiALiBi), without the number that the first position has there.

    Attributes:
        earlier: (H,), learnable: by how much the bias falls for each position to the left.
        later: (H,), learnable: the same to the right.
    """

    earlier: torch.Tensor | None = None
    later: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.earlier is not None or self.later is not None:
            earlier = require_float_tensor("AsymmetricAlibi.earlier", self.earlier, ("H",))
            require_float_tensor("AsymmetricAlibi.later", self.later, (earlier.shape[0],))

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        rewrite, expected = "AsymmetricAlibi(earlier, later)", "the slope of each head, (H,)"
        earlier: Any = given(
            "AsymmetricAlibi.earlier", self.earlier, expected=expected, rewrite=rewrite
        )
        later: Any = given("AsymmetricAlibi.later", self.later, expected=expected, rewrite=rewrite)
        slope = torch.where(kv_idx < q_idx, earlier[h], later[h])
        return score - slope * (kv_idx - q_idx).abs()


asymmetric_alibi: Final = AsymmetricAlibi()
symmetric_alibi: Final = SymmetricAlibi()
