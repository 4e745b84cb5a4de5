"""Heads, batches and broadcasting: public reports on other systems, right values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.errors import BlockMaskMismatchError, MaskReadsBatchError, ShapeMismatchError
from flexfa4.testing import Case, Inputs, Mods, Sizes, Trial, attend, excess
from flexfa4.variants import causal


def with_block_mask(batch: int | None, heads: int | None) -> Any:
    """Return attention whose block mask is made for a number of batches and heads."""

    def run(inputs: Inputs, mods: Mods) -> tuple[torch.Tensor, torch.Tensor]:
        mask = flexfa4.create_block_mask(
            mods.mask,
            batch=batch,
            heads=heads,
            q_len=inputs.q.shape[2],
            kv_len=inputs.k.shape[2],
        )
        return attend(inputs, Mods(mods.score_mod, mask))

    return run


@pytest.mark.parametrize("heads", [None, 1, 4])
@pytest.mark.parametrize("batch", [None, 1, 4])
def test_one_mask_serves_every_batch_and_head(batch: int | None, heads: int | None) -> None:
    """pytorch/pytorch#163314, pytorch/pytorch#163426: batch 4 with heads=None."""
    s = Sizes(4, 4, 2, 200, 200, 8, 8)
    assert not excess(Trial(Case.of(mask=causal), s), with_block_mask(batch, heads))


@pytest.mark.parametrize("position", [0, 1, 130, 255])
def test_decoding_at_a_position_equals_that_row_of_the_whole(position: int) -> None:
    """pytorch/pytorch#163314: one query with the offset in the mask."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(4, 3, 256, 8, generator=g) for _ in range(3))
    whole = flexfa4.attention(q, k, v, block_mask=causal)
    offset = position
    row = flexfa4.attention(
        q[:, :, position : position + 1],
        k,
        v,
        block_mask=lambda b, h, q_idx, kv_idx: q_idx + offset >= kv_idx,
    )
    torch.testing.assert_close(row, whole[:, :, position : position + 1])


@pytest.mark.parametrize(
    ("batch", "heads", "fits"),
    [(3, None, False), (None, 5, False), (3, 5, False), (2, 4, True), (1, 1, True), (2, 1, True),
     (4, None, False), (None, 2, False)],
)  # fmt: skip
def test_a_block_mask_for_other_batches_or_heads_is_refused(
    batch: int | None, heads: int | None, fits: bool
) -> None:
    """pytorch/pytorch#172225: memory is read out of bounds, or the process ends."""
    mask = flexfa4.create_block_mask(causal, batch=batch, heads=heads, q_len=8, kv_len=8)
    q, k = torch.randn(2, 4, 8, 16), torch.randn(2, 2, 8, 16)
    if fits:
        out = flexfa4.attention(q, k, k, block_mask=mask)
        assert torch.equal(out, flexfa4.attention(q, k, k, block_mask=causal))
        return
    with pytest.raises(BlockMaskMismatchError):
        flexfa4.attention(q, k, k, block_mask=mask)


def test_a_mask_made_for_one_batch_is_that_batchs_mask_everywhere() -> None:
    """pytorch/pytorch#172225, the kind: kinds of blocks and lanes are read at the same index."""
    s = Sizes(3, 2, 2, 300, 300, 8, 8)

    def of_first(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx <= q_idx - 90 * b - 50 * h

    trial = Trial(Case("reported", lambda s, d: Mods(None, of_first, eager_mask=causal)), s)
    assert not excess(trial, with_block_mask(1, 1))


def test_a_mask_of_one_batchs_captures_never_reads_the_row_of_another() -> None:
    """pytorch/pytorch#172225: a captured mask of batch 1 with queries of batch 3."""
    allowed = torch.rand(1, 40, 40, generator=torch.Generator().manual_seed(0)) < 0.5
    first = allowed[0]
    trial = Trial(
        Case("reported", lambda s, d: Mods(
            None,
            lambda b, h, q_idx, kv_idx: allowed[b, q_idx, kv_idx],
            eager_mask=lambda b, h, q_idx, kv_idx: first[q_idx, kv_idx],
        )),
        Sizes(3, 2, 1, 40, 40, 8, 8),
    )  # fmt: skip
    assert not excess(trial, with_block_mask(1, None))


@pytest.mark.parametrize("name", ["b", "h"])
def test_a_mask_that_reads_batch_or_head_needs_their_number(name: str) -> None:
    """pytorch/pytorch#163314, the kind: never the structure of row 0 for all."""
    with pytest.raises(MaskReadsBatchError, match=f"`{name}`"):
        flexfa4.create_block_mask(f"kv <= q + {name}", q_len=8, kv_len=8)


def test_a_block_mask_longer_than_the_data_is_refused() -> None:
    """pytorch/pytorch#139462: zeros for every batch but the first."""
    mask = flexfa4.create_block_mask(causal, batch=2, q_len=128, kv_len=256)
    q = torch.randn(2, 1, 2, 16)
    with pytest.raises(BlockMaskMismatchError, match="q_len=128"):
        flexfa4.attention(q, q, q, block_mask=mask)


def test_a_mask_that_differs_by_head_serves_few_queries_and_a_head_that_sees_nothing() -> None:
    """pytorch/pytorch#148527, pytorch/pytorch#148857: head_type[h] & causal, 8 queries."""
    head_type = torch.arange(32) % 5 > 0  # head 0 sees nothing

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return head_type[h] & (q_idx >= kv_idx)

    for kv_heads in (32, 8):
        s = Sizes(1, 32, kv_heads, 8, 8, 128, 128)
        assert not excess(Trial(Case.of(mask=mask), s, torch.bfloat16), with_block_mask(None, 32))
        assert not excess(Trial(Case.of(mask=mask), s))


@pytest.mark.parametrize("group", [1, 2, 3, 5, 6, 7, 16])
@pytest.mark.parametrize("q_len", [1, 3, 100])
def test_any_number_of_query_heads_for_each_key_head_works_at_any_query_length(
    q_len: int, group: int
) -> None:
    """pytorch/pytorch#151359 (12 and 2 heads, 1 query), pytorch/pytorch#185349 (100 queries),
    meta-pytorch/attention-gym#81 (28 and 4 heads)."""
    s = Sizes(1, 2 * group, 2, q_len, 150, 16, 16)
    assert not excess(Trial(Case.of(mask=causal), s))
    assert not excess(Trial(Case.of(lambda score, b, h, q, kv: score * (h + 1)), s))


def test_a_long_decode_with_six_query_heads_for_each_key_head_agrees() -> None:
    """pytorch/pytorch#151359."""
    assert not excess(Trial(Case.of(), Sizes(1, 12, 2, 1, 4096, 16, 16), torch.float16))


@pytest.mark.parametrize("group", [2, 3, 4])
def test_causal_limits_are_those_of_the_query_not_of_the_packed_row(group: int) -> None:
    """Dao-AILab/flash-attention#2528, pytorch/pytorch#171271, Dao-AILab/flash-attention#2098."""
    s = Sizes(2, 2 * group, 2, 300, 300, 16, 16)
    for block_size in (None, 64):
        trial = Trial(Case.of(mask=causal), s)
        run = attend if block_size is None else with_block_mask(2, 2 * group)
        assert not excess(trial, run)


@pytest.mark.parametrize(("heads", "kv_heads"), [(33, 2), (3, 2), (1, 2), (2, 0), (0, 1)])
def test_query_heads_that_do_not_divide_among_key_heads_are_refused(
    heads: int, kv_heads: int
) -> None:
    """fla-org/flash-linear-attention#1029: accepted, and heads left unwritten."""
    q, k = torch.randn(1, heads, 8, 16), torch.randn(1, kv_heads, 8, 16)
    with pytest.raises(ShapeMismatchError, match="heads"):
        flexfa4.attention(q, k, k)


def test_h_is_the_query_head_under_grouped_heads() -> None:
    """meta-pytorch/attention-gym#81, the kind: a bias for each query head."""
    bias = torch.randn(6, generator=torch.Generator().manual_seed(0))

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + bias[h] * kv_idx

    assert not excess(Trial(Case.of(score_mod, causal), Sizes(2, 6, 2, 40, 40, 8, 8)))
