"""`create_block_mask` and `create_mask` of `flexfa4.flex`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex

import flexfa4
from flexfa4.errors import ArgumentError, ArityError, MaskReadsBatchError
from flexfa4.flex import create_block_mask, create_mask

SIZES = st.tuples(st.integers(1, 70), st.integers(1, 70))
BLOCKS = st.one_of(st.integers(1, 80), st.tuples(st.integers(1, 80), st.integers(1, 80)))


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((-1, None, 8, 8), "B is -1(.|\n)*B=query"),
        ((None, 0, 8, 8), "H is 0(.|\n)*H=query"),
        ((None, None, -1, 8), "Q_LEN is -1(.|\n)*Q_LEN=query"),
        ((None, None, 8, 8.5), "KV_LEN is 8.5(.|\n)*KV_LEN=key"),
    ],
)
def test_a_wrong_size_is_refused_by_the_name_that_it_has_here(counts: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^{message}"):
        create_block_mask("q >= kv", *counts)


def test_integers_of_any_library_are_sizes() -> None:
    length, size = torch.tensor(40), torch.tensor(16)  # with __index__, as numpy's have it
    made = create_block_mask("q >= kv", None, None, length, length, BLOCK_SIZE=size)  # type: ignore[arg-type]
    assert (made.seq_lengths, made.BLOCK_SIZE) == ((40, 40), (16, 16))


@given(SIZES, BLOCKS, st.integers(-9, 40), st.booleans())
def test_lists_are_torchs(lengths: Any, size: Any, reach: int, apart: bool) -> None:
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx - kv_idx <= reach + 10 * h) & (q_idx + 4 * b >= kv_idx)

    ours, theirs = (
        module.create_block_mask(
            mask, 2, 2, *lengths, "cpu", BLOCK_SIZE=size, separate_full_blocks=apart
        )
        for module in (flexfa4.flex, torch_flex)
    )
    for own, right in zip(ours.as_tuple(), theirs.as_tuple(), strict=True):
        if isinstance(right, torch.Tensor):
            assert own.dtype is right.dtype
            assert torch.equal(own, right)
        else:
            assert own == right
    assert torch.equal(ours.to_dense(), theirs.to_dense())


def test_lists_lie_where_the_captured_tensors_do_or_where_asked() -> None:
    ids = torch.arange(8)
    for device in (None, "cpu"):
        made = create_block_mask(lambda b, h, q, kv: ids[q] == ids[kv], 1, 1, 8, 8, device)
        assert made.kv_indices.device == ids.device


def test_arguments_without_effect_are_taken() -> None:
    made = create_block_mask(
        "q >= kv", None, None, 8, 8, _compile=True, compute_dq_write_order=True, dq_kv_order=False
    )
    assert made.dq_write_order is None


@pytest.mark.parametrize(("letter", "argument"), [("b", "B"), ("h", "H")])
@pytest.mark.parametrize("create", [create_block_mask, create_mask])
def test_a_mask_that_reads_batch_or_head_needs_their_number(
    create: Any, letter: str, argument: str
) -> None:
    with pytest.raises(MaskReadsBatchError, match=f"`{letter}`, but {argument} was not given"):
        create(f"q >= kv + {letter}", None, None, 8, 8)


@pytest.mark.parametrize("lengths", [(None, 8), (8, None), (-1, 8), (8, 2.5)])
def test_lengths_are_integers(lengths: Any) -> None:
    with pytest.raises(ArgumentError):
        create_block_mask("q >= kv", None, None, *lengths)


def test_a_score_mod_has_the_mask_of_what_it_keeps() -> None:
    def window(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.where((q_idx - kv_idx).abs() <= h, score.tanh(), -math.inf)

    ours, theirs = (
        module.create_mask(window, 1, 2, 6, 7, "cpu") for module in (flexfa4.flex, torch_flex)
    )
    assert ours.dtype is torch.bool
    assert torch.equal(ours, theirs)
    text = "where(q < kv, -inf, score + 1)"
    assert torch.equal(create_mask(text, None, None, 5, 5)[0, 0], torch.ones(5, 5).tril().bool())


def test_a_score_mod_has_no_block_mask() -> None:
    with pytest.raises(ArityError):
        create_block_mask(lambda score, b, h, q_idx, kv_idx: score, 1, 1, 8, 8)
