"""Exact decision of tiles: each is evaluated at its lanes, as few of them as it takes.

Boxes leave some tiles open, scattered over the grid.  They are decided together, in chunks that
bound the memory: tiles that must be equal are decided once, a few lanes of each show most of the
tiles that have both values, and what is left is evaluated in full.

Does not look for structure among tiles (`refine` does) nor store what it finds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from flexfa4.frontend.analysis.bounds import bound
from flexfa4.frontend.analysis.shifts import shift_premises
from flexfa4.frontend.evaluate import Program, Values, mask_tile
from flexfa4.frontend.ir import Graph, Node
from flexfa4.frontend.lanes import Lanes, ScatteredLanes, arange
from flexfa4.frontend.masks.grid import BlockGrid, MaskSize
from flexfa4.frontend.masks.limits import Budget

# Lanes evaluated at once: on the CPU temporaries of 8 bytes then stay within 32 MB, on devices
# there is more memory and more to keep busy.
_CHUNK_LANES: Final = 1 << 20
_CHUNK_LANES_DEVICE: Final = 1 << 23
# So few lanes are evaluated sooner than it takes to look for something better.
_FEW_LANES: Final = 1 << 17
# A larger tile is evaluated in pieces of this size along each axis.
_PIECE: Final = 1024


@dataclass(frozen=True, eq=False)
class Tiles:
    """Blocks of a grid, in any order: int64 tensors ``(n,)`` on the device of the mask's values.

    Attributes:
        b, h: batch and head of each.
        row, column: its place in the grid.
    """

    b: torch.Tensor
    h: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor

    def __len__(self) -> int:
        return self.row.shape[0]

    def __getitem__(self, which: torch.Tensor | slice) -> Tiles:
        return Tiles(self.b[which], self.h[which], self.row[which], self.column[which])


def decide(
    graph: Graph, values: Values, tiles: Tiles, grid: BlockGrid, budget: Budget | None = None
) -> torch.Tensor:
    """Return the kinds of tiles, each decided by its real lanes.

    Args:
        graph: the mask.
        values: its captures and symbols.
        tiles: within `grid`.
        grid: the blocks over the mask's index space.
        budget: how many lanes may be evaluated; None for any number.

    Returns:
        int8 ``(n,)`` of EMPTY, PARTIAL or FULL, on the device of `values`.

    Raises:
        OutOfRangeError: an unproved load is out of range on a lane that was evaluated.
    """
    if not len(tiles):
        return torch.empty(0, dtype=torch.int8, device=values.device)
    whole = _whole(grid)
    if len(tiles) * whole.lanes <= _FEW_LANES:
        return kinds_of_seen(whole.values_seen(_program(graph.root), values, tiles, grid))
    key = _equal_tiles(graph, values, tiles, grid)
    if key is None:
        return _decide(graph, values, tiles, grid, budget)
    distinct, inverse = torch.unique(key, return_inverse=True)
    place = torch.arange(len(tiles), device=key.device)
    first = torch.empty_like(distinct).scatter_(0, inverse, place)  # any tile of each will do
    return _decide(graph, values, tiles[first], grid, budget)[inverse]


def decide_all(
    graph: Graph, values: Values, members: Sequence[tuple[int, int]], grid: BlockGrid
) -> torch.Tensor:
    """Return the kinds of all tiles of a small grid, whose lanes are evaluated at once.

    Args:
        graph: the mask.
        values: its captures and symbols.
        members: batches and heads.
        grid: the blocks over the mask's index space, which is not empty.

    Returns:
        int8 ``(members, rows, columns)`` on the device of `values`.
    """
    lanes = grid.size.lanes()
    if len(members) == 1:
        ((b, h),) = members
        lanes = Lanes((b, b + 1), (h, h + 1), lanes.q, lanes.kv)
    mask = mask_tile(_program(graph.root), values, lanes)
    bits = mask.expand(lanes.shape).contiguous().view(torch.uint8).flatten(0, 1)
    if len(members) > 1:
        bits = bits[[b * grid.size.h + h for b, h in members]]
    low = high = bits
    for dim, block in zip((1, 2), grid.block_size, strict=True):
        low = _over_blocks(low, dim, block, torch.amin)
        high = _over_blocks(high, dim, block, torch.amax)
    return (low + high).to(torch.int8)  # EMPTY, PARTIAL and FULL are 0, 1 and 2


def _over_blocks(
    t: torch.Tensor, dim: int, block: int, extreme: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Return the extremes over each block along a dimension; the last one may be ragged."""
    length = t.shape[dim]
    end = length // block * block
    parts = []
    if end:
        whole = t.narrow(dim, 0, end).unflatten(dim, (-1, block))  # type: ignore[no-untyped-call]
        parts.append(extreme(whole, dim + 1))
    if end < length:
        parts.append(extreme(t.narrow(dim, end, length - end), dim, keepdim=True))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def probe(graph: Graph, values: Values, tiles: Tiles, grid: BlockGrid) -> torch.Tensor:
    """Return what a few lanes of each tile show: most tiles that have both values show both.

    Args:
        graph: the mask.
        values: its captures and symbols.
        tiles: within `grid`.
        grid: the blocks over the mask's index space.

    Returns:
        bool ``(2, n)``: whether the mask is False, and whether it is True, on one of them.
    """
    whole = _whole(grid)
    seen = torch.zeros(2, len(tiles), dtype=torch.bool, device=values.device)
    for places in (_corners, _lattice):
        undecided = (~seen.all(0)).nonzero().squeeze(1)
        few = _Part(places(len(whole.q)), places(len(whole.kv)))
        seen[:, undecided] |= _seen(graph, values, tiles[undecided], grid, few)
    return seen


def _decide(
    graph: Graph, values: Values, tiles: Tiles, grid: BlockGrid, budget: Budget | None
) -> torch.Tensor:
    """Return the kinds of tiles that are all evaluated."""
    seen = probe(graph, values, tiles, grid)
    for part in _pieces(grid):
        undecided = (~seen.all(0)).nonzero().squeeze(1)
        if budget is not None:
            budget.evaluate(len(undecided) * part.lanes)
        seen[:, undecided] |= _seen(graph, values, tiles[undecided], grid, part)
    return kinds_of_seen(seen)


def _seen(graph: Graph, values: Values, tiles: Tiles, grid: BlockGrid, part: _Part) -> torch.Tensor:
    """Return which values a part of each tile has, as `probe` does."""
    program = _program(graph.root)
    seen = torch.zeros(2, len(tiles), dtype=torch.bool, device=values.device)
    chunk = max(1, _chunk_lanes(values.device) // part.lanes)
    for start in range(0, len(tiles), chunk):
        some = slice(start, start + chunk)
        seen[:, some] = part.values_seen(program, values, tiles[some], grid)
    return seen


def kinds_of_seen(seen: torch.Tensor) -> torch.Tensor:
    """Return the kinds of tiles of which it is known that they have False, and have True."""
    has_false, has_true = seen.to(torch.int8).unbind()
    return has_true * 2 - has_true * has_false


@functools.lru_cache(maxsize=256)
def _program(root: Node) -> Program:
    return Program((root,))


def _chunk_lanes(device: torch.device) -> int:
    return _CHUNK_LANES if device.type == "cpu" else _CHUNK_LANES_DEVICE


# ---- lanes of a tile -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """Some rows and columns of a tile, counted from its first lane; all pairs are evaluated."""

    q: tuple[int, ...] | range
    kv: tuple[int, ...] | range

    @property
    def lanes(self) -> int:
        """How many lanes it has."""
        return len(self.q) * len(self.kv)

    def values_seen(
        self, program: Program, values: Values, tiles: Tiles, grid: BlockGrid
    ) -> torch.Tensor:
        """Return whether the mask is False, and whether it is True, anywhere in this part.

        Lanes beyond the ragged end of the index space are taken for the last real one: a lane
        that is there twice changes nothing.

        Returns:
            bool ``(2, tiles)``.
        """
        size, (rows, columns) = grid.size, grid.block_size
        lanes = ScatteredLanes(
            tiles.b,
            tiles.h,
            _positions(tiles.row * rows, self.q, size.q_len),
            _positions(tiles.column * columns, self.kv, size.kv_len),
        )
        mask = mask_tile(program, values, lanes)
        mask = mask.view((1,) * (4 - mask.dim()) + mask.shape)
        # As one row of bytes for each tile: torch's reductions of bools are slow.
        flat = mask.contiguous().view(torch.uint8).flatten(1)
        low, high = flat.amin(1), flat.amax(1)
        return torch.stack((low == 0, high != 0)).expand(2, len(tiles))


def _positions(start: torch.Tensor, offsets: tuple[int, ...] | range, length: int) -> torch.Tensor:
    """Return int64 ``(tiles, offsets)``: positions in the index space, at most ``length - 1``."""
    if isinstance(offsets, range):
        along = arange(offsets.start, offsets.stop, start.device)
    else:
        along = torch.tensor(offsets, device=start.device)
    return (start[:, None] + along).clamp_(max=length - 1)


def _pieces(grid: BlockGrid) -> Iterator[_Part]:
    """Yield all lanes of a tile, piece by piece."""
    whole = _whole(grid)
    for q in range(0, len(whole.q), _PIECE):
        for kv in range(0, len(whole.kv), _PIECE):
            yield _Part(whole.q[q : q + _PIECE], whole.kv[kv : kv + _PIECE])


def _whole(grid: BlockGrid) -> _Part:
    """Return all lanes of a tile."""
    (rows, columns), size = grid.block_size, grid.size
    return _Part(range(min(rows, size.q_len)), range(min(columns, size.kv_len)))


@functools.cache
def _corners(length: int) -> tuple[int, ...]:
    """Return the rows or columns of a tile that a probe reads first: both ends, one between."""
    return tuple(sorted({0, length * 37 // 97, length - 1}))


@functools.cache
def _lattice(length: int) -> tuple[int, ...]:
    """Return the rows or columns of a tile that a probe reads if the corners are all alike.

    Both ends, so that the corners are read; the same for rows and columns, so that the diagonal
    is; neighbours, and otherwise no equal steps, so that what is periodic shows both values.
    """
    inner = (length * part // 97 for part in (7, 19, 37, 53, 83))
    return tuple(sorted({0, min(1, length - 1), *inner, length - 1}))


# ---- tiles that are equal ------------------------------------------------------------------------


def _equal_tiles(
    graph: Graph, values: Values, tiles: Tiles, grid: BlockGrid
) -> torch.Tensor | None:
    """Return a number for each tile that is the same only for tiles of equal content.

    Tiles are equal where they differ in what the mask does not read.  Where the mask looks the
    same all along the diagonal, tiles at the same distance from it are, too, if both are ragged or
    neither is.

    Returns:
        int64 ``(n,)``; None where all tiles may differ.
    """
    depends, size = graph.root.depends, grid.size
    if {"q", "kv"} <= depends:
        if not follows_diagonal(graph.root, values, size):
            return None
        parts = _along_diagonal(tiles, grid)
    else:
        along = {"q": (tiles.row, grid.rows), "kv": (tiles.column, grid.columns)}
        parts = [along[name] for name in along if name in depends]
    of_each = {"b": (tiles.b, size.b), "h": (tiles.h, size.h)}
    parts += [of_each[name] for name in of_each if name in depends]
    key, count = torch.zeros_like(tiles.row), 1
    for digit, base in parts:
        key, count = key * base + digit, count * base
    return key if count < 2**63 else None


def _along_diagonal(tiles: Tiles, grid: BlockGrid) -> list[tuple[torch.Tensor, int]]:
    """Return digits and bases of what tells tiles apart where the mask follows the diagonal."""
    size, (rows, columns) = grid.size, grid.block_size
    distance = tiles.column * columns - tiles.row * rows + size.q_len
    ragged = [
        (place.eq(count - 1).to(torch.int64), 2)
        for place, count, length, block in (
            (tiles.row, grid.rows, size.q_len, rows),
            (tiles.column, grid.columns, size.kv_len, columns),
        )
        if length % block
    ]
    return [(distance, size.q_len + size.kv_len + 1), *ragged]


def follows_diagonal(root: Node, values: Values, size: MaskSize) -> bool:
    """Return whether a mask keeps its value when q and kv both grow by one, 64 bits considered.

    Args:
        root: the mask.
        values: its captures and symbols.
        size: its index space.
    """
    compared = shift_premises(root)
    if compared is None:
        return False
    leaf = size.domain(values).leaf
    return all(bound(node, leaf).within(-(2**62), 2**62) for node in compared)
