"""Prefix mask: every query sees the whole prefix, the rest is causal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import require_index_tensor, require_whole


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class PrefixLM(MaskMod):
    """Attend to ``kv < prefix or kv <= q``.

    The first `prefix` positions see each other in both directions; later ones see the prefix and
    all positions up to their own.  ``PrefixLM(0)`` is causal.

    Source: Raffel et al., "Exploring the Limits of Transfer Learning" (2019), section 3.2.1.

    Attributes:
        prefix: positions of the prefix, at least 0; or (B,), integers: that of each batch entry.
    """

    prefix: int | torch.Tensor = 256

    def __post_init__(self) -> None:
        if isinstance(self.prefix, torch.Tensor):
            require_index_tensor("PrefixLM.prefix", self.prefix, dims=(1,))
        else:
            require_whole("PrefixLM.prefix", self.prefix, at_least=0)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        prefix: Any = self.prefix[b] if isinstance(self.prefix, torch.Tensor) else self.prefix
        return (kv_idx < prefix) | (kv_idx <= q_idx)


prefix_lm: Final = PrefixLM()
