"""Swin's bias: a learned number for each displacement inside a window of an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import ScoreMod
from flexfa4.variants.parameters import given, require_float_tensor, require_sizes


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class SwinBias(ScoreMod):
    """Add ``table[(dy + M_h - 1) * (2 * M_w - 1) + dx + M_w - 1, h]``, d being query minus key.

    Patches are numbered row by row inside a window of M_h rows and M_w columns.  Windows may share
    a sequence, one behind the other: the bias depends on the places inside the windows only.

        table = torch.nn.Parameter(torch.zeros(13 * 13, heads))
        mod = SwinBias(table, window=(7, 7))

    Source: Liu et al., "Swin Transformer" (2021), section 3.2 (relative position bias); order of
    the table as in the authors' code, so that their weights fit.

    Attributes:
        table: ((2 * M_h - 1) * (2 * M_w - 1), H), learnable.
        window: (M_h, M_w), each at least 1.
    """

    table: torch.Tensor | None = None
    window: tuple[int, int] = (7, 7)

    def __post_init__(self) -> None:
        require_sizes("SwinBias.window", self.window, axes=2)
        height, width = self.window
        if self.table is not None:
            rows = (2 * height - 1) * (2 * width - 1)
            require_float_tensor("SwinBias.table", self.table, (rows, "H"))

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        table: Any = given(
            "SwinBias.table",
            self.table,
            expected="a tensor of shape ((2 * M_h - 1) * (2 * M_w - 1), H)",
            rewrite="SwinBias(torch.nn.Parameter(torch.zeros(13 * 13, heads)), window=(7, 7))",
        )
        height, width = self.window
        q, kv = q_idx % (height * width), kv_idx % (height * width)
        dy, dx = q // width - kv // width, q % width - kv % width
        return score + table[(dy + height - 1) * (2 * width - 1) + dx + width - 1, h]


swin_bias: Final = SwinBias()
