"""Runs and counts swept from intervals equal those of the dense mask that they describe."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import const, make_graph
from flexfa4.frontend.masks import sweep
from flexfa4.frontend.masks.classes import classes_of
from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL, BlockGrid, MaskSize
from flexfa4.frontend.masks.runs import BlockRuns
from flexfa4.frontend.masks.solving.solve import ClosedForm, Index, closed_form
from flexfa4.frontend.masks.solving.solved import Solved, solved
from flexfa4.frontend.masks.sweep import Sweep, coalesced, counts_of_form, runs_of_form
from flexfa4.frontend.ops import apply
from tests.brute_force import equal_runs, kinds_of
from tests.leaves import KV, H, Q

CPU = torch.device("cpu")


def sweep_of(start: torch.Tensor, stop: torch.Tensor, by: int, length: int, block: int) -> Sweep:
    """Return the sweep of intervals ``(classes, intervals, positions)`` that are given."""
    classes, intervals, positions = start.shape

    def ends(some: range, part: range) -> torch.Tensor:
        found = torch.stack((start, stop))[:, some.start : some.stop, :, part.start : part.stop]
        return found.transpose(1, 2).flatten(2)

    return Sweep(ends, intervals, classes, positions, by, length, block, CPU)


def dense_of(start: torch.Tensor, stop: torch.Tensor, length: int) -> torch.Tensor:
    """Return what intervals see, bool ``(classes, positions, length)``."""
    at = torch.arange(length)
    return ((at >= start.unsqueeze(-1)) & (at < stop.unsqueeze(-1))).any(1)


@st.composite
def intervals(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Draw (start, stop, length): steady or wild ends, in any order, some empty or crossing."""
    shape = draw(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 90)))
    length = draw(st.integers(0, 90))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))

    def ends(low: int, high: int) -> torch.Tensor:
        found = torch.randint(low, high + 1, (*shape[:2], 1), generator=generator)
        spread = draw(st.sampled_from((0, 1, 2, length)))
        found = found + torch.randint(-spread, spread + 1, shape, generator=generator)
        if draw(st.booleans()):
            found = found + torch.arange(shape[2])
        return found.clamp(0, length)

    return ends(0, length // 2), ends(length // 3, length), length


@given(intervals(), st.sampled_from((16, 32, 48)), st.sampled_from((16, 32, 48)))
def test_runs_and_counts_are_those_of_the_dense_mask(
    drawn: tuple[torch.Tensor, torch.Tensor, int], by: int, block: int
) -> None:
    start, stop, length = drawn
    kinds = kinds_of(dense_of(start, stop, length), (by, block))
    swept = sweep_of(start, stop, by, length, block)
    assert equal_runs(swept.runs(), BlockRuns.from_kinds(kinds))
    assert torch.equal(swept.counts(), (kinds != EMPTY).sum(2))


@given(intervals())
def test_coalesced_intervals_are_apart_and_see_the_same(
    drawn: tuple[torch.Tensor, torch.Tensor, int],
) -> None:
    start, stop, length = drawn
    for one_start, one_stop in zip(start, stop, strict=True):
        starts, stops = coalesced(torch.stack((one_start, one_stop)))
        assert starts.shape == one_start.shape
        seen = dense_of(starts.unsqueeze(0), stops.unsqueeze(0), length)
        assert torch.equal(seen, dense_of(one_start.unsqueeze(0), one_stop.unsqueeze(0), length))
        for position in range(starts.shape[1]):
            pairs = zip(starts[:, position].tolist(), stops[:, position].tolist(), strict=True)
            ends = sorted((a, b) for a, b in pairs if a < b)
            assert all(b < c for (_, b), (c, _) in itertools.pairwise(ends))


def causal(positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    stop = torch.arange(1, positions + 1).view(1, 1, -1)
    return torch.zeros_like(stop), stop


def test_a_block_that_two_touching_intervals_fill_together_is_full() -> None:
    cut = torch.arange(16) + 8
    start, stop = torch.stack((cut, 0 * cut))[None], torch.stack((0 * cut + 32, cut))[None]
    assert sweep_of(start, stop, 16, 40, 16).runs().line(0, 0) == [(0, 2, FULL)]


def test_a_row_that_sees_nothing_leaves_no_block_of_its_line_full() -> None:
    start, stop = torch.zeros(1, 1, 32, dtype=torch.int64), torch.full((1, 1, 32), 64)
    stop[0, 0, 20] = 0
    runs = sweep_of(start, stop, 16, 64, 16).runs()
    assert [runs.line(0, line) for line in (0, 1)] == [[(0, 4, FULL)], [(0, 4, PARTIAL)]]


def test_the_ragged_last_block_is_full_where_every_row_reaches_the_end() -> None:
    start, stop = torch.zeros(1, 1, 20, dtype=torch.int64), torch.full((1, 1, 20), 40)
    runs = sweep_of(start, stop, 16, 40, 16).runs()
    assert [runs.line(0, line) for line in (0, 1)] == [[(0, 3, FULL)]] * 2
    stop[0, 0, 19] = 39
    runs = sweep_of(start, stop, 16, 40, 16).runs()
    assert runs.line(0, 1) == [(0, 2, FULL), (2, 3, PARTIAL)]


@pytest.mark.parametrize("at_once", [1, 16, 100])
def test_any_number_of_positions_at_once_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    swept = sweep_of(*causal(83), 16, 83, 16)
    runs, counts = swept.runs(), swept.counts()
    monkeypatch.setattr(sweep, "_INTERVALS_AT_ONCE", at_once)
    assert equal_runs(swept.runs(), runs) and torch.equal(swept.counts(), counts)
    assert counts.tolist() == [[1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize("at_once", [16, 128, 160, 1 << 17])
def test_small_classes_are_swept_together_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(sweep, "_INTERVALS_AT_ONCE", at_once)
    every = [(start, stop + n) for start, stop in [causal(41)] for n in (0, 3, 0, 41, 7)]
    start, stop = (torch.cat(ends) for ends in zip(*every, strict=True))
    swept = sweep_of(start, stop, 16, 83, 16)
    runs, counts = swept.runs(), swept.counts()
    for class_, ends in enumerate(every):
        alone = sweep_of(*ends, 16, 83, 16)
        assert runs.every_line(class_) == alone.runs().every_line(0)
        assert torch.equal(counts[class_], alone.counts()[0])


def test_no_more_intervals_are_asked_for_than_may_be_worked_on_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[range] = []
    start, stop = causal(200)

    def ends(_: range, part: range) -> torch.Tensor:
        asked.append(part)
        return torch.stack((start, stop))[:, 0, :, part.start : part.stop]

    monkeypatch.setattr(sweep, "_INTERVALS_AT_ONCE", 64)
    Sweep(ends, 1, 1, 200, 16, 200, 16, CPU).counts()
    assert [len(part) for part in asked] == [64, 64, 64, 8]
    assert [position for part in asked for position in part] == list(range(200))


@pytest.mark.parametrize("index", ["kv", "q"])
def test_closed_forms_are_swept_along_the_axis_that_they_are_not_solved_for(index: Index) -> None:
    """Windows of 20 and 40 keys; heads 0 and 1 have one, heads 2 and 3 the other."""
    distance, reach = apply("sub", Q, KV), apply("mul", apply("floordiv", H, const(2)), const(20))
    ahead = apply("ge", distance, const(0))
    near = apply("lt", distance, apply("add", reach, const(20)))
    graph = make_graph("mask", apply("and", ahead, near))
    size = MaskSize(1, 4, 75, 90)
    form = closed_form(graph, index)
    assert isinstance(form, ClosedForm)
    known = solved(form, Values(), size)
    assert isinstance(known, Solved)
    classes = classes_of(graph, Values(), size)
    grid = BlockGrid(size, (16, 32))
    away = torch.arange(75)[:, None] - torch.arange(90)
    dense = torch.stack([(away >= 0) & (away < window) for window in (20, 40)])
    kinds = kinds_of(dense, grid.block_size)
    if index == "q":
        kinds = kinds.transpose(1, 2).contiguous()
    assert equal_runs(runs_of_form(known, classes, grid), BlockRuns.from_kinds(kinds))
    assert torch.equal(counts_of_form(known, classes, grid), (kinds != EMPTY).sum(2))
