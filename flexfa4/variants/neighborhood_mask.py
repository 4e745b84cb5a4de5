"""Neighborhood mask: each token of an image or a video sees a window of tokens around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flexfa4.combine import MaskMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import require_sizes
from flexfa4.variants.token_order import Canvas, TokenOrder, inside, require_order, row_major


@dataclass(frozen=True)
class Neighborhood(MaskMod):
    """Attend to the `kernel` tokens around the query along each axis, moved inwards at the border.

    Along an axis of ``n`` tokens, the query at ``q`` sees the keys from ``start`` to ``start +
    kernel - 1``, with ``start = min(max(q - kernel // 2, 0), n - kernel)``: every query sees as
    many keys.  An even kernel reaches one token further back than forward.  With a dilation ``d``
    the same holds among the tokens whose coordinate has the query's remainder by ``d``.

    1-D, 2-D and 3-D neighborhood attention, tiled and Morton order included, are this class with
    another canvas or order.  Positions behind the canvas, and padding of the order, see nothing and
    are seen by nothing.  New sizes neither trace nor compile anew, those of a Morton order apart.

    Source: Hassani et al., "Neighborhood Attention Transformer" (2023), section 3.1, with even
    kernels as in their library NATTEN; dilation: Hassani and Shi, "Dilated Neighborhood Attention
    Transformer" (2022), section 3.

    Attributes:
        canvas: tokens along each axis, ``(height, width)`` for an image.
        kernel: keys that a query sees along each axis, at most the canvas has there.
        dilation: distance of these keys along each axis, with ``kernel * dilation`` at most the
            canvas; None for 1 everywhere.
        order: how the tokens lie in the sequence: ``row_major``, ``Tiled(tile)`` or ``Morton()`` of
            `flexfa4.variants.token_order`.
    """

    canvas: Canvas = (56, 56)
    kernel: tuple[int, ...] = (7, 7)
    dilation: tuple[int, ...] | None = None
    order: TokenOrder = row_major

    def __post_init__(self) -> None:
        require_sizes("Neighborhood.canvas", self.canvas)
        require_sizes("Neighborhood.kernel", self.kernel, axes=len(self.canvas))
        dilation = (1,) * len(self.canvas)
        if self.dilation is not None:
            require_sizes("Neighborhood.dilation", self.dilation, axes=len(self.canvas))
            dilation = self.dilation
        require_order("Neighborhood.order", self.order, self.canvas)
        for size, kernel, step in zip(self.canvas, self.kernel, dilation, strict=True):
            if kernel * step > size:
                dilated = f" dilated by {dilation}" if self.dilation else ""
                raise ArgumentError(
                    name="Neighborhood.kernel",
                    found_value=f"{self.kernel}{dilated}",
                    expected=f"no more tokens than the canvas {self.canvas} has along each axis",
                    rewrite=f"a kernel of at most {size // step} there, or a larger canvas",
                )

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        q_at = self.order.coordinates(q_idx, self.canvas)
        kv_at = self.order.coordinates(kv_idx, self.canvas)
        seen = inside(q_at, self.canvas)  # keys in padding lie in no window
        steps = self.dilation or (None,) * len(self.canvas)
        for q, kv, size, kernel, step in zip(
            q_at, kv_at, self.canvas, self.kernel, steps, strict=True
        ):
            if step is not None:
                seen = seen & (q % step == kv % step)
                size = (size - q % step + step - 1) // step  # tokens with this remainder
                q, kv = q // step, kv // step
            seen = seen & in_window(q, kv, size, kernel)
        return seen


def in_window(q: Any, kv: Any, size: Any, kernel: Any) -> Any:
    """Return where `kv` is one of the `kernel` coordinates around `q`, of an axis of `size`."""
    start = (q - kernel // 2).clamp(min=0).clamp(max=size - kernel)
    return (start <= kv) & (kv < start + kernel)


neighborhood: Final = Neighborhood()
