"""Masked lanes are cut exactly, masks are kept only as long as they are small, views stay views."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.evaluate import Values, mask_tile
from flexfa4.frontend.ir import F32, Buffer, input_, load
from flexfa4.frontend.lanes import Lanes
from flexfa4.kernels.cpu import scores
from flexfa4.kernels.cpu.plan import plan_for
from flexfa4.kernels.cpu.schedule import Chunk
from flexfa4.kernels.cpu.scores import (
    Call,
    key_rows,
    mask_bits,
    mask_run,
    part,
    query_rows,
    tile_rows,
    visible_lanes,
)
from flexfa4.primitives.key_runs import KeyRun, QueryTile
from flexfa4.variants import SlidingWindow, causal

KEEP = torch.rand(40, 60, generator=torch.Generator().manual_seed(0)) < 0.5


def call_of(mask: Any, *, dtype: torch.dtype = torch.float32, heads: int | None = None) -> Call:
    block_mask = flexfa4.create_block_mask(mask, heads=heads, q_len=40, kv_len=60)
    blocks = block_mask.blocks_on(torch.device("cpu"))
    x = torch.zeros(1, 2, 60, 4, dtype=dtype)
    return Call(
        q=x[:, :, :40],
        k=x,
        v=x,
        scale=1.0,
        plan=plan_for(None, blocks.graph, frozenset()),
        values=Values(dtype=dtype),
        blocks=blocks,
        chunks=(),
    )


def kept(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return KEEP[q_idx, kv_idx]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", [-math.inf, 0.0])
def test_masked_lanes_are_cut_whatever_they_hold(dtype: torch.dtype, value: float) -> None:
    wild = torch.tensor([math.nan, -math.nan, math.inf, -math.inf, -0.0, 1e-45, 3e38, 1.0])
    given = wild.to(dtype).repeat(8)[:60].expand(1, 2, 40, 60).contiguous()
    found = given.clone()
    lanes = Lanes((0, 1), (0, 2), (0, 40), (0, 60))
    mask_run(call_of(kept, dtype=dtype), lanes, KeyRun(0, 60, ((0, 60),)), found, value)
    cut = torch.tensor(value, dtype=dtype)
    torch.testing.assert_close(found, torch.where(KEEP, given, cut), rtol=0, atol=0, equal_nan=True)


def test_only_the_partial_columns_of_a_run_are_touched() -> None:
    lanes = Lanes((0, 1), (0, 2), (8, 24), (10, 50))
    given = torch.ones(1, 2, 16, 40)
    run = KeyRun(10, 50, ((20, 30), (45, 50)))
    mask_run(call_of(kept), lanes, run, given, 0.0)
    right = torch.ones(16, 40)
    for start, stop in run.partial:
        right[:, start - 10 : stop - 10] = KEEP[8:24, start:stop].float()
    assert torch.equal(given, right.expand_as(given))


def test_mask_tiles_are_kept_for_the_next_call_until_they_are_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = call_of(kept)
    lanes = [Lanes((0, 1), (0, 2), (q, q + 10), (0, 60)) for q in range(0, 40, 10)]
    monkeypatch.setattr(scores, "_MASK_CACHE_BYTES", 2 * 2 * 10 * 60 * 4)  # two of the four
    first = [mask_bits(call, where)[0] for where in lanes]
    again = [mask_bits(call, where)[0] for where in lanes]
    assert [a is b for a, b in zip(first, again, strict=True)] == [True, True, False, False]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_mask_made_for_one_head_is_read_at_head_zero() -> None:
    call = call_of(lambda b, h, q, kv: kv < 10 * (h + 1), heads=1)
    keep, _ = mask_bits(call, Lanes((0, 1), (1, 2), (0, 40), (0, 60)))
    assert torch.equal(keep.flatten() != 0, torch.arange(60) < 10)


def test_heads_of_one_class_share_one_evaluation_of_the_mask() -> None:
    call = call_of(lambda b, h, q, kv: kv < 10 * (h // 2 + 1), heads=4)
    first, second, alone = (
        mask_bits(call, Lanes((0, 1), heads, (0, 40), (0, 60)))[0]
        for heads in ((0, 2), (2, 4), (1, 2))
    )
    assert first is alone and first.shape[:-1].numel() == 1
    assert torch.equal(first.flatten() != 0, torch.arange(60) < 10)
    assert torch.equal(second.flatten() != 0, torch.arange(60) < 20)


def test_visible_lanes_are_looked_up_only_where_a_load_asks_for_them() -> None:
    call = call_of(causal)
    lanes = Lanes((0, 1), (0, 2), (0, 40), (0, 60))
    partial = KeyRun(0, 60, ((0, 60),))
    assert visible_lanes(call, lanes, partial) is None
    unproved = load(Buffer("t", F32, (None,)), (input_("kv"),))
    asking = replace(call, values=Values(unproved=frozenset((unproved,))))
    assert visible_lanes(asking, lanes, KeyRun(0, 60)) is None
    found = visible_lanes(asking, lanes, partial)
    assert found is not None
    right = torch.arange(40)[:, None] >= torch.arange(60)
    assert torch.equal(found, right.expand(1, 2, 40, 60))


def test_part_cuts_only_the_axes_that_are_not_whole() -> None:
    x = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
    assert part(x, (0, 2), (0, 3), (0, 4)) is x
    assert torch.equal(part(x, (1, 2), (0, 2), (1, 4)), x[1:2, :2, 1:4])
    assert torch.equal(part(x[..., 0], (0, 1), (2, 3), (3, 4)), x[:1, 2:, 3:, 0])


def test_keys_of_the_score_dtype_are_read_in_place() -> None:
    call = call_of(causal)
    chunk = Chunk((0, 1), (0, 2), (0, 2), (), 0)
    tile, run = QueryTile(0, 8, ()), KeyRun(16, 32)
    rows = key_rows(call.k, call, chunk, tile, run)
    assert rows.shape == (2, 16, 4)
    assert rows.untyped_storage().data_ptr() == call.k.untyped_storage().data_ptr()
    assert key_rows(call.k.bfloat16(), call, chunk, tile, run).dtype is torch.float32


def test_copies_of_a_tile_read_their_rows_and_keys_in_place_of_batches() -> None:
    call = call_of(causal)
    call.k.copy_(torch.randn(call.k.shape))
    chunk, run = Chunk((0, 1), (1, 2), (1, 2), (), 0), KeyRun(4, 20)
    tile = QueryTile(8, 16, (run,), copies=3)
    keys = key_rows(call.k, call, chunk, tile, run)
    assert keys.untyped_storage().data_ptr() == call.k.untyped_storage().data_ptr()
    low = key_rows(call.k.bfloat16(), call, chunk, tile, run)
    rows, queries = tile_rows(call.q, chunk, tile), query_rows(call, chunk, tile)
    for i in range(tile.copies):
        shifted = call.k[0, 1, 4 + 8 * i : 20 + 8 * i]
        assert torch.equal(keys[i], shifted)
        assert torch.equal(low[i], shifted.bfloat16().float())
        of_copy = call.q[:, 1:2, 8 + 8 * i : 16 + 8 * i]
        assert torch.equal(rows[i : i + 1], of_copy) and torch.equal(queries[i], of_copy[0, 0])


def test_a_mask_that_follows_the_diagonal_is_evaluated_once_for_each_distance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluated: list[Lanes] = []

    def counted(program: Any, values: Any, lanes: Lanes) -> torch.Tensor:
        evaluated.append(lanes)
        return mask_tile(program, values, lanes)

    monkeypatch.setattr("flexfa4.kernels.cpu.scores.mask_tile", counted)
    q = torch.randn(1, 1, 2048, 8)
    for mask, most in ((SlidingWindow(100), 6), (causal, 4)):
        evaluated.clear()
        block_mask = flexfa4.create_block_mask(mask, q_len=2048, kv_len=2048)
        found = flexfa4.attention(q, q, q, block_mask=block_mask)
        assert 0 < len(evaluated) <= most
        dense = torch.where(block_mask.to_dense(), q @ q.mT / 8**0.5, -math.inf).softmax(-1) @ q
        torch.testing.assert_close(found, dense, rtol=1e-4, atol=1e-5)


def test_positions_that_wrap_around_64_bits_end_what_follows_the_diagonal() -> None:
    call = call_of(lambda b, h, q, kv: (q < kv + (2**63 - 21)) & (q >= kv))
    for first in (0, 8, 16, 24):  # kv + ... is negative from the key 21 on
        place = (first, first + 8)
        keep, _ = mask_bits(call, Lanes((0, 1), (0, 1), place, place))
        at = torch.arange(*place)
        right = (at[:, None] >= at) & (at < 21)
        assert torch.equal(keep != 0, right), place
