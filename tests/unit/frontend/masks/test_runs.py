"""Runs of blocks say what a dense table of kinds says, whatever they are made from."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL, block_count
from flexfa4.frontend.masks.overlay import Stretches
from flexfa4.frontend.masks.runs import BlockRuns, Rectangles, order
from tests.brute_force import equal_runs

SHAPES = st.tuples(st.integers(0, 3), st.integers(0, 7), st.integers(0, 9))


@st.composite
def tables(
    draw: st.DrawFn, shapes: st.SearchStrategy[tuple[int, int, int]] = SHAPES
) -> torch.Tensor:
    """Draw a table of kinds in which neighbours are often equal."""
    shape = draw(shapes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    steps = torch.randint(0, 3, shape, generator=generator, dtype=torch.int8)
    calm = torch.rand(shape, generator=generator) < draw(st.sampled_from((0.0, 0.5, 0.8)))
    for axis in (1, 2):
        for i in range(1, shape[axis]):
            here, before = steps.select(axis, i), steps.select(axis, i - 1)
            here.copy_(torch.where(calm.select(axis, i), before, here))
    return steps


def table(*rows: str) -> torch.Tensor:
    """Return kinds ``(1, lines, width)`` of rows such as ".pF" (empty, partial, full)."""
    return torch.tensor([[[".pF".index(c) for c in row] for row in rows]], dtype=torch.int8)


@given(tables())
def test_runs_of_a_table_are_long_and_say_what_it_says(kinds: torch.Tensor) -> None:
    runs = BlockRuns.from_kinds(kinds)
    assert torch.equal(runs.to_kinds(), kinds)
    assert [t.dtype for t in (runs.offsets, runs.start, runs.stop, runs.kind)] == [
        torch.int64, torch.int32, torch.int32, torch.int8,
    ]  # fmt: skip
    for c in range(kinds.shape[0]):
        every = runs.every_line(c)
        assert every == [runs.line(c, i) for i in range(kinds.shape[1])]
        for line in every:
            for start, stop, kind in line:
                assert 0 <= start < stop <= runs.width and kind in (PARTIAL, FULL)
            for (_, stop, kind), (start, _, following) in itertools.pairwise(line):
                assert stop < start or (stop == start and kind != following)


@given(tables(), st.randoms(use_true_random=False))
def test_rectangles_in_any_order_become_the_runs_of_their_table(
    kinds: torch.Tensor, chance: random.Random
) -> None:
    left = kinds.clone()
    rectangles = []
    for c, i, j in torch.cartesian_prod(*(torch.arange(n) for n in kinds.shape)).tolist():
        kind = int(left[c, i, j])
        if kind == EMPTY:
            continue
        stop = j + 1
        while stop < kinds.shape[2] and left[c, i, stop] == kind and chance.random() < 0.8:
            stop += 1
        end = i + 1
        while end < kinds.shape[1] and (left[c, end, j:stop] == kind).all():
            end += 1
        left[c, i:end, j:stop] = EMPTY
        rectangles.append((c, i, end - i, j, stop, kind))
    rectangles += [(0, 0, 0, 0, 1, FULL), (0, 0, 1, 1, 1, FULL), (0, 0, 1, 0, 1, EMPTY)]
    chance.shuffle(rectangles)
    columns = torch.tensor(rectangles).unbind(1)
    classes, lines, width = kinds.shape
    runs = BlockRuns.from_rectangles(classes, lines, width, Rectangles(*columns))
    assert equal_runs(runs, BlockRuns.from_kinds(kinds))


@given(tables())
def test_transposed_runs_are_those_of_the_transposed_table(kinds: torch.Tensor) -> None:
    runs = BlockRuns.from_kinds(kinds).transposed()
    assert equal_runs(runs, BlockRuns.from_kinds(kinds.transpose(1, 2).contiguous()))


@given(tables(), st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_larger_blocks_are_full_or_empty_only_where_all_their_blocks_are(
    kinds: torch.Tensor, by: tuple[int, int]
) -> None:
    classes, lines, width = kinds.shape
    coarse = torch.zeros(
        classes, block_count(lines, by[0]), block_count(width, by[1]), dtype=torch.int8
    )
    for i in range(coarse.shape[1]):
        for j in range(coarse.shape[2]):
            part = kinds[:, i * by[0] : (i + 1) * by[0], j * by[1] : (j + 1) * by[1]].flatten(1)
            low, high = part.amin(1), part.amax(1)
            coarse[:, i, j] = torch.where(low == high, low, PARTIAL)
    assert equal_runs(BlockRuns.from_kinds(kinds).coarsened(*by), BlockRuns.from_kinds(coarse))


@given(tables())
def test_counts_and_lists_are_those_of_the_table(kinds: torch.Tensor) -> None:
    runs = BlockRuns.from_kinds(kinds)
    assert torch.equal(runs.counts(), (kinds != EMPTY).sum(2))
    for kind, found in zip((PARTIAL, FULL), runs.lists(), strict=True):
        assert torch.equal(runs.counts(kind), (kinds == kind).sum(2))
        assert found.offsets.shape == (runs.classes, runs.lines + 1)
        assert found.indices.dtype == torch.int32
        for c in range(runs.classes):
            for i in range(runs.lines):
                listed = found.indices[found.offsets[c, i] : found.offsets[c, i + 1]]
                assert listed.tolist() == (kinds[c, i] == kind).nonzero().flatten().tolist()


@given(tables(), st.data())
def test_lines_are_cut_from_each_class(kinds: torch.Tensor, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, kinds.shape[1]))
    stop = data.draw(st.integers(start, kinds.shape[1]))
    cut = BlockRuns.from_kinds(kinds).cut(range(start, stop))
    assert equal_runs(cut, BlockRuns.from_kinds(kinds[:, start:stop].contiguous()))


@given(tables(), st.data())
def test_classes_are_taken_in_the_order_given(kinds: torch.Tensor, data: st.DataObject) -> None:
    classes = data.draw(st.permutations(range(kinds.shape[0])))[:2]
    found = BlockRuns.from_kinds(kinds).of_classes(classes)
    assert equal_runs(found, BlockRuns.from_kinds(kinds[list(classes)]))


def test_runs_take_memory_for_what_varies_not_for_blocks() -> None:
    n = 1 << 14
    causal = torch.arange(n)
    zero, one = torch.zeros_like(causal), torch.ones_like(causal)
    below = Rectangles(zero, causal, one, zero, causal, one * FULL)
    diagonal = Rectangles(zero, causal, one, causal, causal + 1, one * PARTIAL)
    runs = BlockRuns.from_rectangles(1, n, n, Rectangles.concatenated((below, diagonal)))
    assert int(runs.counts().sum()) == n * (n + 1) // 2
    assert runs.nbytes < 64 * n and runs.transposed().nbytes == runs.nbytes
    assert runs.line(0, 3) == [(0, 3, FULL), (3, 4, PARTIAL)]
    assert runs.transposed().line(0, 3) == [(3, 4, PARTIAL), (4, n, FULL)]
    assert runs.coarsened(n, n).line(0, 0) == [(0, 1, PARTIAL)]


def test_touching_runs_of_one_kind_are_joined_within_a_line_only() -> None:
    line, ends = torch.tensor([0, 0, 0, 1]), torch.tensor([[0, 1, 2, 0], [1, 2, 3, 1]])
    kind = torch.tensor([FULL, FULL, PARTIAL, PARTIAL])
    runs = BlockRuns.from_sorted(1, 2, 3, Stretches(line, ends, kind))
    assert equal_runs(runs, BlockRuns.from_kinds(table("FFp", "p..")))


@pytest.mark.parametrize(
    "other", [table(".pF", "FFF"), table("pp"), table("pF.", "FF."), table("FF.", "FFF")]
)
def test_runs_of_different_tables_differ(other: torch.Tensor) -> None:
    one = table("pF.", "FFF")
    assert equal_runs(BlockRuns.from_kinds(one), BlockRuns.from_kinds(one.clone()))
    assert not equal_runs(BlockRuns.from_kinds(one), BlockRuns.from_kinds(other))


def test_lines_are_ordered_by_their_blocks_and_stay_in_order_where_they_tie() -> None:
    counts = torch.tensor([[2, 0, 2, 5], [1, 1, 1, 1]])
    longest, shortest = order(counts, "lpt"), order(counts, "spt")
    assert longest.tolist() == [[3, 0, 2, 1], [0, 1, 2, 3]] and longest.dtype == torch.int32
    assert shortest.tolist() == [[1, 0, 2, 3], [0, 1, 2, 3]] and shortest.dtype == torch.int32


def test_runs_on_their_own_device_are_returned_as_they_are() -> None:
    runs = BlockRuns.from_kinds(table("pF."))
    assert runs.to(torch.device("cpu")) is runs
    moved = runs.to(torch.device("meta"))
    assert moved.start.device.type == "meta" and moved.width == 3
