"""Sparse tables: the extremes of any box of a tensor, each from a few stored ones.

A tensor is cut into cells along each dimension, and the extremes of *windows* of 1, 2, 4, ... cells
are stored.  Any range of cells is covered by two windows, so a box in `d` dimensions takes ``2^d``
reads, whatever its size (range minimum queries; Bender and Farach-Colton, "The LCA problem
revisited", 2000, section 3).  The table of that paper holds a window at every cell; here wider
windows start at multiples of a *stride*, which keeps a table in proportion to its tensor and covers
less than a stride too much on either side.  So extremes are never too tight, and exact for ranges
that begin and end at cells and strides.

Knows tensors and boxes; what they stand for in a mask is the business of `zones`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

from flexfa4.frontend.analysis.intervals import Interval
from flexfa4.frontend.ir import BOOL, F32, I32, DType
from flexfa4.frontend.masks.limits import table_fits

Extreme: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"

# What the bounds of each type are stored as.
_STORED: Final = {F32: torch.float64, I32: torch.int64, BOOL: torch.bool}
# Integers that torch can compare.
_COMPARED: Final = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})

# Windows of 2^k cells start at every 2^(k - 3) cells: ranges of up to 16 cells are exact.  A table
# of more than one dimension of windows, each of which takes its share, has them at every 2^k.
_OVERLAP: Final = 3


@dataclass(frozen=True, eq=False)
class Extremes:
    """Least and greatest values of parts of a tensor, and whether they have NaN (None: nowhere)."""

    low: torch.Tensor
    high: torch.Tensor
    nan: torch.Tensor | None

    @classmethod
    def of(cls, tensor: torch.Tensor, dtype: DType, float_dtype: torch.dtype) -> Extremes:
        """Return the extremes of each element: itself, as masks read it."""
        if dtype is BOOL:
            bits = tensor.view(torch.uint8)  # torch's minimum of bools takes ten times as long
            return cls(bits, bits, None)
        if dtype is I32:
            whole = tensor if tensor.dtype in _COMPARED else tensor.to(torch.int64)
            return cls(whole, whole, None)
        real = tensor.to(float_dtype)
        nan = real.isnan()
        if not bool(nan.any()):
            return cls(real, real, None)
        inf = float("inf")
        return cls(real.masked_fill(nan, inf), real.masked_fill(nan, -inf), nan.view(torch.uint8))

    def each(self, function: Callable[[torch.Tensor, Extreme], torch.Tensor]) -> Extremes:
        """Return these with a function applied that joins parts by the extreme that it gets."""
        return Extremes(
            function(self.low, torch.minimum),
            function(self.high, torch.maximum),
            None if self.nan is None else function(self.nan, torch.maximum),
        )

    def over(self, dims: list[int]) -> Extremes:
        """Return the extremes over whole dimensions, which are dropped."""
        nan = None if self.nan is None else self.nan.amax(dims)
        return Extremes(self.low.amin(dims), self.high.amax(dims), nan)

    def stored(self, dtype: DType) -> Extremes:
        """Return these flat, in the dtype that bounds have."""
        kind = _STORED[dtype]
        low, high = self.low.flatten().to(kind), self.high.flatten().to(kind)
        if self.nan is None:
            return Extremes(low, high, None)
        nothing = low > high  # of nothing but NaN; bounds are in order even so
        inf = float("inf")
        low, high = low.masked_fill(nothing, -inf), high.masked_fill(nothing, inf)
        return Extremes(low, high, self.nan.flatten().to(torch.bool))

    def interval(self, dtype: DType) -> Interval:
        """Return the bounds of one box."""
        one = self.stored(dtype)
        nan = one.nan is not None and bool(one.nan)
        return Interval(one.low.item(), one.high.item(), nan)


def _every(t: torch.Tensor, dim: int, start: int, step: int) -> torch.Tensor:
    """Return every `step`-th part along a dimension."""
    return t[(slice(None),) * dim + (slice(start, None, step),)]


def _pairs(t: torch.Tensor, dim: int, step: int, shift: int, extreme: Extreme) -> torch.Tensor:
    """Return the extremes of parts `step * i` and `step * i + shift`, where there is one."""
    first, second = _every(t, dim, 0, step), _every(t, dim, shift, step)
    paired = second.shape[dim]
    if paired == first.shape[dim]:
        return extreme(first, second)
    alone = first.narrow(dim, paired, first.shape[dim] - paired)
    return torch.cat((extreme(first.narrow(dim, 0, paired), second), alone), dim)


# ---- tables --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Level:
    """Windows of `width` cells that start at every `stride` cells; both are powers of two."""

    width: int
    stride: int
    count: int


def _levels(cells: int, overlap: int) -> list[_Level]:
    """Return windows of 1, 2, 4, ... cells, up to one that holds them all."""
    found = []
    for k in range((cells - 1).bit_length() + 1):
        stride = 1 << max(0, k - overlap)
        found.append(_Level(1 << k, stride, -(-cells // stride)))
    return found


@dataclass(frozen=True, eq=False)
class _Axis:
    """Where along a dimension of a table the windows over a range are.

    A range of ``length + 1`` cells is covered by two windows of the least width that surely leaves
    no gap between them: starts are rounded down for the first and up for the second, so by less
    than a stride each.

    Attributes:
        bits: a cell has ``2 ** bits`` elements.
        shift: int64 ``(cells,)``, for each length: ``2 ** shift`` is the stride.
        slack: likewise: the stride less the width.
        first: likewise: where in the table the windows of this width begin.
    """

    bits: int
    shift: torch.Tensor
    slack: torch.Tensor
    first: torch.Tensor

    @classmethod
    def of(cls, levels: list[_Level], granule: int, device: torch.device) -> _Axis:
        """Return the axis of windows that lie one level behind the other."""
        reach = [2 * w.width - w.stride for w in levels]
        begins = itertools.accumulate((w.count for w in levels[:-1]), initial=0)
        each = torch.tensor(
            [
                (w.stride.bit_length() - 1, w.stride - w.width, begin)
                for w, begin in zip(levels, begins, strict=True)
            ]
        )
        level = torch.searchsorted(torch.tensor(reach), torch.arange(levels[0].count))
        shift, slack, first = each[level].T.contiguous().to(device)
        return cls(granule.bit_length() - 1, shift, slack, first)

    def windows(self, lo: torch.Tensor, hi: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where the two windows are that cover the elements ``lo ... hi``."""
        begin, end = lo >> self.bits, hi >> self.bits
        length = end - begin
        shift, first = self.shift[length], self.first[length]
        last = ((end + self.slack[length]) >> shift).clamp(min=0)
        return (begin >> shift) + first, last + first


@dataclass(frozen=True, eq=False)
class SparseTable:
    """Extremes of windows of a tensor.

    Attributes:
        extremes: flat tensors, all dimensions in order.
        axes: of each dimension; None where it is read at one index.
        pitches: distance of neighbours along each dimension.
    """

    extremes: Extremes
    axes: tuple[_Axis | None, ...]
    pitches: tuple[int, ...]

    @classmethod
    def of(
        cls, extremes: Extremes, wanted: Sequence[int], dtype: DType, nbytes: int
    ) -> SparseTable:
        """Return the table of a tensor.

        Args:
            extremes: of its elements.
            wanted: elements in a cell along each dimension, a power of two; 0 where each box has
                one index.  Cells are larger where the table would take too much.
            dtype: of the bounds.
            nbytes: bytes of the tensor.
        """
        sizes, itemsize = extremes.low.shape, _STORED[dtype].itemsize
        granules = _affordable(wanted, sizes, itemsize, nbytes)
        overlap = _overlap(granules)
        axes: list[_Axis | None] = []
        for d, granule in enumerate(granules):
            if granule:
                extremes = extremes.each(functools.partial(_cells, d, granule))
        for d, granule in enumerate(granules):
            if granule:
                levels = _levels(extremes.low.shape[d], overlap)
                extremes = extremes.each(functools.partial(_windows, d, levels))
                axes.append(_Axis.of(levels, granule, extremes.low.device))
            else:
                axes.append(None)
        shape = extremes.low.shape
        pitches = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
        return cls(extremes.stored(dtype), tuple(axes), pitches)

    def bounds(self, ends: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Interval:
        """Return the bounds in boxes, given the ends along each dimension."""
        places = [
            [
                place if pitch == 1 else place * pitch
                for place in ((lo,) if axis is None else axis.windows(lo, hi))
            ]
            for (lo, hi), axis, pitch in zip(ends, self.axes, self.pitches, strict=True)
        ]
        corners = [functools.reduce(torch.add, corner) for corner in itertools.product(*places)]
        low, high, nan = self.extremes.low, self.extremes.high, self.extremes.nan
        return Interval(
            functools.reduce(torch.minimum, [low.index_select(0, c) for c in corners]),
            functools.reduce(torch.maximum, [high.index_select(0, c) for c in corners]),
            False
            if nan is None
            else functools.reduce(torch.logical_or, [nan.index_select(0, c) for c in corners]),
        )


def _overlap(granules: Sequence[int]) -> int:
    return _OVERLAP if sum(granule > 0 for granule in granules) == 1 else 0


def _cells(dim: int, granule: int, t: torch.Tensor, extreme: Extreme) -> torch.Tensor:
    """Return the extremes of cells along a dimension."""
    for _ in range(granule.bit_length() - 1):
        t = _pairs(t, dim, 2, 1, extreme)
    return t


def _windows(dim: int, levels: list[_Level], t: torch.Tensor, extreme: Extreme) -> torch.Tensor:
    """Return the extremes of windows, one level behind the other, from those of cells."""
    found = [t]
    for before, level in itertools.pairwise(levels):
        step, shift = level.stride // before.stride, before.width // before.stride
        found.append(_pairs(found[-1], dim, step, shift, extreme))
    return torch.cat(found, dim)


def _affordable(
    wanted: Sequence[int], sizes: Sequence[int], itemsize: int, nbytes: int
) -> list[int]:
    """Return how many elements make a cell along each dimension, so that a table is not too large.

    Args:
        wanted: elements in a cell; 0 for a dimension that is read at one index in each box.
        sizes: of the dimensions.
        itemsize: bytes of a bound.
        nbytes: bytes of the tensor.
    """
    granules = list(wanted)
    while True:
        overlap = _overlap(granules)
        entries = [
            sum(level.count for level in _levels(-(-size // granule), overlap)) if granule else size
            for size, granule in zip(sizes, granules, strict=True)
        ]
        if table_fits(2 * itemsize * math.prod(entries), nbytes) or max(entries) <= 2:
            return granules
        largest = entries.index(max(entries))
        granules[largest] = max(2, 2 * granules[largest])
