"""Runs of equal values and searches in them agree with looking at every element."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from flexfa4.frontend import value_runs as value_runs_module
from flexfa4.frontend.ir import Side
from flexfa4.frontend.value_runs import value_runs

SHAPES = [((10,), 0), ((1,), 0), ((0,), 0), ((3, 7), 1), ((7, 3), 0), ((2, 3, 5), 1), ((0, 4), 1)]


def tensors(shape: tuple[int, ...], axis: int) -> list[torch.Tensor]:
    """Return random tensors, ascending ones and ones whose equal elements stand together."""
    generator = torch.Generator().manual_seed(len(shape))
    names = torch.tensor([3, 0, 4, 1])
    made = []
    for _ in range(6):
        drawn = torch.randint(0, 4, shape, generator=generator)
        ascending = drawn.sort(axis).values
        made += [drawn, ascending, names[ascending], ascending.double(), ascending > 1]
    return made


def rows_of(tensor: torch.Tensor, axis: int) -> list[list[float]]:
    along = tensor.movedim(axis, -1)
    outer = itertools.product(*map(range, along.shape[:-1]))
    rows: list[list[float]] = [along[i].tolist() for i in outer]
    return rows


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_runs_are_those_of_each_row(shape: tuple[int, ...], axis: int) -> None:
    for tensor in tensors(shape, axis):
        runs, rows = value_runs(tensor, axis), rows_of(tensor, axis)
        found: list[list[float]] = [[] for _ in rows]
        places = zip(
            runs.rows.tolist(), runs.starts.tolist(), runs.stops.tolist(), runs.values, strict=True
        )
        for row, start, stop, value in places:
            assert start == len(found[row]) < stop
            found[row] += [value.item()] * (stop - start)
        assert found == rows
        assert (runs.values[1:] != runs.values[:-1]).logical_or(runs.rows.diff() != 0).all()
        row_of_run = runs.rows.tolist()
        assert runs.offsets.diff().tolist() == [row_of_run.count(i) for i in range(len(rows))]


def together(row: list[float], value: float) -> bool:
    at = [i for i, element in enumerate(row) if element == value]
    return not at or at[-1] - at[0] + 1 == len(at)


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_order_is_seen(shape: tuple[int, ...], axis: int) -> None:
    for tensor in tensors(shape, axis):
        runs, rows = value_runs(tensor, axis), rows_of(tensor, axis)
        assert runs.ascending == all(row == sorted(row) for row in rows)
        assert runs.grouped() == all(together(row, v) for row in rows for v in row)
        for value in range(5):
            assert runs.grouped(value) == all(together(row, value) for row in rows)


def place(side: str, row: list[float], value: float) -> int:
    """Return what a search means, element by element."""
    if side in ("first", "end"):
        at = [i for i, element in enumerate(row) if element == value]
        return 0 if not at else at[0] if side == "first" else at[-1] + 1
    return sum(element < value if side == "below" else element <= value for element in row)


@pytest.mark.parametrize("side", ["first", "end", "below", "through"])
@pytest.mark.parametrize("each_its_row", [False, True])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_values_are_found(
    side: Side, each_its_row: bool, shape: tuple[int, ...], axis: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    for tensor in tensors(shape, axis):
        runs = value_runs(tensor, axis)
        if 0 in runs.outer or not (runs.ascending or side in ("first", "end")):
            continue
        values = torch.arange(-1, 6).to(runs.values.dtype)
        count = (7,) if each_its_row else (1, 1)  # negative indices count from the end
        at = [torch.randint(-n, n, count, generator=generator) for n in runs.outer]
        found = runs.find(side, list(at), values).reshape(-1)
        assert found.dtype is torch.int64
        for i, value in enumerate(values.tolist()):
            index = [int(a.expand(1, 7)[0, i]) for a in at]
            row = tensor.movedim(axis, -1)[tuple(index)].tolist()
            if side in ("below", "through") or together(row, value):
                assert int(found[i]) == place(side, row, value)


@pytest.mark.parametrize("side", ["first", "end", "below", "through"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_a_place_is_in_the_run_that_its_own_element_is_found_in(
    side: Side, shape: tuple[int, ...], axis: int
) -> None:
    for tensor in tensors(shape, axis):
        runs, along = value_runs(tensor, axis), tensor.movedim(axis, -1)
        if 0 in shape or not (runs.ascending or (side in ("first", "end") and runs.grouped())):
            continue
        indices = torch.meshgrid(*(torch.arange(-n, n) for n in along.shape), indexing="ij")
        *outer, place = (index.reshape(-1) for index in indices)
        own = along[tuple(index.reshape(-1) for index in indices)].to(runs.values.dtype)
        assert torch.equal(runs.around(side, outer, place), runs.find(side, outer, own))
        first = [0] * len(outer)
        assert int(runs.around(side, first, 0)) == int(runs.around(side, first, -shape[axis]))
        inside = [index.clamp(min=0) for index in outer], place.clamp(min=0)
        assert torch.equal(runs.around(side, *inside, from_end=False), runs.around(side, *inside))


def test_nan_has_no_order_and_no_group() -> None:
    for row in ([math.nan], [0.0, math.nan], [0.0, math.nan, math.nan]):
        runs = value_runs(torch.tensor(row), 0)
        assert not runs.ascending
        assert not runs.grouped()


def test_many_values_in_any_order_are_refused_without_sorting_them() -> None:
    runs = value_runs(torch.arange(value_runs_module._SORTED_AT_ONCE + 1) % 7, 0)
    assert not runs.grouped()
    assert "_sorted" not in vars(runs)


def test_elements_with_a_gradient_can_be_searched() -> None:
    levels = torch.tensor([0.0, 1.0, 1.0], requires_grad=True)
    found = value_runs(levels, 0).find("end", [], torch.tensor([1.0, 2.0]))
    assert found.tolist() == [3, 0]
