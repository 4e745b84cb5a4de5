"""What an index of a `BlockMask` picks: batches, heads and rows of blocks.

Turns indices into positions and says how long the part is; cutting lists and moving the mask
function is `block_mask`'s business.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from flexfa4.flex.block_lists import readable
from flexfa4.flex.errors import BlockIndexError
from flexfa4.frontend.masks.grid import block_count

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
        raise BlockIndexError(index=f"{len(given)} indices, None and ... included")
    return [_positions(one, axis, sizes) for axis, one in enumerate(_by_axis(index))]


def _by_axis(index: Any) -> tuple[Any, Any, Any]:
    """Return what an index of up to three axes says of each."""
    given = index if isinstance(index, tuple) else (index,)
    batch, head, row = (*given, slice(None), slice(None), slice(None))[:3]
    return batch, head, row


def _positions(index: Any, axis: int, sizes: tuple[int, int, int]) -> torch.Tensor:
    at = index.cpu() if isinstance(index, torch.Tensor) else index
    if isinstance(at, torch.Tensor) and at.dtype is not torch.bool:
        at = at.long()
    try:
        return torch.arange(sizes[axis])[at].reshape(-1)
    except (IndexError, TypeError, ValueError):  # ValueError: a step below 1
        raise BlockIndexError(index=f"{_AXES[axis]} {index} of {sizes[axis]}") from None


def is_whole(positions: torch.Tensor, size: int) -> bool:
    """Return whether positions are all there are, in order; where torch traces, whether known."""
    if not readable(positions):
        return False
    return len(positions) == size and torch.equal(positions, torch.arange(size))


def rows_length(index: Any, rows: torch.Tensor, q_len: int, size: int) -> int:
    """Return how many queries the rows of blocks have that an index picks.

    Where torch traces, ints and slices say which rows these are; what a tensor picks is not known
    then, and its rows count as whole ones.

    Args:
        index: as in `picked`.
        rows: the positions of the rows, as `picked` gives them.
        q_len: queries of the whole.
        size: queries in a block.

    Raises:
        BlockIndexError: a row that the length cuts short does not come last.
    """
    count, rest = block_count(q_len, size), q_len % size
    if not readable(rows):
        ends_short = rest and _picks_last(_by_axis(index)[2], count)
        return len(rows) * size - (size - rest if ends_short else 0)
    short = count - 1 if rest else -1
    if bool((rows[:-1] == short).any()):
        cut = f"{_AXES[2]} {short}, which has {rest} queries, before others"
        raise BlockIndexError(index=cut)
    ends_short = len(rows) > 0 and int(rows[-1]) == short
    return len(rows) * size - (size - rest if ends_short else 0)


def _picks_last(row: Any, count: int) -> bool:
    """Return whether the last of `count` rows is known to be among those that an index picks."""
    last = count - 1
    if isinstance(row, int):
        return row in (-1, last)
    if not isinstance(row, slice):
        return False
    # not range(count)[row], for the count may be symbolic
    start, stop = (
        default if end is None else max(end + count, 0) if end < 0 else end
        for end, default in ((row.start, 0), (row.stop, count))
    )
    return start <= last < stop and (last - start) % (row.step or 1) == 0
