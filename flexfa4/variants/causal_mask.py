"""Causal mask: no query sees a later key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod


@dataclass(frozen=True)
class Causal(MaskMod):
    """Attend to ``kv <= q``: the query's own position and all before it.

    Positions are absolute and aligned at the start: with more keys than queries, query 0 still sees
    key 0 only.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.3.
    """

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        return kv_idx <= q_idx


causal: Final = Causal()
