"""Sink window mask (StreamingLLM): the first few keys, and a sliding window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import require_whole


@dataclass(frozen=True)
class SinkWindow(MaskMod):
    """Attend to ``kv <= q and (kv < sinks or q - kv < window)``.

    The first `sinks` keys stay visible for ever, the others for `window` queries: a query far from
    the start sees ``sinks + window`` keys.  ``SinkWindow(0, window)`` is `SlidingWindow`.

    The sinks here are ordinary keys.  The argument `sink` of `flexfa4.attention` is something else:
    a logit without a key.

    Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (2023), section
    3.2.  There, positions are counted inside the cache; here they are those of the text.

    Attributes:
        sinks: first keys that are always seen, at least 0.
        window: latest keys that a query sees, its own among them, at least 1.
    """

    sinks: int = 4
    window: int = 1024

    def __post_init__(self) -> None:
        require_whole("SinkWindow.sinks", self.sinks, at_least=0)
        require_whole("SinkWindow.window", self.window, at_least=1)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        return (kv_idx <= q_idx) & ((kv_idx < self.sinks) | (q_idx - kv_idx < self.window))


sink_window: Final = SinkWindow()
