"""Causal mask for queries that begin later than the keys, as in decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import of_batch, require_whole_or_per_batch


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class OffsetCausal(MaskMod):
    """Attend to ``kv <= q + offset``: query 0 stands at position `offset` of the keys.

    For decoding and chunked prefill against a key cache: `offset` is the number of keys that lie
    before the first query.  Keys behind ``q + offset`` are not seen, so the cache may be longer
    than what is valid in it.  ``OffsetCausal(0)`` is causal, ``OffsetCausal(-1)`` leaves out the
    own position too.

    A new offset, in an int or in a tensor, neither traces nor compiles anew.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.3, for positions
    ``q + offset``.

    Attributes:
        offset: position of query 0, any int; or integers (): the same for all, or (B,): that of
            each batch entry.
    """

    offset: int | torch.Tensor = 0

    def __post_init__(self) -> None:
        require_whole_or_per_batch("OffsetCausal.offset", self.offset, at_least=None)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        return kv_idx <= q_idx + of_batch(self.offset, b)


offset_causal: Final = OffsetCausal()
