"""Masked rows, ragged tails and extreme scores: public reports on other systems, right values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.errors import BlockMaskMismatchError
from flexfa4.testing import (
    Case,
    Inputs,
    Mods,
    Sizes,
    Trial,
    agrees,
    attend,
    dense_reference,
    excess,
    make_inputs,
)
from flexfa4.variants import causal

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def square(length: int, heads: int = 1, dim: int = 16) -> Sizes:
    return Sizes(1, heads, heads, length, length, dim, dim)


def all_grads(loss: torch.Tensor, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(loss, inputs.leaves())


# ---- rows that see nothing -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_that_sees_nothing_has_zero_output_lse_minus_infinity_and_zero_gradients(
    dtype: torch.dtype,
) -> None:
    """pytorch/pytorch#103963, pytorch/pytorch#131863."""
    inputs = make_inputs(square(8), dtype=dtype)
    corner = Mods(None, lambda b, h, q_idx, kv_idx: (q_idx < 4) & (kv_idx < 4))
    out, lse = attend(inputs, corner)
    assert (out[:, :, 4:] == 0).all() and (lse[:, :, 4:] == -math.inf).all()
    assert lse[:, :, :4].isfinite().all()
    q, k, v = all_grads(out.float().square().sum(), inputs)
    assert (q[:, :, 4:] == 0).all() and (k[:, :, 4:] == 0).all() and (v[:, :, 4:] == 0).all()
    assert not excess(Trial(Case.of(mask=corner.mask), square(8), dtype))


def test_bottom_right_causal_rows_before_the_first_key_have_lse_minus_infinity() -> None:
    """flashinfer-ai/flashinfer#4452: a finite sentinel spoils the merging of partial results."""
    s = Sizes(1, 2, 2, 40, 12, 8, 8)
    _, lse = attend(
        make_inputs(s), Mods(None, lambda b, h, q_idx, kv_idx: kv_idx <= q_idx - (40 - 12))
    )
    assert (lse[:, :, :28] == -math.inf).all() and lse[:, :, 28:].isfinite().all()


def test_partial_results_over_halves_of_the_keys_merge_through_lse_with_their_gradients() -> None:
    """flashinfer-ai/flashinfer#4452: a half in which a row sees nothing weighs nothing."""
    inputs = make_inputs(square(20))
    halves = [
        attend(
            Inputs(inputs.q, inputs.k[:, :, part], inputs.v[:, :, part]),
            Mods(None, lambda b, h, q_idx, kv_idx, at=part.start: q_idx >= kv_idx + at),
        )
        for part in (slice(0, 10), slice(10, 20))
    ]
    (out0, lse0), (out1, lse1) = halves
    assert (lse1[:, :, :10] == -math.inf).all()
    lse = torch.logaddexp(lse0, lse1)
    merged = out0 * (lse0 - lse).exp()[..., None] + out1 * (lse1 - lse).exp()[..., None]
    whole, whole_lse = attend(inputs, Mods(None, causal))
    torch.testing.assert_close(merged, whole)
    torch.testing.assert_close(lse, whole_lse)
    weights = torch.randn_like(whole)
    for found, right in zip(
        all_grads((merged * weights).sum(), inputs),
        all_grads((whole * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("incoming", [math.nan, math.inf, -math.inf])
def test_whatever_gradient_reaches_the_lse_of_an_empty_row_is_ignored(incoming: float) -> None:
    """NVIDIA/cudnn-frontend#676: an empty row must not spoil the gradients of the others."""
    inputs = make_inputs(square(20))
    mods = Mods(None, lambda b, h, q_idx, kv_idx: (q_idx < 10) & (q_idx >= kv_idx))
    out, lse = attend(inputs, mods)
    grad_lse = torch.where(lse == -math.inf, incoming, torch.ones_like(lse))
    found = torch.autograd.grad((out, lse), inputs.leaves(), (torch.ones_like(out), grad_lse))
    out, lse = attend(inputs, mods)
    grad_lse = torch.where(lse == -math.inf, 0.0, torch.ones_like(lse))
    right = torch.autograd.grad((out, lse), inputs.leaves(), (torch.ones_like(out), grad_lse))
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))


def test_an_empty_row_with_a_sink_has_lse_sink_and_passes_its_gradient_to_the_sink() -> None:
    """NVIDIA/cudnn-frontend#676: wrong sink gradients beside empty rows."""
    inputs = make_inputs(square(6, heads=2), sink=True)
    assert inputs.sink is not None
    out, lse = attend(inputs, Mods(None, lambda b, h, q_idx, kv_idx: (kv_idx < 0) & (q_idx < 0)))
    assert (out == 0).all()
    torch.testing.assert_close(lse, inputs.sink[None, :, None].expand_as(lse))
    assert all_grads(lse.sum(), inputs)[3].tolist() == [6.0, 6.0]


def test_a_row_whose_index_list_is_empty_and_one_that_holds_only_padding_get_zero_gradients() -> (
    None
):
    """NVIDIA/cudnn-frontend#676: sparse backward with empty rows and rows of -1."""
    chosen = torch.tensor([[3, 1], [-1, -1], [2, -1], [-1, 0]])  # keys of each query, -1: none

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (chosen[q_idx, 0] == kv_idx) | (chosen[q_idx, 1] == kv_idx)

    inputs = make_inputs(square(4))
    out, _ = attend(inputs, Mods(None, mask))
    q, _, v = all_grads(out.sum(), inputs)
    assert (q[:, :, 1] == 0).all() and (out[:, :, 1] == 0).all()
    assert v.sum(-1).allclose(torch.tensor(16.0) * v[..., 0])
    assert not excess(Trial(Case.of(mask=mask), square(4)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_term_of_a_row_that_sees_nothing_is_never_looked_at(value: float) -> None:
    """facebookresearch/xformers#722: biases that are not finite where nothing is attended."""
    term = torch.zeros(20)
    term[10:] = value
    inputs = make_inputs(square(20))
    mods = Mods(
        lambda score, b, h, q_idx, kv_idx: score + term[q_idx],
        lambda b, h, q_idx, kv_idx: (q_idx < 10) & (q_idx >= kv_idx),
    )
    out, lse = attend(inputs, mods)
    assert (out[:, :, 10:] == 0).all() and (lse[:, :, 10:] == -math.inf).all()
    assert all(g.isfinite().all() for g in all_grads(out.square().sum(), inputs))


# ---- extreme scores ------------------------------------------------------------------------------


@dataclass(frozen=True)
class LevelTrial(Trial):
    """A trial whose scaled scores all lie around `level`, set through q and k."""

    level: float = 0.0

    def build(self, dtype: torch.dtype) -> tuple[Inputs, Mods]:
        inputs, mods = super().build(dtype)
        q, k = (0.05 * x.detach() for x in (inputs.q, inputs.k))
        q[..., 0] = 1.0
        k[..., 0] = self.level * math.sqrt(self.sizes.dim)
        q, k = (t.to(self.dtype).to(dtype).requires_grad_() for t in (q, k))
        return Inputs(q, k, inputs.v, inputs.sink), mods


@pytest.mark.parametrize("level", [-120.0, -95.0, 120.0])
@pytest.mark.parametrize(
    "mask", [None, lambda b, h, q, kv: kv >= 0, causal], ids=["", "all", "tril"]
)
@pytest.mark.parametrize("length", [64, 192, 704])
def test_gradients_are_finite_and_right_where_lse_is_far_below_or_above_what_exp_can_hold(
    length: int, mask: Callable[..., Any] | None, level: float
) -> None:
    """pytorch/pytorch#196678: a padded half tile scored 0 beside rows with lse < -88.7."""
    trial = LevelTrial(Case.of(mask=mask), square(length, dim=64), level=level)
    assert not excess(trial)
    low = LevelTrial(Case.of(mask=mask), square(length, dim=64), torch.bfloat16, level=level)
    inputs, mods = low.build(torch.bfloat16)
    out, lse = attend(inputs, mods)
    assert all(g.isfinite().all() for g in all_grads(out.float().sum() + lse.sum(), inputs))


def test_one_query_with_a_very_negative_lse_spoils_no_gradient_of_keys_and_values() -> None:
    """NVIDIA/cudnn-frontend#1072: NaN in all of dK and dV from the padding of the query tile."""
    s = Sizes(1, 2, 2, 1, 128, 64, 64)
    for dtype in (torch.bfloat16, torch.float32):
        assert not excess(LevelTrial(Case.of(), s, dtype, level=-300.0))


def test_large_logits_keep_their_loss_and_gradients() -> None:
    """NVIDIA/cudnn-frontend#676: loss of accuracy at large logits."""
    for level in (-1e4, 1e4):
        assert not excess(LevelTrial(Case.of(mask=causal), square(130), level=level, sink=True))


@pytest.mark.parametrize("length", [257, 1025])
@pytest.mark.parametrize("slope", [1.0, -1.0, 1e4, -1e4])
def test_huge_scores_on_masked_lanes_are_removed_before_the_exponential(
    length: int, slope: float
) -> None:
    """pytorch/pytorch#153799: causal with score + (q - k), length no multiple of 128."""

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + slope * (q_idx - kv_idx)

    assert not excess(Trial(Case.of(score_mod, causal), square(length)))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3e38])
def test_what_a_score_mod_gives_on_masked_lanes_does_not_matter(value: float) -> None:
    """pytorch/pytorch#153799, the kind: nothing of a masked lane reaches results or gradients."""
    bias = torch.zeros(150, 150)
    bias[torch.ones(150, 150, dtype=torch.bool).triu(1)] = value
    bias.requires_grad_()
    inputs = make_inputs(square(150))
    plain, plain_lse = attend(inputs, Mods(None, causal))
    right = all_grads(plain.square().sum(), inputs)

    def spoiled(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + bias[q_idx, kv_idx]

    def spoiled_tanh(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.where(q_idx >= kv_idx, score, torch.tanh(score) * bias[q_idx, kv_idx])

    for mod in (spoiled, spoiled_tanh):
        out, lse = attend(inputs, Mods(mod, causal))
        torch.testing.assert_close(out, plain)
        torch.testing.assert_close(lse, plain_lse)
        *grads, grad_bias = torch.autograd.grad(out.square().sum(), (*inputs.leaves(), bias))
        for a, b in zip(grads, right, strict=True):
            torch.testing.assert_close(a, b)
        assert (grad_bias.triu(1) == 0).all() and grad_bias.isfinite().all()


@pytest.mark.parametrize("block", [1, 7, 32])
def test_a_bias_of_minus_infinity_between_documents_gives_finite_results(block: int) -> None:
    """facebookresearch/xformers#722: documents that start anew inside a sequence."""
    documents = torch.arange(100) // block
    bias = torch.zeros(100, 100)
    bias[documents[:, None] != documents] = -math.inf

    def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + bias[q_idx, kv_idx]

    assert not excess(Trial(Case.of(biased, causal), square(100, heads=2)))
    assert not excess(Trial(Case.of(biased), square(100, heads=2)))


# ---- tails ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 2, 5, 15, 31, 32])
def test_sequences_shorter_than_any_tile_have_finite_and_right_gradients(
    length: int, dtype: torch.dtype
) -> None:
    """SHI-Labs/NATTEN#203: NaN gradients with few tokens."""
    assert not excess(Trial(Case.of(mask=causal), square(length, dim=64), dtype))


@pytest.mark.parametrize("q_len", [1, 77, 128])
@pytest.mark.parametrize("kv_len", [127, 129, 137, 300])
def test_key_lengths_that_no_block_divides_agree_with_dense(q_len: int, kv_len: int) -> None:
    """pytorch/pytorch#159247, meta-pytorch/attention-gym#50 (length 137, causal)."""
    s = Sizes(1, 2, 1, q_len, kv_len, 16, 16)
    for mask in (causal, lambda b, h, q_idx, kv_idx: (q_idx + kv_idx) % 3 > 0, None):
        assert not excess(Trial(Case.of(mask=mask), s))


def test_the_last_rows_of_a_ragged_causal_sequence_agree_with_dense() -> None:
    """meta-pytorch/attention-gym#50."""
    inputs, mods = make_inputs(square(137, heads=2)), Mods(None, causal)
    (out, _), (right, _) = attend(inputs, mods), dense_reference(inputs, mods)
    rounded, _ = dense_reference(inputs, mods, dtype=torch.float32)
    assert agrees(*(x[:, :, -9:] for x in (out, right, rounded)), terms=137)


@pytest.mark.parametrize("block_size", [16, 64, (128, 32)])
def test_a_left_context_mask_agrees_with_dense_for_every_block_size(
    block_size: int | tuple[int, int],
) -> None:
    """pytorch/pytorch#141126: chunks that see their own and the two chunks before."""

    def left_context(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        chunk = q_idx // 20
        return (kv_idx // 20 <= chunk) & (kv_idx // 20 >= chunk - 2)

    def blocked(inputs: Inputs, mods: Mods) -> tuple[torch.Tensor, torch.Tensor]:
        block_mask = flexfa4.create_block_mask(
            mods.mask, q_len=330, kv_len=330, block_size=block_size
        )
        return attend(inputs, Mods(mods.score_mod, block_mask))

    s = Sizes(2, 4, 4, 330, 330, 16, 16)
    assert not excess(Trial(Case.of(mask=left_context), s), blocked)


@pytest.mark.parametrize("length", [100, 4095, 4097])
def test_a_block_mask_made_for_another_length_is_refused_and_both_lengths_are_named(
    length: int,
) -> None:
    """pytorch/pytorch#136232: a mask made for 4096 used with shorter sequences."""
    block_mask = flexfa4.create_block_mask(causal, q_len=4096, kv_len=4096)
    q = torch.randn(1, 1, length, 8)
    with pytest.raises(BlockMaskMismatchError, match=rf"(?s)4096.*{length}"):
        flexfa4.attention(q, q, q, block_mask=block_mask)


def test_a_loss_of_out_times_exp_lse_has_right_gradients() -> None:
    """pytorch/pytorch#136232: the loss reads lse."""
    inputs = make_inputs(square(90))
    mods = Mods(None, causal)
    results = (
        attend(inputs, mods),
        dense_reference(inputs, mods),
        dense_reference(inputs, mods, dtype=torch.float32),
    )
    grads = [all_grads((out * lse.exp()[..., None]).sum(), inputs) for out, lse in results]
    for found, right, rounded in zip(*grads, strict=True):
        assert agrees(found, right, rounded, terms=90)
