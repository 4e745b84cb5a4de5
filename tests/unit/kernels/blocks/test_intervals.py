"""A closed form as a mask that a kernel can evaluate: equal to the mask that was solved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import F32, topological
from flexfa4.frontend.masks.solving.solved import Solved
from flexfa4.kernels.blocks.intervals import Interval, bound_interval, interval_of, joined
from tests import tile_walks
from tests.brute_force import dense_of
from tests.tile_walks import CASES, COLUMNS, CPU, Case

EITHER = {**CASES, **{f"columns of {name}": case for name, case in COLUMNS.items()}}
SOLVED = [name for name, case in EITHER.items() if case.mask and case.one_interval]


def interval(case: Case) -> tuple[Interval, Solved]:
    blocks = case.blocks
    assert blocks is not None
    solved = blocks.by_rows if case.by == "rows" else blocks.by_columns
    assert isinstance(solved, Solved)
    solved = joined(solved)
    found = interval_of(solved)
    assert found is not None
    return found, solved


@pytest.mark.parametrize("name", SOLVED)
def test_the_interval_is_the_mask(name: str) -> None:
    case = EITHER[name]
    found, solved = interval(case)
    bound = bound_interval(found, solved, CPU)
    values = Values.of(bound, case.sizes, device=CPU)
    same = dense_of(found.graph.root, values, solved.size)
    assert torch.equal(same.expand(case.dense().shape), case.dense())


@pytest.mark.parametrize("name", SOLVED)
def test_a_kernel_neither_searches_nor_compares_floats(name: str) -> None:
    found, _ = interval(EITHER[name])
    for end in (found.begin, found.end):
        assert all(n.op != "search" and n.dtype is not F32 for n in topological(end))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("causal", []),
        ("lengths of batches", []),
        ("first documents", [(500,)]),
        ("documents", [(500,)]),
        ("whole documents", [(500,), (500,)]),
        ("texts", [(2, 500)]),
    ],
)
def test_tables_have_the_axes_that_an_end_varies_with(
    name: str, shapes: list[tuple[int, ...]]
) -> None:
    found, solved = interval(CASES[name])
    bound = bound_interval(found, solved, CPU)
    named = dict(zip(found.graph.buffers, bound.tensors, strict=True))
    tables = [named[table] for table in found.tables]
    assert [tuple(t.shape) for t in tables] == shapes
    assert all(t.dtype is torch.int32 for t in tables)


def test_a_table_gets_a_name_that_no_capture_has() -> None:
    begin_of_row = tile_walks.DOC

    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (begin_of_row[q] == begin_of_row[kv]) & (kv < begin_of_row[q] + 200)

    found, _ = interval(replace(CASES["documents"], mask=mask))
    names = [buffer.name for buffer in found.graph.buffers]
    assert len(set(names)) == len(names)
    assert all(table.name.startswith(("begin_of_row_", "end_of_row")) for table in found.tables)


def test_several_intervals_are_none() -> None:
    blocks = CASES["sink and window"].blocks
    assert blocks is not None and isinstance(blocks.by_rows, Solved)
    assert interval_of(blocks.by_rows) is None


def test_tables_of_ends_of_intervals_of_queries_have_an_axis_for_keys() -> None:
    case = COLUMNS["texts"]
    found, solved = interval(case)
    bound = bound_interval(found, solved, CPU)
    named = dict(zip(found.graph.buffers, bound.tensors, strict=True))
    (table,) = found.tables
    assert (found.index, found.line) == ("q", "kv")
    assert table.name == "end_of_column" and named[table].shape == (2, case.sizes.kv_len)


def test_two_intervals_of_which_one_is_empty_always_are_one() -> None:
    blocks = COLUMNS["prefix"].blocks
    assert blocks is not None and isinstance(blocks.by_columns, Solved)
    solved = blocks.by_columns
    assert len(solved.form.spans) == 2 and len(joined(solved).form.spans) == 1
    rows = CASES["sink and window"].blocks
    assert rows is not None and isinstance(rows.by_rows, Solved)
    assert joined(rows.by_rows) is rows.by_rows and len(rows.by_rows.form.spans) == 2
