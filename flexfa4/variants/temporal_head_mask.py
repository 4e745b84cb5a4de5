"""Temporal head mask of a video: each token sees its own location in every frame."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import require_positive, require_whole


@dataclass(frozen=True)
class TemporalHead(MaskMod):
    """Attend to the same and close locations of all frames, and to the text.

    The sequence is ``text`` tokens of the prompt, then the frames one behind the other.  With
    ``at(i) = (i - text) % frame_tokens``, the place of a token in its frame::

        seen = |at(q) - at(kv)| < reach  or  q < text  or  kv < text

    ``reach`` is ``width * frame_tokens / frames``, rounded down, at least 1: as many keys as a band
    of `width` frames has, and never less than the location itself.  Positions behind the last frame
    see nothing and are seen by nothing.

    Source: Xi et al., "Sparse VideoGen: Accelerating Video Diffusion Transformers with
    Spatial-Temporal Sparsity" (2025), as a formula of positions.

    Attributes:
        text: tokens of the prompt, at least 0.
        frames: frames of the video, at least 1.
        frame_tokens: tokens of a frame, at least 1.
        width: how many frames' worth of keys a token sees to either side: a number above 0.
    """

    text: int = 226
    frames: int = 13
    frame_tokens: int = 1350
    width: float = 2

    def __post_init__(self) -> None:
        require_whole("TemporalHead.text", self.text, at_least=0)
        for name in ("frames", "frame_tokens"):
            require_whole(f"TemporalHead.{name}", getattr(self, name), at_least=1)
        require_positive("TemporalHead.width", self.width)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        reach = max(math.floor(self.width * self.frame_tokens / self.frames), 1)
        q_at, kv_at = ((i - self.text) % self.frame_tokens for i in (q_idx, kv_idx))
        end = self.text + self.frames * self.frame_tokens
        seen = ((q_at - kv_at).abs() < reach) | (q_idx < self.text) | (kv_idx < self.text)
        return seen & (q_idx < end) & (kv_idx < end)


temporal_head: Final = TemporalHead()
