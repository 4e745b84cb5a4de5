"""Image cross attention mask (Flamingo): each image is seen by an interval of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import (
    element,
    given,
    require_index_tensor,
    require_whole,
    require_wholes,
)


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class ImageCrossAttention(MaskMod):
    """Attend to ``begin <= q < end`` with ``begin, end = intervals[kv // tokens]``.

    The queries are text positions, the keys the tokens of N images, `tokens` each, one image behind
    the other.  Text outside all intervals sees nothing (out = 0, lse = -inf), and keys behind the
    last image are padding that nothing sees.

    Source: Alayrac et al., "Flamingo: a Visual Language Model for Few-Shot Learning" (2022),
    section 2.3 and appendix A.1.3: text sees the image that appeared last before it.

    Attributes:
        intervals: (N, 2) or (B, N, 2), integers, N at least 1: for each image the first text
            position that sees it, and the first one that no longer does.  Without intervals (the
            instance ``image_cross_attention``) using the mask is an error that says so.
        tokens: keys of an image, at least 1.
    """

    intervals: torch.Tensor | None = None
    tokens: int = 64

    def __post_init__(self) -> None:
        name = "ImageCrossAttention.intervals"
        require_whole("ImageCrossAttention.tokens", self.tokens, at_least=1)
        if self.intervals is None:
            return
        require_index_tensor(name, self.intervals, dims=(2, 3))
        if self.intervals.shape[-1] != 2 or self.intervals.shape[-2] < 1:
            raise ArgumentError(
                name=name,
                found_value=f"a tensor of shape {tuple(self.intervals.shape)}",
                expected="begin and end for one image or more: (N, 2) or (B, N, 2)",
                rewrite="torch.tensor([[0, 10], [10, 30]]) for two images",
            )

    @classmethod
    def from_image_positions(
        cls,
        positions: Sequence[int],
        *,
        length: int,
        tokens: int = 64,
        device: torch.device | str | None = None,
    ) -> ImageCrossAttention:
        """Return the mask in which text sees the image that appeared last before it.

        Args:
            positions: where the images appear in the text, never falling: an image is seen from
                there to the next one.
            length: positions of the text; the last image is seen to its end.
            tokens: as the attribute.
            device: where the intervals live.
        """
        name = "ImageCrossAttention.from_image_positions"
        require_whole(f"{name}(length)", length, at_least=0)
        require_wholes(f"{name}(positions)", positions, at_least=0)
        marks = [*positions, length]
        if not positions or marks != sorted(marks):
            raise ArgumentError(
                name=f"{name}(positions)",
                found_value=repr(list(positions)),
                expected=f"one position or more that never fall, at most the length {length}",
                rewrite="sorted(positions)",
            )
        return cls(torch.tensor([marks[:-1], marks[1:]], device=device).T, tokens)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        table = given(
            "ImageCrossAttention.intervals",
            self.intervals,
            expected="the text positions that see each image, shape (N, 2) or (B, N, 2)",
            rewrite="ImageCrossAttention(intervals), or "
            "ImageCrossAttention.from_image_positions([0, 10], length=30)",
        )
        count = table.shape[-2]
        image = kv_idx // self.tokens
        begin, end = (element(table, b, image.clamp(max=count - 1), side) for side in (0, 1))
        return (image < count) & (begin <= q_idx) & (q_idx < end)


image_cross_attention: Final = ImageCrossAttention()
