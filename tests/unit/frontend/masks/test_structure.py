"""The structure of a mask, in closed form or found by evaluating it: equal, and to brute force."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.counters import Stats, stats
from flexfa4.errors import OutOfRangeError
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import BOOL as BOOL_TYPE
from flexfa4.frontend.ir import Buffer, Graph, Node, const, load, make_graph
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.masks import structure
from flexfa4.frontend.masks.grid import EMPTY, FULL, MaskSize
from flexfa4.frontend.masks.structure import MaskBlocks, analyse
from flexfa4.frontend.ops import apply
from tests.brute_force import equal_runs, kinds_of
from tests.leaves import KV, B, H, Q

CAUSAL = make_graph("mask", apply("ge", Q, KV))
STRIPES = make_graph("mask", apply("lt", apply("mod", apply("add", Q, KV), const(48)), const(20)))
RANDOM = Buffer("keep", BOOL_TYPE, (None,) * 4)
TABLE = make_graph("mask", load(RANDOM, (B, H, Q, KV)))


def analysed(
    graph: Graph, shape: tuple[int, int, int, int], block: tuple[int, int], **captures: Any
) -> MaskBlocks:
    """Analyse a mask for sizes; `captures` are fields of `Values`."""
    symbols = dict(zip(("num_heads", "q_len", "kv_len"), shape[1:], strict=True))
    return analyse(graph, Values(symbols=symbols, **captures), MaskSize(*shape), block)


def mask(root: Node) -> Graph:
    return make_graph("mask", root)


@given(
    st.tuples(*(st.integers(1, n) for n in (2, 3, 70, 70))),
    st.sampled_from(((16, 16), (16, 48), (32, 16))),
    st.sampled_from((0.0, 0.02, 0.98, 1.0)),
    st.integers(0, 100),
)
def test_kinds_are_those_of_the_dense_mask(
    shape: tuple[int, int, int, int], block: tuple[int, int], share: float, seed: int
) -> None:
    keep = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share
    blocks = analysed(TABLE, shape, block, tensors={RANDOM: keep})
    kinds = kinds_of(keep, block)
    assert torch.equal(blocks.kinds(), kinds) and torch.equal(blocks.dense(), keep)
    assert blocks.density == pytest.approx(float((kinds != EMPTY).double().mean()))
    columns = blocks.for_each(blocks.columns.to_kinds())
    assert torch.equal(columns, kinds.transpose(2, 3))


@pytest.mark.parametrize("q_len", [0, 1, 31, 32, 33, 100])
@pytest.mark.parametrize("kv_len", [0, 1, 47, 48, 49, 100])
@pytest.mark.parametrize("graph", [CAUSAL, STRIPES], ids=["closed", "evaluated"])
def test_ragged_blocks_are_decided_by_their_real_lanes(
    graph: Graph, q_len: int, kv_len: int
) -> None:
    blocks = analysed(graph, (1, 1, q_len, kv_len), (32, 48))
    assert torch.equal(blocks.kinds(), kinds_of(blocks.dense(), (32, 48)))
    q, kv = torch.arange(q_len)[:, None], torch.arange(kv_len)
    dense = q >= kv if graph is CAUSAL else (q + kv) % 48 < 20
    assert torch.equal(blocks.dense(), dense[None, None])


@pytest.mark.parametrize("value", [True, False])
def test_a_constant_mask_is_all_full_or_all_empty(value: bool) -> None:
    kinds = analysed(mask(const(value)), (1, 2, 40, 70), (16, 16)).kinds()
    assert kinds.shape == (1, 2, 3, 5) and (kinds == (FULL if value else EMPTY)).all()


@pytest.mark.parametrize(
    "root", [apply("lt", Q, const(20)), apply("lt", KV, const(20)), apply("eq", H, const(1))]
)
def test_a_mask_of_one_axis_is_spread_over_the_other(root: Node) -> None:
    size = MaskSize(1, 2, 40, 50)
    (dense,) = Program((root,)).run(Values(), size.lanes())
    right = kinds_of(dense.expand(1, 2, 40, 50), (16, 16))
    assert torch.equal(analysed(mask(root), (1, 2, 40, 50), (16, 16)).kinds(), right)


def test_a_closed_form_finds_nothing_before_it_is_asked_and_no_runs_for_counts() -> None:
    analysed(CAUSAL, (1, 1, 8, 8), (16, 16)).by_columns  # noqa: B018  # solved once
    before = stats()
    blocks = analysed(CAUSAL, (1, 1, 100, 70), (16, 32))
    assert not blocks.has_runs and blocks.is_closed and blocks.nbytes == 0
    counts = {by: blocks.counts(by) for by in ("rows", "columns")}
    orders = {by: blocks.order("lpt", by) for by in ("rows", "columns")}
    assert not blocks.has_runs and blocks.density > 0 and stats() - before == Stats()
    assert equal_runs(blocks.columns, blocks.runs.transposed())
    for by in ("rows", "columns"):
        runs = blocks.lines(by)
        assert torch.equal(counts[by], runs.counts())
        assert torch.equal(orders[by], runs.counts().argsort(dim=1, descending=True, stable=True))
    assert blocks.nbytes == blocks.runs.nbytes + blocks.columns.nbytes > 0
    assert stats() - before == Stats()


def test_a_mask_without_closed_form_is_evaluated_once_when_it_is_analysed() -> None:
    before = stats()
    blocks = analysed(STRIPES, (1, 1, 100, 70), (16, 32))
    assert blocks.has_runs and not blocks.is_closed
    blocks.columns, blocks.kinds(), blocks.with_block_size((32, 96))
    assert (stats() - before).block_lists == 1
    fine = blocks.with_block_size((16, 16))
    assert torch.equal(fine.kinds(), kinds_of(blocks.dense(), (16, 16)))
    assert (stats() - before).block_lists == 2


def test_batches_and_heads_of_one_class_share_their_runs() -> None:
    graph = mask(apply("ge", apply("add", Q, apply("floordiv", H, const(2))), KV))
    blocks = analysed(graph, (1, 6, 40, 40), (16, 16))
    assert blocks.classes.of.tolist() == [[0, 0, 1, 1, 2, 2]]
    assert blocks.runs.classes == 3 and blocks.counts("rows").shape == (3, 3)
    assert torch.equal(blocks.kinds(), kinds_of(blocks.dense(), (16, 16)))


def test_a_load_out_of_range_is_an_error_before_anything_is_evaluated() -> None:
    keep = torch.ones(1, 1, 40, 39, dtype=torch.bool)
    values = Values({RANDOM: keep}, unproved=frozenset({TABLE.root}))
    before = stats()
    with pytest.raises(OutOfRangeError, match="size 39 in dimension 3"):
        analyse(TABLE, values, MaskSize(1, 1, 40, 40), (16, 16))
    assert stats() - before == Stats()
    assert not analyse(TABLE, values, MaskSize(1, 1, 40, 39), (16, 16)).values.unproved


def test_what_backends_keep_is_made_once_and_not_shared_with_other_blocks() -> None:
    class Kept(list[int]):
        """What a backend keeps."""

    blocks = analysed(CAUSAL, (1, 1, 40, 40), (16, 16))
    assert blocks.cache(Kept) is blocks.cache(Kept)
    assert blocks.with_block_size((32, 32)).cache(Kept) is not blocks.cache(Kept)


def test_on_another_device_the_runs_that_are_known_stay_where_they_are() -> None:
    other = torch.device("meta")
    for graph in (CAUSAL, STRIPES):
        blocks = analysed(graph, (1, 1, 40, 40), (16, 16))
        moved = blocks.on(other)
        assert moved.values.device == other and blocks.on(other) is moved
        assert blocks.on(torch.device("cpu")) is blocks
        assert moved.has_runs is blocks.has_runs
    assert moved.runs is blocks.runs
    captured = MaskBlocks(TABLE, Values({RANDOM: torch.ones(1, 1, 4, 4, dtype=torch.bool)}),
                          MaskSize(1, 1, 4, 4), (16, 16))  # fmt: skip
    assert captured.on(other) is captured


def test_a_dense_mask_is_evaluated_strip_by_strip(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[Lanes] = []

    class Recorded(Program):
        def run(self, values: Values, lanes: Any, *rest: Any, **more: Any) -> Any:
            evaluated.append(lanes)
            return super().run(values, lanes, *rest, **more)

    graph = mask(apply("ge", apply("add", Q, H), KV))
    blocks = analysed(graph, (2, 9, 100, 100), (16, 16))
    expected = blocks.dense()
    monkeypatch.setattr(structure, "Program", Recorded)
    monkeypatch.setattr(structure, "_STRIP_LANES", 18 * 7 * 100)
    assert torch.equal(blocks.dense(), expected)
    assert [x.q[1] - x.q[0] for x in evaluated] == [7] * 14 + [2]
