"""Local window mask: each query sees a fixed number of keys on either side of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import require_whole


@dataclass(frozen=True)
class LocalWindow(MaskMod):
    """Attend to ``-left <= kv - q <= right``: `left` keys before the query's position, and `right`
    behind it.

    The own position is not counted, so a query sees ``left + 1 + right`` keys (fewer at the ends of
    the sequence): as ``window_size=(left, right)`` of FlashAttention counts, but with query 0 and
    key 0 at the same position whatever the lengths.  ``LocalWindow(w, 0)``, by the largest
    distance, is `SlidingWindow` ``(w + 1)``, by the number of keys.

    Changing the window neither traces nor compiles anew.

    Source: Beltagy et al., "Longformer" (2020), section 3.1: ``left = right = w / 2``.

    Attributes:
        left: keys before the query's own position, at least 0.
        right: keys behind it, at least 0.
    """

    left: int = 256
    right: int = 256

    def __post_init__(self) -> None:
        require_whole("LocalWindow.left", self.left, at_least=0)
        require_whole("LocalWindow.right", self.right, at_least=0)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        return (q_idx - kv_idx <= self.left) & (kv_idx - q_idx <= self.right)


local_window: Final = LocalWindow()
