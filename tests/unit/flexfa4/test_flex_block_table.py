"""The blocks of a FlexAttention mask say the same as runs and as a table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.flex.block_lists import lists_by
from flexfa4.flex.block_table import FoundBlocks, ListedKinds
from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL
from flexfa4.frontend.masks.runs import BlockRuns, Rectangles
from tests.brute_force import equal_runs

CPU = torch.device("cpu")


@st.composite
def both_forms(draw: st.DrawFn) -> tuple[FoundBlocks, ListedKinds]:
    """Blocks of 2 batches and 3 heads of some classes, as runs and as a table."""
    classes, rows, columns = (draw(st.integers(1, most)) for most in (3, 7, 9))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    kinds = torch.randint(0, 3, (classes, rows, columns), generator=g).to(torch.int8)
    if draw(st.booleans()):  # long runs, at the ends of lines too
        kinds = kinds.sort(dim=-1, descending=draw(st.booleans()))[0]
    of = torch.randint(0, classes, (2, 3), generator=g)
    return FoundBlocks(of, BlockRuns.from_kinds(kinds), CPU), ListedKinds(kinds[of])


def assert_same(found: FoundBlocks, listed: ListedKinds) -> None:
    assert found.shape == listed.shape
    assert torch.equal(found.kinds(), listed.kinds())
    assert equal_runs(found.runs, BlockRuns.from_kinds(found.runs.to_kinds()))


@given(both_forms(), st.booleans())
def test_lists_of_runs_are_those_of_the_table(forms: Any, full: bool) -> None:
    for found, listed in (forms, [blocks.transposed() for blocks in forms]):
        assert_same(found, listed)
        for own, right in zip(found.lists(full=full), listed.lists(full=full), strict=True):
            if own is None or right is None:
                assert own is right
            else:
                assert own.dtype is right.dtype and torch.equal(own, right)


@given(both_forms(), st.data())
def test_parts_are_those_of_the_table(forms: Any, data: st.DataObject) -> None:
    found, listed = forms
    rows, columns = found.shape[2:]
    rows_of_part = data.draw(st.lists(st.integers(0, rows - 1), max_size=5))
    picks = [torch.tensor([1]), torch.tensor([2, 0]), torch.tensor(rows_of_part, dtype=torch.int64)]
    assert_same(found.picked(picks), listed.picked(picks))
    crop = data.draw(st.tuples(st.integers(0, rows), st.integers(0, columns)))
    assert_same(found.cropped(*crop), listed.cropped(*crop))
    assert found.cropped(*crop).share() == pytest.approx(listed.cropped(*crop).share())
    assert equal_runs(found.runs_of(1, 2), listed.runs_of(1, 2))


@given(both_forms(), st.integers(0, 15), st.integers(0, 15))
def test_a_block_that_a_length_cuts_short_is_never_full(forms: Any, cut: int, cut_kv: int) -> None:
    found, listed = forms
    rows, columns = found.shape[2:]
    lengths = (16 * rows - cut, 16 * columns - cut_kv)
    made = found.without_ragged_full(lengths, (16, 16))
    assert_same(made, listed.without_ragged_full(lengths, (16, 16)))
    before, after = found.kinds(), made.kinds()
    changed = before != after
    assert (before[changed] == FULL).all() and (after[changed] == PARTIAL).all()
    assert not (cut and (after[:, :, -1] == FULL).any())
    assert not (cut_kv and (after[..., -1] == FULL).any())


def test_long_lists_are_written_from_runs_as_from_tables() -> None:
    rows = torch.arange(256)
    ones = torch.ones_like(rows)
    rectangles = Rectangles(0 * rows, rows, ones, 8 * rows, 8 * rows + 8, FULL * ones)
    runs = BlockRuns.from_rectangles(1, 256, 4096, rectangles)
    num, indices, full_num, full_indices = FoundBlocks(
        torch.zeros(1, 1, dtype=torch.int64), runs, CPU
    ).lists(full=True)
    assert full_num is not None and full_indices is not None
    assert not num.any() and torch.equal(indices, torch.arange(4096).expand_as(indices).int())
    assert (full_num == 8).all()
    assert torch.equal(full_indices[0, 0, :, :8], (8 * rows[:, None] + torch.arange(8)).int())
    again = lists_by(FULL * (runs.to_kinds()[None] != EMPTY).to(torch.int8), full=True)[3]
    assert again is not None and torch.equal(full_indices, again)
