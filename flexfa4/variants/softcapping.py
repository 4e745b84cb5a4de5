"""Soft capping: scores are squeezed into an open interval around zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import ScoreMod
from flexfa4.variants.parameters import require_positive


@dataclass(frozen=True)
class Softcap(ScoreMod):
    """Return ``cap * tanh(score / cap)``, which lies between -cap and cap.

    Scores much smaller than the cap stay almost as they are.  Changing the cap neither traces nor
    compiles anew.

    Source: Gemma Team, "Gemma 2" (2024), section 2 (there with a cap of 50).

    Attributes:
        cap: the bound, finite and above 0.
    """

    cap: float = 50.0

    def __post_init__(self) -> None:
        require_positive("Softcap.cap", self.cap)

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the capped score."""
        return self.cap * torch.tanh(score / self.cap)


softcap: Final = Softcap()
