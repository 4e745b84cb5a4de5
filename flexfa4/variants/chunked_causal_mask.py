"""Chunked mask: causal inside chunks of fixed length, nothing across them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import require_whole


@dataclass(frozen=True)
class ChunkedCausal(MaskMod):
    """Attend to ``kv <= q and q // chunk == kv // chunk``.

    Chunks lie at fixed positions: the first position of a chunk sees itself only, the last one sees
    all `chunk` keys.  A sliding window, in contrast, moves with the query.

    Source: Llama 4 (Meta, 2025), the layers with rotary positions: "chunked attention".

    Attributes:
        chunk: positions of a chunk, at least 1.
    """

    chunk: int = 8192

    def __post_init__(self) -> None:
        require_whole("ChunkedCausal.chunk", self.chunk, at_least=1)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        return (kv_idx <= q_idx) & (q_idx // self.chunk == kv_idx // self.chunk)


chunked_causal: Final = ChunkedCausal()
