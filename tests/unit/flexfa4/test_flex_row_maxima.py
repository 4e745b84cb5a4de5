"""The largest score of each row, against the dense scores."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

from flexfa4.errors import OutOfRangeError
from flexfa4.flex import AuxRequest, create_block_mask, flex_attention, row_maxima

BIAS = torch.randn(4, 90, generator=torch.Generator().manual_seed(3))


def bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return 2 * score.sin() + BIAS[h, kv_idx]


def banded(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return ((q_idx - kv_idx).abs() <= 5 + h) & (q_idx != 7) & (kv_idx < 80 - b)


def dense(
    q: torch.Tensor, k: torch.Tensor, score_mod: Any, mask: Any, scale: float
) -> torch.Tensor:
    heads, kv_heads = q.shape[1], k.shape[1]
    score = (q @ k.repeat_interleave(heads // kv_heads, 1).transpose(-1, -2)) * scale
    index = [torch.arange(n).view(-1, *[1] * (3 - i)) for i, n in enumerate(score.shape)]
    if score_mod is not None:
        score = score_mod(score, *index)
    if mask is not None:
        score = torch.where(mask(*index), score, -math.inf)
    return score.amax(-1)


@pytest.mark.parametrize("score_mod", [None, bias])
@pytest.mark.parametrize("mask", [None, banded])
@pytest.mark.parametrize("at_once", [1 << 20, 1000])
def test_they_are_those_of_the_dense_scores(
    score_mod: Any, mask: Any, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_maxima, "_SCORES_AT_ONCE", at_once)
    q, k = torch.randn(2, 4, 40, 8), torch.randn(1, 2, 90, 8)
    block_mask = None if mask is None else create_block_mask(mask, 2, 4, 40, 90, BLOCK_SIZE=16)
    _, aux = flex_attention(
        q.requires_grad_(), k, k, score_mod, block_mask, 0.7, True,
        return_aux=AuxRequest(max_scores=True),
    )  # fmt: skip
    assert aux.lse is None
    assert aux.max_scores is not None and not aux.max_scores.requires_grad
    right = dense(q.detach(), k, score_mod, mask, 0.7)
    torch.testing.assert_close(aux.max_scores, right)
    assert (right.isneginf().any()) == (mask is not None)


@pytest.mark.parametrize("kind", ["function", "text", "torch's", "part"])
def test_masks_of_every_kind_count(kind: str) -> None:
    q = torch.randn(1, 1, 40, 8)
    block_mask = create_block_mask("q >= kv", None, None, 40, 40, BLOCK_SIZE=16)
    masks: dict[str, Any] = {
        "function": lambda b, h, q_idx, kv_idx: q_idx >= kv_idx,
        "text": "q >= kv",
        "torch's": torch_flex.create_block_mask(
            lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, 1, 1, 40, 40, "cpu"
        ),
        "part": block_mask[:],
    }
    request = AuxRequest(max_scores=True)
    _, aux = flex_attention(q, q, q, None, masks[kind], return_aux=request)
    right = dense(q, q, None, lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, 8**-0.5)
    torch.testing.assert_close(aux.max_scores, right)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)],
)
def test_they_have_the_dtype_of_the_scores(dtype: torch.dtype, result: torch.dtype) -> None:
    q = torch.randn(1, 1, 3, 8, dtype=dtype)
    _, aux = flex_attention(q, q, q, return_aux=AuxRequest(lse=True, max_scores=True))
    assert aux.max_scores is not None and aux.max_scores.dtype is result
    assert aux.lse is not None and aux.lse.dtype is result


def test_a_call_without_keys_has_none() -> None:
    q, k = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 0, 8)
    _, aux = flex_attention(q, k, k, return_aux=AuxRequest(max_scores=True))
    assert aux.max_scores is not None and aux.max_scores.isneginf().all()


def test_a_score_that_reads_beyond_a_tensor_is_an_error_where_it_is_visible() -> None:
    q = torch.randn(1, 1, 6, 8)
    table = torch.zeros(4)
    request = AuxRequest(max_scores=True)

    def read(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[kv_idx]

    seen = create_block_mask("kv < 4", None, None, 6, 6)
    flex_attention(q, q, q, read, seen, return_aux=request)
    with pytest.raises(OutOfRangeError):
        flex_attention(q, q, q, read, return_aux=request)
