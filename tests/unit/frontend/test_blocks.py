"""Classification of blocks: agrees with the dense mask, one strip at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend import blocks
from flexfa4.frontend.blocks import EMPTY, FULL, PARTIAL, MaskSize, block_count, classify
from flexfa4.frontend.evaluate import Lanes, Program, Values
from flexfa4.frontend.ir import BOOL as BOOL_TYPE
from flexfa4.frontend.ir import Buffer, Graph, const, load, make_graph
from flexfa4.frontend.ops import apply
from tests.leaves import KV, B, H, Q

CAUSAL = make_graph("mask", apply("ge", Q, KV))
RANDOM = Buffer("keep", BOOL_TYPE, (None,) * 4)


def kinds_of(dense: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Return the kinds of the blocks of a dense mask, block by block."""
    batches, heads, q_len, kv_len = dense.shape
    shape = (batches, heads, block_count(q_len, block[0]), block_count(kv_len, block[1]))
    kinds = torch.zeros(shape, dtype=torch.int8)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, shape)).tolist():
        part = dense[b, h, i * block[0] :, j * block[1] :][: block[0], : block[1]]
        kinds[b, h, i, j] = FULL if part.all() else PARTIAL if part.any() else EMPTY
    return kinds


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
    graph = make_graph("mask", load(RANDOM, (B, H, Q, KV)))
    kinds = classify(graph, Values({RANDOM: keep}), MaskSize(*shape), block)
    assert torch.equal(kinds, kinds_of(keep, block))


@pytest.mark.parametrize("q_len", [0, 1, 31, 32, 33, 100])
@pytest.mark.parametrize("kv_len", [0, 1, 47, 48, 49, 100])
def test_ragged_blocks_are_decided_by_their_real_lanes(q_len: int, kv_len: int) -> None:
    kinds = classify(CAUSAL, Values(), MaskSize(1, 1, q_len, kv_len), (32, 48))
    dense = (torch.arange(q_len)[:, None] >= torch.arange(kv_len))[None, None]
    assert torch.equal(kinds, kinds_of(dense, (32, 48)))


@pytest.mark.parametrize("value", [True, False])
def test_a_constant_mask_is_all_full_or_all_empty(value: bool) -> None:
    graph = make_graph("mask", const(value))
    kinds = classify(graph, Values(), MaskSize(1, 2, 40, 70), (16, 16))
    assert kinds.shape == (1, 2, 3, 5) and (kinds == (FULL if value else EMPTY)).all()


def test_a_mask_of_one_axis_is_spread_over_the_other() -> None:
    for root in (apply("lt", Q, const(20)), apply("lt", KV, const(20)), apply("eq", H, const(1))):
        graph = make_graph("mask", root)
        size = MaskSize(1, 2, 40, 50)
        (dense,) = Program((root,)).run(Values(), size.lanes())
        right = kinds_of(dense.expand(1, 2, 40, 50), (16, 16))
        assert torch.equal(classify(graph, Values(), size, (16, 16)), right)


def test_no_more_than_one_strip_is_evaluated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes: list[Lanes] = []

    class Recorded(Program):
        def run(self, values: Values, where: Lanes, *rest: Any) -> Any:
            lanes.append(where)
            return super().run(values, where, *rest)

    monkeypatch.setattr(blocks, "Program", Recorded)
    monkeypatch.setattr(blocks, "_STRIP_LANES", 4 * 16 * 100)
    graph: Graph = make_graph("mask", apply("ge", apply("add", Q, H), KV))
    classify(graph, Values(), MaskSize(2, 9, 100, 100), (16, 16))
    assert max(b * h * q * kv for b, h, q, kv in (x.shape for x in lanes)) <= 4 * 16 * 100
    assert sum(x.shape[0] * x.shape[1] * x.shape[2] for x in lanes) == 2 * 9 * 100
