"""LongNet's dilated attention: every dilation-th position of a segment sees the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import require_bool, require_whole


@dataclass(frozen=True)
class LongNet(MaskMod):
    """Attend where query and key lie in one segment and both are among its selected positions.

    ``q // segment == kv // segment``, and ``(q % segment) % dilation == (kv % segment) % dilation
    == h % dilation``: head h selects every dilation-th position from ``h % dilation`` on, so that
    `dilation` heads cover all positions.  With `causal` also ``kv <= q``.  A query that its head
    does not select sees nothing (out = 0, lse = -inf).

    The paper mixes several (segment, dilation) pairs: ``LongNet(64, 1) | LongNet(256, 4)`` is one
    softmax over the keys of either.  It differs from the paper's mixture where both patterns hold
    the same key, which the mixture counts twice: for that, run one call for each pair and add the
    outputs with weights ``softmax([lse_1, lse_2])``.

    Source: Ding et al., "LongNet: Scaling Transformers to 1,000,000,000 Tokens" (2023), sections
    2.2 and 2.3.

    Attributes:
        segment: positions of a segment, at least 1.
        dilation: distance from one selected position to the next, at least 1.
        causal: without keys behind the query.
    """

    segment: int = 2048
    dilation: int = 4
    causal: bool = True

    def __post_init__(self) -> None:
        require_whole("LongNet.segment", self.segment, at_least=1)
        require_whole("LongNet.dilation", self.dilation, at_least=1)
        require_bool("LongNet.causal", self.causal)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        first = h % self.dilation
        q_selected = q_idx % self.segment % self.dilation == first
        kv_selected = kv_idx % self.segment % self.dilation == first
        seen = (q_idx // self.segment == kv_idx // self.segment) & q_selected & kv_selected
        return seen & (kv_idx <= q_idx) if self.causal else seen


longnet: Final = LongNet()
