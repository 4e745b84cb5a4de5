"""Runs of equal values along an axis of a captured tensor, and searches for a value in them.

Packed documents have few runs however long they are, so a search in the runs costs less than one in
the tensor, and finds a value's place in tensors that are not sorted as well, as long as each value
has one run.  What a search means is said where the IR defines it (`ir.Side`).

Does not decide whether a search may be used: `ascending` and `grouped` tell, analysis asks.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TypeAlias

import torch

from flexfa4.frontend.csr import offsets_of_lengths
from flexfa4.frontend.ir import Side

Number: TypeAlias = "bool | int | float"


@dataclass(frozen=True, eq=False)
class ValueRuns:
    """The runs of equal values in each row of a tensor; make it with `value_runs`.

    Attributes:
        outer: sizes of the other axes, in order; a row for each index.
        length: elements of a row.
        values: ``(runs,)``: the value of each run, row after row.
        starts, stops: int64 ``(runs,)``: its first place in the row, and one past its last.
        offsets: int64 ``(rows + 1,)``: where the runs of each row begin.
    """

    outer: tuple[int, ...]
    length: int
    values: torch.Tensor
    starts: torch.Tensor
    stops: torch.Tensor
    offsets: torch.Tensor

    @functools.cached_property
    def rows(self) -> torch.Tensor:
        """The row of each run, int64 ``(runs,)``."""
        rows = torch.arange(len(self.offsets) - 1, device=self.offsets.device)
        return rows.repeat_interleave(self.offsets.diff())

    @functools.cached_property
    def _bounds(self) -> list[int]:
        return [int(o) for o in self.offsets.tolist()]

    @functools.cached_property
    def has_nan(self) -> bool:
        """Whether an element is NaN, which is equal to nothing and has no place in an order."""
        return self.values.dtype.is_floating_point and bool(self.values.isnan().any())

    @functools.cached_property
    def ascending(self) -> bool:
        """Whether the elements of each row ascend (may be equal), without NaN."""
        if self.has_nan:
            return False
        rises = self.values[1:] > self.values[:-1]
        return bool((rises | (self.rows[1:] != self.rows[:-1])).all())

    def grouped(self, value: Number | None = None) -> bool:
        """Return whether no row has two runs of one value, without NaN.

        Args:
            value: only runs of this value count; None: of any.
        """
        if self.has_nan:
            return False
        if value is not None:
            rows = self.rows[self.values == value]
            return bool((rows[1:] != rows[:-1]).all())
        if self.ascending or not len(self.values):
            return True
        most = int(self.offsets.diff().max())
        if not self.values.dtype.is_floating_point:
            low, high = (int(v) for v in self.values.aminmax())
            if most > high - low + 1:  # more runs than values that there could be
                return False
        values, rows = self._sorted[0], self.rows
        return bool(((values[1:] != values[:-1]) | (rows[1:] != rows[:-1])).all())

    @functools.cached_property
    def _sorted(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Values, starts and stops with the values of each row ascending."""
        if self.ascending:
            return self.values, self.starts, self.stops
        order = self.values.argsort(stable=True)
        order = order[self.rows[order].argsort(stable=True)]
        return self.values[order], self.starts[order], self.stops[order]

    def find(
        self, side: Side, indices: list[int | torch.Tensor], value: torch.Tensor
    ) -> torch.Tensor:
        """Return the places of values, int64 of the shape that all arguments broadcast to.

        Args:
            side: what to find; "below" and "through" need `ascending`, the others that the value
                is `grouped`.
            indices: of the other axes, as in torch: negative ones count from the end.
            value: what to look for, of the dtype of `values`.
        """
        row: int | torch.Tensor = 0
        for index, size in zip(indices, self.outer, strict=True):
            if isinstance(index, torch.Tensor) and index.numel() == 1:
                value = value.view((1,) * max(0, index.dim() - value.dim()) + value.shape)
                index = int(index)
            if isinstance(index, torch.Tensor):
                index = torch.where(index < 0, index + size, index)
            elif index < 0:
                index += size
            row = row * size + index
        values, starts, stops = self._sorted
        right = side == "through"
        if isinstance(row, int):
            low, high = self._bounds[row : row + 2]
            place = torch.searchsorted(values[low:high], value.contiguous(), right=right)
            place, end = place + low, torch.tensor(high, device=place.device)
        else:
            place, end = self._search(row, value, right=right)
        if not len(values):
            return torch.zeros_like(place)
        inside, at = place < end, place.clamp(max=len(values) - 1)
        if side in ("below", "through"):
            return torch.where(inside, starts[at], self.length)
        found = inside & (values[at] == value)
        return torch.where(found, (starts if side == "first" else stops)[at], 0)

    def _search(
        self, row: torch.Tensor, value: torch.Tensor, *, right: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Search each value in the runs of a row of its own, by halves.

        Returns:
            The first run whose value is not less (or is greater, if `right`), and the end of the
            row's runs.
        """
        values = self._sorted[0]
        shape = torch.broadcast_shapes(row.shape, value.shape)  # type: ignore[no-untyped-call]
        row = row.expand(shape)
        low, end = self.offsets[row], self.offsets[row + 1]
        high = end
        most = int(self.offsets.diff().max()) if len(self.offsets) > 1 else 0
        for _ in range(most.bit_length()):
            middle = (low + high) >> 1
            at = values[middle.clamp(max=len(values) - 1)]
            before = (at <= value if right else at < value) & (low < high)
            low, high = torch.where(before, middle + 1, low), torch.where(before, high, middle)
        return low, end


def value_runs(tensor: torch.Tensor, axis: int) -> ValueRuns:
    """Return the runs of equal values along an axis.

    Args:
        tensor: of any real dtype, at least one dimension; bools are taken for 0 and 1.
        axis: not negative.
    """
    if tensor.dtype is torch.bool:
        tensor = tensor.to(torch.uint8)  # which can be searched in
    along = tensor.detach().movedim(axis, -1)
    outer, length = tuple(along.shape[:-1]), along.shape[-1]
    flat = along.reshape(math.prod(outer), length)
    begins = torch.ones(flat.shape, dtype=torch.bool, device=tensor.device)
    torch.ne(flat[:, 1:], flat[:, :-1], out=begins[:, 1:])
    place = begins.flatten().nonzero().squeeze(1)
    counts = begins.sum(1)
    offsets = offsets_of_lengths(counts)
    starts = place % max(length, 1)
    stops = torch.empty_like(starts)
    stops[:-1] = starts[1:]
    stops[offsets[1:][counts > 0] - 1] = length  # the last of each row
    return ValueRuns(outer, length, flat.flatten()[place], starts, stops, offsets)
