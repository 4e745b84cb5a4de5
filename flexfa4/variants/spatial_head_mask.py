"""Spatial head mask of a video: each token sees its own frame and those next to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.variants.parameters import require_bool, require_positive, require_whole


@dataclass(frozen=True)
class SpatialHead(MaskMod):
    """Attend to what is less than `reach` positions away, to the text, and to the first frame.

    The sequence is ``text`` tokens of the prompt, then the frames one behind the other::

        seen = |q - kv| < reach  or  q < text  or  kv < text + (frame_tokens if sink else 0)

    ``reach`` is ``width * frame_tokens``, rounded down to a multiple of `multiple` that is not 0: a
    width below one multiple sees one multiple, and never nothing.  Positions behind the last frame
    see nothing and are seen by nothing.

    The same mask serves a temporal head whose tokens were reordered to lie location by location; on
    tokens frame by frame that is ``TemporalHead``.

    Source: Xi et al., "Sparse VideoGen: Accelerating Video Diffusion Transformers with
    Spatial-Temporal Sparsity" (2025), as a formula of positions.

    Attributes:
        text: tokens of the prompt, at least 0.
        frames: frames of the video, at least 1.
        frame_tokens: tokens of a frame, at least 1.
        width: how far a token sees, in frames: a number above 0.
        sink: whether all see the first frame.
        multiple: what the reach is a multiple of, the size of a block for kernels' sake, at least
            1, which rounds to whole tokens.
    """

    text: int = 226
    frames: int = 13
    frame_tokens: int = 1350
    width: float = 2
    sink: bool = False
    multiple: int = 128

    def __post_init__(self) -> None:
        require_whole("SpatialHead.text", self.text, at_least=0)
        for name in ("frames", "frame_tokens", "multiple"):
            require_whole(f"SpatialHead.{name}", getattr(self, name), at_least=1)
        require_positive("SpatialHead.width", self.width)
        require_bool("SpatialHead.sink", self.sink)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        multiples = math.floor(self.width * self.frame_tokens / self.multiple)
        reach = max(multiples, 1) * self.multiple
        always = self.text + self.frame_tokens if self.sink else self.text
        near = (q_idx - kv_idx).abs() < reach
        end = self.text + self.frames * self.frame_tokens
        seen = near | (q_idx < self.text) | (kv_idx < always)
        return seen & (q_idx < end) & (kv_idx < end)


spatial_head: Final = SpatialHead()
