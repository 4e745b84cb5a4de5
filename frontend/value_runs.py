"""Runs of equal values along an axis of a captured tensor, and searches for a value in them.

Packed documents have few runs however long they are, so a search in the runs costs less than one in
the tensor, and finds a value's place in tensors that are not sorted as well, as long as each value
has one run.  What a search means is said where the IR defines it (`ir.Side`).

Does not decide whether a search may be used: `ascending` and `grouped` tell, analysis asks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

from flexfa4.frontend.csr import offsets_of_owners
from flexfa4.frontend.gather import taken
from flexfa4.frontend.ir import Side
from flexfa4.frontend.lanes import common_shape

Number: TypeAlias = "bool | int | float"

# Runs that are sorted without asking first whether they have a chance to be grouped.
_SORTED_AT_ONCE: Final = 1 << 12


@dataclass(frozen=True, eq=False)
class ValueRuns:
    """The runs of equal values in each row of a tensor; make it with `value_runs`.

    Attributes:
        outer: sizes of the other axes, in order; a row for each index.
        length: elements of a row.
        values: ``(runs,)``: the value of each run, row after row.
        places: int64 ``(runs + 1,)``: where each begins, the elements of all rows numbered through,
            and last how many there are.
    """

    outer: tuple[int, ...]
    length: int
    values: torch.Tensor
    places: torch.Tensor

    @functools.cached_property
    def _is_one_row(self) -> bool:
        """Whether there is one row: known without a look at the tensors, and most often so."""
        return math.prod(self.outer) == 1

    @functools.cached_property
    def starts(self) -> torch.Tensor:
        """The first place of each run in its row, int64 ``(runs,)``."""
        places = self.places[:-1]
        return places if self._is_one_row else places % max(1, self.length)

    @functools.cached_property
    def stops(self) -> torch.Tensor:
        """One past the last place of each run in its row, int64 ``(runs,)``."""
        return self.places[1:] if self._is_one_row else self.starts + self.places.diff()

    @functools.cached_property
    def offsets(self) -> torch.Tensor:
        """Where the runs of each row begin, int64 ``(rows + 1,)``."""
        return offsets_of_owners(self.places[:-1], math.prod(self.outer), max(1, self.length))

    @functools.cached_property
    def rows(self) -> torch.Tensor:
        """The row of each run, int64 ``(runs,)``."""
        return self.places[:-1] // max(1, self.length)

    @functools.cached_property
    def _bounds(self) -> list[int]:
        if self._is_one_row:
            return [0, len(self.values)]
        return [int(o) for o in self.offsets.tolist()]

    @functools.cached_property
    def has_nan(self) -> bool:
        """Whether an element is NaN, which is equal to nothing and has no place in an order."""
        return self.values.dtype.is_floating_point and bool(self.values.isnan().any())

    @functools.cached_property
    def ascending(self) -> bool:
        """Whether the elements of each row ascend (may be equal), without NaN."""
        return not self.has_nan and self._holds_within_rows(self.values[1:] > self.values[:-1])

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
        if len(self.values) > _SORTED_AT_ONCE and not self.values.dtype.is_floating_point:
            low, high = torch.stack(self.values.aminmax()).tolist()
            if int(self.offsets.diff().max()) > high - low + 1:
                return False  # more runs than values that there could be
        values = self._sorted[0]
        return self._holds_within_rows(values[1:] != values[:-1])

    def _holds_within_rows(self, pairs: torch.Tensor) -> bool:
        """Return whether something holds for all neighbours that are in one row.

        Args:
            pairs: bool ``(runs - 1,)``, for each run but the first: whether it holds for the run
                before and for this one.
        """
        return bool((pairs if self._is_one_row else pairs | (self.starts[1:] == 0)).all())

    @functools.cached_property
    def _sorted(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Values, starts and stops with the values of each row ascending."""
        if self.ascending:
            return self.values, self.starts, self.stops
        values, order = self.values.sort(stable=True)
        if not self._is_one_row:
            order = order[self.rows[order].argsort(stable=True)]
            values = self.values[order]
        return values, taken(self.starts, order), taken(self.stops, order)

    def find(
        self,
        side: Side,
        indices: Sequence[int | torch.Tensor],
        value: torch.Tensor,
        *,
        from_end: bool = True,
    ) -> torch.Tensor:
        """Return the places of values, int64 of the shape that all arguments broadcast to.

        Args:
            side: what to find; "below" and "through" need `ascending`, the others that the value
                is `grouped`.
            indices: of the other axes, as in torch.
            value: what to look for, of the dtype of `values`.
            from_end: indices may be negative, and then count from the end.
        """
        whole: list[int | torch.Tensor] = []
        for index, size in zip(indices, self.outer, strict=True):
            if isinstance(index, torch.Tensor) and index.numel() == 1:
                value = value.view((1,) * max(0, index.dim() - value.dim()) + value.shape)
                index = 0 if size == 1 else int(index)
            whole.append(index)
        row = self._row(whole, from_end)
        if isinstance(row, int):
            return self._found_in(row, side, value)
        values, starts, stops = self._sorted
        place, end = self._search(row, value, right=side == "through")
        if not len(values):
            return torch.zeros_like(place)
        inside, at = place < end, place.clamp(max=len(values) - 1)
        if side in ("below", "through"):
            return torch.where(inside, starts[at], self.length)
        found = inside & (values[at] == value)
        return torch.where(found, (starts if side == "first" else stops)[at], 0)

    def around(
        self,
        side: Side,
        indices: Sequence[int | torch.Tensor],
        place: int | torch.Tensor,
        *,
        from_end: bool = True,
    ) -> torch.Tensor:
        """Return `find` for the elements at some places: where their runs begin, or end.

        Args:
            side: what to find, see `find`.
            indices: of the other axes.
            place: along the axis; in range.
            from_end: indices and places may be negative, and then count from the end.
        """
        first = self._row(indices, from_end) * self.length
        at = torch.as_tensor(_from_start(place, self.length, from_end), device=self.places.device)
        stops = self.places[1:]
        run = torch.searchsorted(stops, _moved(at, first).contiguous(), right=True)
        found = _at(self.places if side in ("first", "below") else stops, run)
        return _moved(found, first, -1)

    def _row(self, indices: Sequence[int | torch.Tensor], from_end: bool) -> int | torch.Tensor:
        """Return which row indices of the other axes are of."""
        row: int | torch.Tensor = 0
        for index, size in zip(indices, self.outer, strict=True):
            index = _from_start(index, size, from_end)
            row = index if isinstance(row, int) and not row else row * size + index
        return row

    def _found_in(self, row: int, side: Side, value: torch.Tensor) -> torch.Tensor:
        """Return `find` for one row."""
        low, high = self._bounds[row : row + 2]
        values, starts, stops = (t[low:high] for t in self._sorted)
        value = value.contiguous()
        if low == high:
            return torch.zeros_like(value, dtype=torch.int64)
        if side in ("below", "through"):
            place = torch.searchsorted(values, value, right=side == "through")
            return _at(torch.nn.functional.pad(starts, (0, 1), value=self.length), place)
        # What is greater than all but the last run is compared with that one, as it must be.
        place = torch.searchsorted(values[:-1], value)
        found = _at(values, place) == value
        return torch.where(found, _at(starts if side == "first" else stops, place), 0)

    def _search(
        self, row: torch.Tensor, value: torch.Tensor, *, right: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Search each value in the runs of a row of its own, by halves.

        Returns:
            The first run whose value is not less (or is greater, if `right`), and the end of the
            row's runs.
        """
        values = self._sorted[0]
        row = row.expand(common_shape(row.shape, value.shape))
        low, end = self.offsets[row], self.offsets[row + 1]
        high = end
        most = int(self.offsets.diff().max()) if len(self.offsets) > 1 else 0
        for _ in range(most.bit_length()):
            middle = (low + high) >> 1
            at = values[middle.clamp(max=len(values) - 1)]
            before = (at <= value if right else at < value) & (low < high)
            low, high = torch.where(before, middle + 1, low), torch.where(before, high, middle)
        return low, end


def _from_start(index: int | torch.Tensor, size: int, from_end: bool) -> int | torch.Tensor:
    """Return indices that count from the start."""
    if isinstance(index, torch.Tensor):
        return torch.where(index < 0, index + size, index) if from_end else index
    return index + size if index < 0 else index


def _moved(places: torch.Tensor, by: int | torch.Tensor, times: int = 1) -> torch.Tensor:
    return places if isinstance(by, int) and not by else torch.add(places, by, alpha=times)


def _at(table: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Return the elements of a vector at places of any shape."""
    return taken(table, place.view(-1)).view(place.shape)


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
    flat = along.reshape(-1)
    begins = torch.ones(len(flat) + 1, dtype=torch.bool, device=tensor.device)
    torch.ne(flat[1:], flat[:-1], out=begins[1:-1])
    if len(flat) > length:
        begins[::length].fill_(True)
    places = begins.nonzero().squeeze(1)
    return ValueRuns(outer, length, taken(flat, places[:-1]), places)
