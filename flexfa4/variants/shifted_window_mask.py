"""Shifted window mask: the image is cut into windows that do not see each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import require_sizes
from flexfa4.variants.token_order import Canvas, TokenOrder, inside, require_order, row_major


@dataclass(frozen=True)
class ShiftedWindow(MaskMod):
    """Attend to the tokens of the query's window: ``(q - shift) // window`` equal along each axis.

    A shift of 0 is the plain partition into windows.  The published form moves the image cyclically
    by the shift, cuts it into windows, and masks what the move brought together in the windows at
    the border.  What remains is this formula, on the image as it lies: the first windows along an
    axis have `shift` tokens, the last ones what is left over.  So the canvas need not be a multiple
    of the window either, and no padding is attended to.

    Positions behind the canvas, and padding of the order, see nothing and are seen by nothing.

    Source: Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows"
    (2021), section 3.2; over time as well: Liu et al., "Video Swin Transformer" (2022).

    Attributes:
        canvas: tokens along each axis, ``(height, width)`` for an image.
        window: tokens of a window along each axis, at least 1.
        shift: by how many tokens the windows are moved along each axis, from 0 to ``window - 1``;
            half a window in every second layer.
        order: how the tokens lie in the sequence; ``Tiled(window)`` of
            `flexfa4.variants.token_order` makes the plain partition block diagonal.
    """

    canvas: Canvas = (56, 56)
    window: tuple[int, ...] = (7, 7)
    shift: tuple[int, ...] = (3, 3)
    order: TokenOrder = row_major

    def __post_init__(self) -> None:
        require_sizes("ShiftedWindow.canvas", self.canvas)
        require_sizes("ShiftedWindow.window", self.window, axes=len(self.canvas))
        require_sizes("ShiftedWindow.shift", self.shift, axes=len(self.canvas), at_least=0)
        require_order("ShiftedWindow.order", self.order, self.canvas)
        if any(s >= w for s, w in zip(self.shift, self.window, strict=True)):
            raise ArgumentError(
                name="ShiftedWindow.shift",
                found_value=repr(self.shift),
                expected=f"less than the window {self.window} along each axis",
                rewrite=f"half a window: {tuple(w // 2 for w in self.window)}",
            )

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        q_at = self.order.coordinates(q_idx, self.canvas)
        kv_at = self.order.coordinates(kv_idx, self.canvas)
        seen = inside(q_at, self.canvas) & inside(kv_at, self.canvas)
        for q, kv, window, shift in zip(q_at, kv_at, self.window, self.shift, strict=True):
            seen = seen & ((q - shift) // window == (kv - shift) // window)
        return seen


shifted_window: Final = ShiftedWindow()
