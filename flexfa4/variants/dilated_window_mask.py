"""Dilated window mask: a sliding window with gaps between the keys that it sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import require_bool, require_whole


@dataclass(frozen=True)
class DilatedWindow(MaskMod):
    """Attend to ``0 <= q - kv < window * dilation and (q - kv) % dilation == 0``.

    That is the query's own position and ``window - 1`` keys before it, `dilation` apart; so
    `window` is the number of keys that a query sees, as in `SlidingWindow`, which is
    ``DilatedWindow(window, 1)``.  With ``causal=False`` the condition is on ``abs(q - kv)``: the
    same keys behind the query too, ``2 * window - 1`` in all.  Definitions by the largest distance
    (``abs(q - kv) <= w``) equal ``DilatedWindow(w // dilation + 1, dilation, causal=False)``.

    Source: Beltagy et al., "Longformer" (2020), section 3.1, "Dilated Sliding Window".

    Attributes:
        window: keys that a query sees on one side, its own among them, at least 1.
        dilation: distance from one of them to the next, at least 1.
        causal: without the keys behind the query.
    """

    window: int = 256
    dilation: int = 2
    causal: bool = True

    def __post_init__(self) -> None:
        require_whole("DilatedWindow.window", self.window, at_least=1)
        require_whole("DilatedWindow.dilation", self.dilation, at_least=1)
        require_bool("DilatedWindow.causal", self.causal)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        distance = q_idx - kv_idx
        reached = distance.abs() < self.window * self.dilation
        seen = reached & (distance % self.dilation == 0)
        return seen & (kv_idx <= q_idx) if self.causal else seen


dilated_window: Final = DilatedWindow()
