"""`flex_attention`: what it takes and returns beyond what the ported programs show."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

import flexfa4
from flexfa4 import flex
from flexfa4.errors import ArgumentError, BlockMaskMismatchError, ShapeMismatchError
from flexfa4.flex import AuxRequest, BlockMask, create_block_mask, flex_attention
from flexfa4.flex.torch_masks import converted


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def qkv(*shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(*shape, generator=g) for _ in range(3))
    return q, k, v


KINDS: dict[str, Any] = {
    "ours": lambda: create_block_mask(causal, None, None, 40, 40, BLOCK_SIZE=16),
    "torch's": lambda: torch_flex.create_block_mask(causal, 1, 1, 40, 40, "cpu", BLOCK_SIZE=16),
    "FlexFA4's": lambda: flexfa4.create_block_mask(causal, q_len=40, kv_len=40),
    "function": lambda: causal,
    "text": lambda: "q >= kv",
}


@pytest.mark.parametrize("kind", KINDS)
def test_masks_of_every_kind_are_taken(kind: str) -> None:
    q, k, v = qkv(2, 2, 40, 8)
    right = flexfa4.attention(q, k, v, block_mask=causal)
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=KINDS[kind]()), right)


@pytest.mark.parametrize("kind", ["ours", "torch's"])
def test_a_block_mask_is_prepared_once(kind: str) -> None:
    q, k, v = qkv(1, 2, 40, 8)
    block_mask = KINDS[kind]()
    flex_attention(q, k, v, block_mask=block_mask)
    before = flexfa4.stats().block_lists
    flex_attention(q, k, v, block_mask=block_mask)
    assert flexfa4.stats().block_lists == before


def test_a_part_is_prepared_once() -> None:
    q, k, v = qkv(1, 2, 40, 8)
    part = KINDS["ours"]()[:, :, :2]
    flex_attention(q[:, :, :32], k, v, block_mask=part)
    before = flexfa4.stats().block_lists
    flex_attention(q[:, :, :32], k, v, block_mask=part)
    assert flexfa4.stats().block_lists == before


def test_a_new_attribute_of_a_torch_mask_is_seen() -> None:
    q, k, v = qkv(1, 2, 40, 8)
    # without full blocks, which no mask function masks
    block_mask = torch_flex.create_block_mask(
        causal, 1, 1, 40, 40, "cpu", separate_full_blocks=False
    )
    flex_attention(q, k, v, block_mask=block_mask)
    block_mask.mask_mod = lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (kv_idx > 2)
    right = flexfa4.attention(q, k, v, block_mask=block_mask.mask_mod)
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=block_mask), right)


def test_torchs_mark_of_no_mask_is_no_mask() -> None:
    q, k, v = qkv(1, 2, 40, 8)
    mark = torch_flex._create_empty_block_mask(q, k)
    assert converted(mark) is None
    assert torch.equal(flex_attention(q, k, v, block_mask=mark), flex_attention(q, k, v))


def test_return_lse_works_without_a_warning() -> None:
    q, k, v = qkv(1, 2, 12, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, lse = flex_attention(q, k, v, return_lse=True)
    request: Any = torch_flex.AuxRequest(lse=True)
    again, aux = flex_attention(q, k, v, return_aux=request)
    assert torch.equal(out, again)
    assert torch.equal(lse, aux.lse)
    scores = q @ k.transpose(-1, -2) / 8**0.5
    torch.testing.assert_close(lse, scores.logsumexp(-1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"return_aux": True},
        {"return_aux": {"lse": True}},
        {"return_lse": True, "return_aux": AuxRequest()},
    ],
)
def test_a_wrong_request_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match="return_aux=AuxRequest"):
        flex_attention(*qkv(1, 2, 12, 8), **wrong)


def test_fewer_key_heads_need_the_flag_and_must_divide() -> None:
    q, k, v = qkv(1, 6, 12, 8)
    with pytest.raises(ShapeMismatchError, match="without enable_gqa"):
        flex_attention(q, k[:, :2], v[:, :2])
    with pytest.raises(ShapeMismatchError, match="do not divide"):
        flex_attention(q, k[:, :4], v[:, :4], enable_gqa=True)
    with pytest.raises(ArgumentError, match="query is"):
        flex_attention(None, k, v)  # type: ignore[call-overload]


def test_a_mask_of_other_lengths_is_refused_with_both_ways_out() -> None:
    block_mask = create_block_mask(causal, None, None, 150, 150)
    q, k, v = qkv(1, 2, 150, 8)
    with pytest.raises(BlockMaskMismatchError) as caught:
        flex_attention(q[:, :, :50], k, v, block_mask=block_mask)
    for said in (
        "q_len=150, kv_len=150",
        "length 50 and key 150",
        "added to q_idx",
        "_adjust(50, 150)",
    ):
        assert said in str(caught.value)


@pytest.mark.parametrize(("sizes", "says"), [((3, None), "B=3"), ((None, 4), "H=4")])
def test_a_mask_of_other_batches_or_heads_is_refused(sizes: Any, says: str) -> None:
    block_mask = create_block_mask(causal, sizes[0], sizes[1], 12, 12)
    for one in (block_mask, block_mask[:]):
        with pytest.raises(BlockMaskMismatchError, match=f"made for {says}"):
            flex_attention(*qkv(2, 2, 12, 8), block_mask=one)


def test_a_mask_made_for_one_batch_that_reads_it_serves_no_others() -> None:
    block_mask = create_block_mask("q >= kv + b", 1, None, 12, 12)
    flex_attention(*qkv(1, 2, 12, 8), block_mask=block_mask)
    with pytest.raises(BlockMaskMismatchError, match="made for B=1"):
        flex_attention(*qkv(2, 2, 12, 8), block_mask=block_mask)


def test_attention_says_what_to_write_for_a_block_mask_of_flexattention() -> None:
    q, k, v = qkv(1, 2, 40, 8)
    for kind in ("ours", "torch's"):
        with pytest.raises(ArgumentError, match=r"flexfa4\.flex\.flex_attention"):
            flexfa4.attention(q, k, v, block_mask=KINDS[kind]())


def test_the_module_is_reached_from_the_package() -> None:
    assert flexfa4.flex is flex
    assert isinstance(KINDS["ours"](), BlockMask)
