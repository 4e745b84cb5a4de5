"""Global and sliding window mask (Longformer): a window, and some global positions."""

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
    require_bool_tensor,
    require_whole,
    require_wholes,
)


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class GlobalWindow(MaskMod):
    """Attend to ``abs(q - kv) < window or is_global[q] or is_global[kv]``.

    A global position sees every key and is seen by every query; the others see their own position
    and ``window - 1`` keys on either side.  Definitions by the largest distance (``abs(q - kv) <=
    w``) equal ``window = w + 1``, and the paper's window, which counts both sides, ``w / 2 + 1``.

    Source: Beltagy et al., "Longformer" (2020), section 3.1, "Global Attention".

    Attributes:
        is_global: (S,) or (B, S), bools: which positions are global, with S at least the number of
            queries and of keys (`OutOfRangeError` otherwise, when the blocks are found).  Without
            it (the instance ``global_window``) using the mask is an error that says so.
        window: keys that other positions see on one side, their own among them, at least 1.
    """

    is_global: torch.Tensor | None = None
    window: int = 256

    def __post_init__(self) -> None:
        if self.is_global is not None:
            require_bool_tensor("GlobalWindow.is_global", self.is_global, dims=(1, 2))
        require_whole("GlobalWindow.window", self.window, at_least=1)

    @classmethod
    def from_positions(
        cls,
        positions: Sequence[int],
        *,
        length: int,
        window: int = 256,
        device: torch.device | str | None = None,
    ) -> GlobalWindow:
        """Return the mask with these global positions.

        Args:
            positions: the global positions, each from 0 to ``length - 1``.
            length: positions of the sequence, at least 0.
            window: as the attribute.
            device: where `is_global` lives.
        """
        require_whole("GlobalWindow.from_positions(length)", length, at_least=0)
        is_global = torch.zeros(length, dtype=torch.bool)
        require_wholes("GlobalWindow.from_positions(positions)", positions, at_least=0)
        for index, position in enumerate(positions):
            if position >= length:
                raise ArgumentError(
                    name=f"GlobalWindow.from_positions(positions)[{index}]",
                    found_value=repr(position),
                    expected=f"positions below the length {length}",
                    rewrite=f"length={position + 1}",
                )
            is_global[position] = True
        return cls(is_global.to(device), window)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        table = given(
            "GlobalWindow.is_global",
            self.is_global,
            expected="which positions are global, bools of shape (S,) or (B, S)",
            rewrite="GlobalWindow(is_global), or GlobalWindow.from_positions([0], length=4096)",
        )
        in_window = (q_idx - kv_idx).abs() < self.window
        return in_window | element(table, b, q_idx) | element(table, b, kv_idx)


global_window: Final = GlobalWindow()
