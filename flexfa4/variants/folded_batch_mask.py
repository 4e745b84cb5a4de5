"""Folded batch mask: many requests of one length, folded into one sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from flexfa4.combine import MaskMod, mask
from flexfa4.variants.causal_mask import causal
from flexfa4.variants.parameters import require_whole


@dataclass(frozen=True)
class FoldedBatch(MaskMod):
    """Attend where query and key belong to the same request and `inner` lets them:
    ``q // length == kv // length and inner(b, h, q % length, kv % length)``.

    The requests lie one behind the other, `length` positions each; `inner` sees positions inside a
    request, and b as it is in the call.  For requests of different lengths there is
    `PackedDocuments`.

    Source: `batchify_mask_mod` of attention-gym.

    Attributes:
        length: positions of a request, at least 1.
        inner: mask function or text.
    """

    length: int = 1024
    inner: Callable[..., Any] | str = causal
    _inner: MaskMod = field(init=False, repr=False, compare=False, default=causal)

    def __post_init__(self) -> None:
        require_whole("FoldedBatch.length", self.length, at_least=1)
        object.__setattr__(self, "_inner", mask(self.inner))

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        same = q_idx // self.length == kv_idx // self.length
        return same & self._inner(b, h, q_idx % self.length, kv_idx % self.length)


folded_batch: Final = FoldedBatch()
