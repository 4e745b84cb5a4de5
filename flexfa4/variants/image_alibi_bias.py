"""ALiBi in two dimensions: the bias falls with the distance between two patches of an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

import flexfa4
from flexfa4.combine import ScoreMod
from flexfa4.variants.parameters import require_whole


@dataclass(frozen=True)
class Alibi2D(ScoreMod):
    """Add ``-slope * sqrt(dx ** 2 + dy ** 2)`` with ``slope = 2 ** (-8 * (h + 1) / num_heads)``.

    Patches are numbered row by row: position i lies in column ``i % width`` of row ``i // width``.
    The height need not be known.

    Source: Fuller et al., "CROMA: Remote Sensing Representations with Contrastive Radar-Optical
    Masked Autoencoders" (2023), 2D-ALiBi; slopes as in Press et al. (2021), section 3.

    Attributes:
        width: patches in a row, at least 1; 14 is that of an image of 224 pixels in patches of 16.
        num_heads: query heads over which the slopes spread, at least 1; None takes the number of
            query heads of each call.
    """

    width: int = 14
    num_heads: int | None = None

    def __post_init__(self) -> None:
        require_whole("Alibi2D.width", self.width, at_least=1)
        if self.num_heads is not None:
            require_whole("Alibi2D.num_heads", self.num_heads, at_least=1)

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        heads: Any = flexfa4.num_heads if self.num_heads is None else self.num_heads
        slope = torch.exp2(-8.0 * (h + 1) / heads)
        dx = q_idx % self.width - kv_idx % self.width
        dy = q_idx // self.width - kv_idx // self.width
        return score - slope * torch.sqrt(dx * dx + dy * dy)


alibi_2d: Final = Alibi2D()
