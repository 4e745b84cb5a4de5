"""Causal mask aligned at the ends: the last query sees all keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import flexfa4
from flexfa4.combine import MaskMod


@dataclass(frozen=True)
class BottomRightCausal(MaskMod):
    """Attend to ``kv <= q + kv_len - q_len``: the queries are the last ones of the sequence.

    For queries that continue a sequence whose keys are all there, and as FlashAttention 2 aligns
    ``causal=True``.  With as many keys as queries it is causal; with fewer keys, the first ``q_len
    - kv_len`` queries see nothing (out = 0, lse = -inf).  It reads the lengths of each call; where
    the number of valid keys is not `kv_len`, use `OffsetCausal`.

    Source: Dao, "FlashAttention-2" (2023), section 3.1.1; the alignment is that of release 2.1.
    """

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        ahead: Any = flexfa4.kv_len - flexfa4.q_len
        return kv_idx <= q_idx + ahead


bottom_right_causal: Final = BottomRightCausal()
