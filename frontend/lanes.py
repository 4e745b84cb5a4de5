"""Lanes: where in the index space (b, h, q, kv) a graph is evaluated, and the indices there.

A rectangle of scores, or tiles of one shape scattered over the index space.  Says which indices
there are and how they broadcast; what is computed from them is the evaluator's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

AXES: Final = {"b": 0, "h": 1, "q": 2, "kv": 3}


@dataclass(frozen=True)
class Lanes:
    """A rectangle of scores: half-open ranges of batch, head, query and key."""

    b: tuple[int, int]
    h: tuple[int, int]
    q: tuple[int, int]
    kv: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Sizes of the four axes."""
        return (
            self.b[1] - self.b[0],
            self.h[1] - self.h[0],
            self.q[1] - self.q[0],
            self.kv[1] - self.kv[0],
        )

    def index(self, name: str, device: torch.device) -> torch.Tensor:
        """Return the i64 indices along an input's axis, shaped to broadcast over the rectangle."""
        start, stop = getattr(self, name)
        flat = arange(start, stop, device)
        below = 3 - AXES[name]
        return flat.view(-1, *([1] * below)) if below else flat


@dataclass(frozen=True, eq=False)
class ScatteredLanes:
    """Tiles anywhere in the index space, all of one shape, whose positions are listed.

    Tile ``i`` has the scores of one batch ``b[i]`` and head ``h[i]`` at the queries ``q[i]`` and
    the keys ``kv[i]``; these may be in any order, and repeat.

    Evaluation gives the tiles the axis of the batches, and what does not vary within a tile keeps
    one element for it.  Captured tensors are gathered; a rectangle, which slices them, is cheaper
    where it will do.

    Attributes:
        b, h: int64 ``(tiles,)``.
        q: int64 ``(tiles, queries of a tile)``.
        kv: int64 ``(tiles, keys of a tile)``.
    """

    b: torch.Tensor
    h: torch.Tensor
    q: torch.Tensor
    kv: torch.Tensor

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Sizes of the four axes: tiles, 1, queries and keys of a tile."""
        return (self.q.shape[0], 1, self.q.shape[1], self.kv.shape[1])

    def index(self, name: str, device: torch.device) -> torch.Tensor:
        """Return the i64 indices of an input, shaped to broadcast over `shape`.

        They are where they were made, which must be `device`.
        """
        index: torch.Tensor = getattr(self, name)
        match name:
            case "q":
                return index[:, None, :, None]
            case "kv":
                return index[:, None, None, :]
        return index[:, None, None, None]


AnyLanes: TypeAlias = "Lanes | ScatteredLanes"
"""Where a program is evaluated."""


# Indices kept for each device: slicing them is what a short sequence can afford; making them anew
# costs nothing beside the work at long ones.
_KEPT: Final = 1 << 16
_ARANGES: dict[torch.device, torch.Tensor] = {}


def arange(start: int, stop: int, device: torch.device) -> torch.Tensor:
    """Return the i64 vector start, start + 1, ..., stop - 1."""
    if stop > _KEPT:
        return torch.arange(start, stop, device=device)
    kept = _ARANGES.get(device)
    if kept is None:
        with torch.inference_mode(False):  # usable outside inference mode, too
            kept = _ARANGES[device] = torch.arange(_KEPT, device=device)
    return kept[start:stop]


def vector(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return an i64 vector of numbers; numbers that are equal or count up are not transferred."""
    first, count = (numbers[0] if numbers else 0), len(numbers)
    if all(n == first for n in numbers):
        return arange(first, first + 1, device).expand(count)
    if tuple(numbers) == tuple(range(first, first + count)):
        return arange(first, first + count, device)
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def common_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return what shapes broadcast to, which they must.

    `torch.broadcast_shapes` imports sympy, a third of a second of a process (torch 2.13).
    """
    sizes = [1] * max(map(len, shapes))
    for shape in shapes:
        for i, size in enumerate(shape, len(sizes) - len(shape)):
            if size != 1:
                sizes[i] = size
    return tuple(sizes)
