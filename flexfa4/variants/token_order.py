"""How the tokens of an image or a video lie in a sequence: the one place that knows.

A canvas is the tuple of its axes' sizes, the slowest first: ``(height, width)``, ``(frames, height,
width)``.  A `TokenOrder` maps a position in the sequence to coordinates on the canvas; the masks of
this package that read coordinates take one as ``order``.  The same map, read backwards, moves
tokens between the row-major order and this one (`arrange`, `restore`).

An order may need more positions than the canvas has tokens: those whose coordinates lie outside
are padding.  Masks let padding see nothing and be seen by nothing, whether it lies in between or
behind the canvas.

Orders that are given as a table are not served: a mask that reads coordinates from a captured
tensor is written as quickly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.errors import ArgumentError, TokensShapeError, describe
from flexfa4.variants.parameters import require_sizes

Canvas = tuple[int, ...]


class TokenOrder(ABC):
    """Base of the orders: an order says where the token at each position lies."""

    @abstractmethod
    def coordinates(self, index: Any, canvas: Canvas) -> tuple[Any, ...]:
        """Return the coordinates of the token at position `index`, one for each axis of `canvas`.

        None is negative; where one of them is not below the size of its axis, the position is
        padding.  `index` is a traced value, an integer tensor of any shape, or an int.
        """

    @abstractmethod
    def length(self, canvas: Canvas) -> int:
        """Return the number of positions that hold a whole canvas, padding included."""

    @property
    def axes(self) -> int | None:
        """Axes of the canvases that this order is for; None where it serves any."""
        return None

    def positions(
        self, canvas: Canvas, *, device: torch.device | str | None = None
    ) -> torch.Tensor:
        """Return the position of each token, the tokens in row-major order: (tokens,), int64."""
        index = torch.arange(self.length(canvas), device=device)
        coordinates = self.coordinates(index, canvas)
        row_major = torch.zeros_like(index)
        for coordinate, size in zip(coordinates, canvas, strict=True):
            row_major = row_major * size + coordinate
        real = inside(coordinates, canvas)
        positions = torch.empty(math.prod(canvas), dtype=torch.int64, device=device)
        positions[row_major[real]] = index[real]
        return positions

    def arrange(self, tokens: torch.Tensor, canvas: Canvas) -> torch.Tensor:
        """Bring row-major tokens into this order.

        Args:
            tokens: (..., math.prod(canvas), D).
            canvas: sizes of the axes.

        Returns:
            (..., length(canvas), D), zeros where padding lies.

        Raises:
            ShapeMismatchError: `tokens` has another length than the canvas.
        """
        positions = self.positions(canvas, device=tokens.device)
        return scatter_tokens(tokens, positions, self.length(canvas))

    def restore(self, tokens: torch.Tensor, canvas: Canvas) -> torch.Tensor:
        """Bring tokens of this order back into row-major order: the inverse of `arrange`.

        Args:
            tokens: (..., length(canvas), D).
            canvas: sizes of the axes.

        Returns:
            (..., math.prod(canvas), D).

        Raises:
            ShapeMismatchError: `tokens` has another length than the order gives the canvas.
        """
        positions = self.positions(canvas, device=tokens.device)
        return gather_tokens(tokens, positions, self.length(canvas))


@dataclass(frozen=True)
class RowMajor(TokenOrder):
    """Row by row, as a canvas lies in memory: the last axis varies fastest."""

    def coordinates(self, index: Any, canvas: Canvas) -> tuple[Any, ...]:
        """Return the coordinates; behind the canvas, the first one goes on growing."""
        found = []
        for size in reversed(canvas[1:]):
            found.append(index % size)
            index = index // size
        return (index, *reversed(found))

    def length(self, canvas: Canvas) -> int:
        """Return the number of tokens: this order has no padding."""
        return math.prod(canvas)


@dataclass(frozen=True)
class Tiled(TokenOrder):
    """Tile by tile, the tiles row-major on the canvas and the tokens row-major in each tile.

    Where a tile does not divide the canvas, the tiles at the border are filled up with padding.

    Attributes:
        tile: size of a tile along each axis, each at least 1.
    """

    tile: tuple[int, ...]

    def __post_init__(self) -> None:
        require_sizes("Tiled.tile", self.tile)

    @property
    def axes(self) -> int:
        """Axes of a tile, and of the canvases that it tiles."""
        return len(self.tile)

    def coordinates(self, index: Any, canvas: Canvas) -> tuple[Any, ...]:
        """Return the coordinates: those of the tile, times its size, plus those in the tile."""
        tokens = math.prod(self.tile)
        grid = tile_grid(canvas, self.tile)
        outer = row_major.coordinates(index // tokens, grid)
        inner = row_major.coordinates(index % tokens, self.tile)
        axes = zip(outer, self.tile, inner, strict=True)
        return tuple(o * size + i for o, size, i in axes)

    def length(self, canvas: Canvas) -> int:
        """Return the tokens of all tiles, those at the border filled up."""
        return math.prod(tile_grid(canvas, self.tile)) * math.prod(self.tile)


@dataclass(frozen=True)
class Morton(TokenOrder):
    """The Z-order curve: the bits of the coordinates interleaved, those of the last axis lowest.

    The canvas is filled up to powers of two along each axis; an axis that has no bits left takes
    no further part, so a canvas of 4 x 16 tokens has no padding.

    Source: Morton, "A Computer Oriented Geodetic Data Base and a New Technique in File Sequencing"
    (1966).
    """

    def coordinates(self, index: Any, canvas: Canvas) -> tuple[Any, ...]:
        """Return the coordinates; behind the curve, the first one goes on growing."""
        bits = _bits(canvas)
        found = [index * 0] * len(bits)  # an axis of one token has no bits
        place = 0
        for bit in range(max(bits)):
            for axis in reversed(range(len(bits))):
                if bit < bits[axis]:
                    found[axis] = found[axis] + (((index >> place) & 1) << bit)
                    place += 1
        found[0] = found[0] + ((index >> place) << bits[0])
        return tuple(found)

    def length(self, canvas: Canvas) -> int:
        """Return the product of the axes' sizes, each filled up to a power of two."""
        return math.prod(1 << count for count in _bits(canvas))


row_major: Final = RowMajor()


def require_order(name: str, value: object, canvas: Canvas) -> None:
    """Refuse what is no order, or one that does not go with `canvas`.

    Raises:
        ArgumentError: it is not.
    """
    if isinstance(value, TokenOrder) and value.axes in (None, len(canvas)):
        return
    raise ArgumentError(
        name=name,
        found_value=repr(value) if isinstance(value, TokenOrder) else describe(value),
        expected=f"a TokenOrder of flexfa4.variants.token_order for the canvas {canvas}",
        rewrite=f"row_major, Tiled({(8,) * len(canvas)}) or Morton()",
    )


def tile_grid(canvas: Canvas, tile: Sequence[int]) -> tuple[int, ...]:
    """Return how many tiles cover the canvas along each axis."""
    return tuple(-(-size // t) for size, t in zip(canvas, tile, strict=True))


def inside(coordinates: Sequence[Any], canvas: Canvas) -> Any:
    """Return where coordinates lie on the canvas, and not in padding."""
    seen = True
    for coordinate, size in zip(coordinates, canvas, strict=True):
        seen = seen & (coordinate < size)
    return seen


def _bits(canvas: Canvas) -> tuple[int, ...]:
    """Return the bits of the largest coordinate along each axis."""
    return tuple((int(size) - 1).bit_length() for size in canvas)


def scatter_tokens(tokens: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
    """Return (..., `length`, D), the tokens (..., N, D) at their `positions` (N,), else zeros.

    Raises:
        TokensShapeError: there are not as many tokens as positions.
    """
    _check_length(tokens, len(positions))
    padded = tokens.new_zeros(*tokens.shape[:-2], length, tokens.shape[-1])
    return padded.index_copy(-2, positions, tokens)


def gather_tokens(tokens: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
    """Return (..., N, D), the tokens at `positions` (N,) of a sequence (..., `length`, D).

    Raises:
        TokensShapeError: the sequence has another length.
    """
    _check_length(tokens, length)
    return tokens.index_select(-2, positions)


def _check_length(tokens: torch.Tensor, length: int) -> None:
    if tokens.dim() < 2 or tokens.shape[-2] != length:
        raise TokensShapeError(shape=tuple(tokens.shape), length=length)
