"""What an index of a `BlockMask` picks: batches, heads and rows of blocks.

Turns indices into positions and says how long the part is; cutting lists and moving the mask
function is `block_mask`'s business.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import torch

from flexfa4.flex.block_lists import readable
from flexfa4.flex.errors import BlockIndexError
from flexfa4.frontend.blocks import block_count

_AXES: Final = ("batch", "head", "row of blocks")


def picked(index: Any, sizes: tuple[int, int, int]) -> list[torch.Tensor]:
    """Return the positions that an index picks along each axis, int64 on the CPU.

    Args:
        index: up to three of int, slice and integer tensor.
        sizes: number of batches, heads and rows of blocks.

    Raises:
        BlockIndexError: there is no such batch, head or row.
    """
    given = index if isinstance(index, tuple) else (index,)
    if len(given) > 3 or any(one is None or one is Ellipsis for one in given):
        _refuse(f"{len(given)} indices, None and ... included", "index")
    whole = (*given, slice(None), slice(None), slice(None))[:3]
    return [_positions(one, axis, sizes) for axis, one in enumerate(whole)]


def _positions(index: Any, axis: int, sizes: tuple[int, int, int]) -> torch.Tensor:
    at = index.cpu() if isinstance(index, torch.Tensor) else index
    if isinstance(at, torch.Tensor) and at.dtype is not torch.bool:
        at = at.long()
    try:
        return torch.arange(sizes[axis])[at].reshape(-1)
    except (IndexError, TypeError):
        _refuse(f"{_AXES[axis]} {index} of {sizes[axis]}", _AXES[axis])


def is_whole(positions: torch.Tensor, size: int) -> bool:
    """Return whether positions are all there are, in order; where torch traces, whether known."""
    if not readable(positions):
        return False
    return len(positions) == size and torch.equal(positions, torch.arange(size))


def rows_length(rows: torch.Tensor, q_len: int, size: int) -> int:
    """Return how many queries some rows of blocks have.

    Where torch traces, what rows are picked is not known, and they count as whole ones.

    Raises:
        BlockIndexError: a row that the length cuts short does not come last.
    """
    if not readable(rows):
        return len(rows) * size
    rest = q_len % size
    short = block_count(q_len, size) - 1 if rest else -1
    if bool((rows[:-1] == short).any()):
        _refuse(f"row of blocks {short}, which has {rest} queries, before others", _AXES[2])
    ends_short = len(rows) > 0 and int(rows[-1]) == short
    return len(rows) * size - (size - rest if ends_short else 0)


def _refuse(index: str, axis: str) -> NoReturn:
    raise BlockIndexError(index=index)
