"""Axial mask: each token sees its own row, column or other line of the canvas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import require_sizes, require_whole
from flexfa4.variants.token_order import Canvas, TokenOrder, inside, require_order, row_major


@dataclass(frozen=True)
class Axial(MaskMod):
    """Attend to the tokens whose coordinates differ from the query's along `axis` only.

    On a canvas ``(height, width)``, axis 1 is the query's row and axis 0 its column;
    ``Axial(canvas, 0) | Axial(canvas, 1)`` is both at once.  Positions behind the canvas, and
    padding of the order, see nothing and are seen by nothing.

    Source: Ho et al., "Axial Attention in Multidimensional Transformers" (2019), section 3.

    Attributes:
        canvas: tokens along each axis, the slowest first.
        axis: the axis along which tokens see each other, from 0 to ``len(canvas) - 1``.
        order: how the tokens lie in the sequence, from `flexfa4.variants.token_order`.
    """

    canvas: Canvas = (32, 32)
    axis: int = 1
    order: TokenOrder = row_major

    def __post_init__(self) -> None:
        require_sizes("Axial.canvas", self.canvas)
        require_whole("Axial.axis", self.axis, at_least=0)
        if self.axis >= len(self.canvas):
            raise ArgumentError(
                name="Axial.axis",
                found_value=repr(self.axis),
                expected=f"an axis of the canvas {self.canvas}, from 0 to {len(self.canvas) - 1}",
                rewrite=f"Axial({self.canvas}, axis={len(self.canvas) - 1})",
            )
        require_order("Axial.order", self.order, self.canvas)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        q_at = self.order.coordinates(q_idx, self.canvas)
        kv_at = self.order.coordinates(kv_idx, self.canvas)
        seen = inside(q_at, self.canvas) & inside(kv_at, self.canvas)
        for axis, (q, kv) in enumerate(zip(q_at, kv_at, strict=True)):
            if axis != self.axis:
                seen = seen & (q == kv)
        return seen


axial: Final = Axial()
