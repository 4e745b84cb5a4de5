"""Sliding window mask: each query sees a fixed number of keys that end at its own position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import require_whole


@dataclass(frozen=True)
class SlidingWindow(MaskMod):
    """Attend to ``0 <= q - kv < window``: the query's own position and the `window - 1` before it.

    So `window` is the number of keys that a query sees (fewer at the start of the sequence);
    ``SlidingWindow(1)`` sees the query's own position only.  Definitions by the largest distance
    (``q - kv <= w``) keep one key more: they equal ``SlidingWindow(w + 1)``.

    Changing the window neither traces nor compiles anew.

    Source: Beltagy et al., "Longformer" (2020), section 3.1, in the causal form.

    Attributes:
        window: keys that a query sees, at least 1.
    """

    window: int = 1024

    def __post_init__(self) -> None:
        require_whole("SlidingWindow.window", self.window, at_least=1)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        return (kv_idx <= q_idx) & (q_idx - kv_idx < self.window)


sliding_window: Final = SlidingWindow()
