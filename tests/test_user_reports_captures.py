"""Captured tensors and learnable biases: public reports on other systems, right values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.errors import OutOfRangeError, SecondDerivativeError
from flexfa4.testing import (
    Case,
    Draw,
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
from flexfa4.variants import Document, causal

SMALL = Sizes(1, 2, 2, 16, 16, 8, 8)
Mod = Callable[..., Any]


def learned_case(
    shape: Callable[[Sizes], tuple[int, ...]], mod: Callable[[torch.Tensor], Mod], mask: Any = None
) -> Case:
    """Return a case with one learned tensor."""

    def make(s: Sizes, d: Draw) -> Mods:
        tensor = d.learned(*shape(s))
        return Mods(mod(tensor), mask, (tensor,))

    return Case("reported", make)


def gradients(mod: Mod, learned: tuple[torch.Tensor, ...], s: Sizes = SMALL) -> list[torch.Tensor]:
    """Return the gradients of captured tensors, for inputs of ones and a fixed loss."""
    g = torch.Generator().manual_seed(0)
    inputs = make_inputs(s, g)
    out, _ = attend(inputs, Mods(mod))
    loss = (out * torch.randn(out.shape, generator=g)).sum()
    return list(torch.autograd.grad(loss, learned))


# ---- gradients of captured tensors ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_scalar_that_scales_and_shifts_the_score_gets_its_gradient(dtype: torch.dtype) -> None:
    """pytorch/pytorch#145208, meta-pytorch/attention-gym#171, pytorch/pytorch#188869."""
    case = learned_case(lambda s: (), lambda t: lambda score, b, h, q, kv: score * t + t)
    assert not excess(Trial(case, SMALL, dtype))


@pytest.mark.parametrize("mask", [None, causal], ids=["all", "causal"])
def test_a_tensor_read_at_the_query_and_at_the_key_gets_the_sum_of_both_gradients(
    mask: Any,
) -> None:
    """pytorch/pytorch, text of validate_joint_graph (2.13): refused when compiled."""
    case = learned_case(
        lambda s: (max(s.q_len, s.kv_len),),
        lambda t: lambda score, b, h, q, kv: score + t[q] + t[kv] * t[q],
        mask,
    )
    assert not excess(Trial(case, Sizes(2, 4, 2, 150, 140, 8, 8)))


def test_views_of_one_tensor_share_its_gradient() -> None:
    """pytorch/pytorch#145208, the kind: slices, transposes and expanded views of a parameter."""
    table = torch.randn(16, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    row, flipped, wide = table[:, 1], table.t(), table[:, 2:3].expand(16, 16)

    def by_views(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + row[kv] * flipped[3, q] + wide[q, kv]

    def by_index(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + table[kv, 1] * table[q, 3] + table[q, 2]

    (found,), (right,) = gradients(by_views, (table,)), gradients(by_index, (table,))
    torch.testing.assert_close(found, right)
    assert (right[:, 0] == 0).all() and (right[:, 1:] != 0).any(0).all()


def test_a_tensor_captured_twice_under_two_names_gets_one_gradient() -> None:
    """pytorch/pytorch, text of validate_joint_graph (2.13), the kind."""
    first = torch.randn(16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    second = first

    def twice(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + first[kv] * second[kv]

    (found,) = gradients(twice, (first,))
    (right,) = gradients(lambda score, b, h, q, kv: score + first[kv] ** 2, (first,))
    torch.testing.assert_close(found, right)


def test_a_full_bias_made_by_a_layer_passes_its_gradient_to_the_layer() -> None:
    """pytorch/pytorch#157677, meta-pytorch/attention-gym#69: (2, 4, 64, 64) from a Linear."""
    g = torch.Generator().manual_seed(0)
    inputs = make_inputs(Sizes(2, 4, 4, 64, 64, 64, 64), g)
    features = torch.randn(2, 64, 64, 8, generator=g)
    drawn = torch.randn(4, 8, generator=g)
    grads = []
    for run, dtype in (
        (attend, torch.float32),
        (dense_reference, torch.float64),
        (partial(dense_reference, dtype=torch.float32), torch.float32),
    ):
        weight = drawn.to(dtype).requires_grad_()
        bias = (features.to(dtype) @ weight.t()).permute(0, 3, 1, 2)
        out, lse = run(inputs, Mods(lambda score, b, h, q, kv, t=bias: score + t[b, h, q, kv]))
        grads.append(torch.autograd.grad(out.square().sum() + lse.sum(), weight)[0])
    found, right, rounded = grads
    assert agrees(found, right, rounded, terms=2 * 64 * 64)


def test_a_bf16_capture_gets_a_bf16_gradient_that_was_summed_in_fp32() -> None:
    """pytorch/pytorch#174018, pytorch/pytorch#174251."""
    s = Sizes(4, 4, 4, 200, 200, 8, 8)
    bias = torch.zeros(4, dtype=torch.bfloat16, requires_grad=True)
    same = torch.zeros(4, requires_grad=True)
    (found,) = gradients(lambda score, b, h, q, kv: score + bias[h] * (kv % 7), (bias,), s)
    (right,) = gradients(lambda score, b, h, q, kv: score + same[h] * (kv % 7), (same,), s)
    assert found.dtype is torch.bfloat16
    assert torch.equal(found, right.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_full_bias_for_inputs_of_half_precision_gets_its_gradient(dtype: torch.dtype) -> None:
    """facebookresearch/xformers#783: refused for fp16, with four reasons of which one applied."""
    case = learned_case(
        lambda s: (s.batch, s.heads, s.q_len, s.kv_len),
        lambda t: lambda score, b, h, q, kv: score + t[b, h, q, kv],
    )
    assert not excess(Trial(case, Sizes(2, 4, 4, 33, 29, 8, 8), dtype))


def test_a_gradient_that_is_refused_is_refused_for_one_reason() -> None:
    """facebookresearch/xformers#783, the kind: what cannot be had is named, and nothing else."""
    bias = torch.randn(16, 16, requires_grad=True)
    inputs = make_inputs(SMALL)
    out, _ = attend(inputs, Mods(lambda score, b, h, q, kv: score + bias[q, kv]))
    (first,) = torch.autograd.grad(out.square().sum(), bias, create_graph=True)
    with pytest.raises(SecondDerivativeError) as caught:
        torch.autograd.grad(first.sum(), bias)
    reason, allowed, instead = str(caught.value).split("\n")
    assert reason == SecondDerivativeError.found
    assert "captured tensors" in allowed and ".detach()" in instead


def test_captures_that_a_mod_does_not_read_get_no_gradient() -> None:
    """pytorch/pytorch#145208, the kind."""
    used = torch.randn(16, requires_grad=True)
    unused = torch.randn(16, requires_grad=True)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        _ = unused[kv] * 2
        return score + used[kv]

    inputs = make_inputs(SMALL)
    out, _ = attend(inputs, Mods(mod))
    found = torch.autograd.grad(out.square().sum(), (used, unused), allow_unused=True)
    assert found[0].any() and found[1] is None


@pytest.mark.parametrize("mask", [None, causal], ids=["all", "causal"])
def test_a_mod_that_ignores_the_score_gives_zero_gradients_to_query_and_key(mask: Any) -> None:
    """pytorch/pytorch#157677, the kind: attention by a learned table alone."""
    case = learned_case(
        lambda s: (s.heads, s.q_len, s.kv_len),
        lambda t: lambda score, b, h, q, kv: t[h, q, kv],
        mask,
    )
    s = Sizes(2, 4, 2, 70, 90, 8, 8)
    assert not excess(Trial(case, s))
    inputs, mods = Trial(case, s).build(torch.float32)
    grads = torch.autograd.grad(attend(inputs, mods)[0].square().sum(), inputs.leaves())
    assert not grads[0].any() and not grads[1].any() and grads[2].any()


def test_infinite_queries_do_not_disturb_a_mod_that_ignores_the_score() -> None:
    """pytorch/pytorch#157677, the kind: 0 * (q . k) is not 0 for infinite q."""
    table = torch.randn(16)
    inputs = make_inputs(SMALL)
    wild = Inputs(torch.full_like(inputs.q, torch.inf), inputs.k, inputs.v)
    mods = Mods(lambda score, b, h, q, kv: table[kv])
    assert torch.equal(attend(wild, mods)[0], attend(inputs, mods)[0])


@pytest.mark.parametrize("kv_len", [43, 77, 700])
def test_a_learned_bias_of_any_length_works(kv_len: int) -> None:
    """facebookresearch/xformers#813, facebookresearch/xformers#808,
    huggingface/diffusers#9637: the last dimension had to be a multiple of 8."""
    case = learned_case(
        lambda s: (s.batch, s.heads, s.q_len, s.kv_len),
        lambda t: lambda score, b, h, q, kv: score + t[b, h, q, kv],
    )
    assert not excess(Trial(case, Sizes(1, 2, 2, 20, kv_len, 8, 8), torch.float16))


def test_a_bias_by_bucketed_distance_gets_its_gradient() -> None:
    """meta-pytorch/attention-gym#20, huggingface/transformers#47014: T5's relative bias."""

    def bucketed(table: torch.Tensor) -> Mod:
        def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            distance = (q - kv).abs()
            far = 8 + (torch.log(torch.clamp(distance, min=8) / 8.0) * 3).to(torch.int32)
            bucket = torch.where(distance < 8, distance, torch.clamp(far, max=15))
            return score + table[bucket + torch.where(kv > q, 16, 0), h]

        return mod

    case = learned_case(lambda s: (32, s.heads), bucketed)
    assert not excess(Trial(case, Sizes(2, 4, 2, 130, 90, 8, 8)))


@pytest.mark.parametrize("heads", [1, 2, 6, 16])
def test_the_size_of_a_captured_tensor_may_change_with_the_heads(heads: int) -> None:
    """pytorch/pytorch#165854: head_scale[h] with a varying number of heads."""
    case = learned_case(lambda s: (s.heads,), lambda t: lambda score, b, h, q, kv: score * t[h])
    assert not excess(Trial(case, Sizes(1, heads, heads, 100, 100, 64, 64), torch.float16))


def test_a_capture_whose_size_changes_from_call_to_call_is_traced_once() -> None:
    """pytorch/pytorch#165854, pytorch/pytorch#183833: lengths that depend on the data."""

    def run(length: int, heads: int) -> None:
        bias = torch.randn(heads, length, requires_grad=True)
        inputs = make_inputs(Sizes(1, heads, heads, 4, length, 8, 8), torch.Generator())
        out, _ = attend(inputs, Mods(biased_by(bias)))
        torch.autograd.grad(out.sum(), bias)

    run(7, 2)
    before = flexfa4.stats()
    for length, heads in ((8, 2), (31, 4), (257, 1)):
        run(length, heads)
    assert (flexfa4.stats() - before).traces == 0


def biased_by(bias: torch.Tensor) -> Mod:
    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + bias[h, kv_idx]

    return mod


def test_backward_uses_the_captures_of_its_own_forward_call() -> None:
    """pytorch/pytorch#183833, the kind: the module changes between forward and backward."""
    inputs = make_inputs(SMALL)
    factor = 1.0
    slope = torch.tensor([0.5, 2.0], requires_grad=True)

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * factor + slope[h] * kv_idx

    out, _ = attend(inputs, Mods(mod))
    right = torch.autograd.grad(out.sum() + out.square().sum(), (*inputs.leaves(), slope))
    out, _ = attend(inputs, Mods(mod))
    factor = -3.0
    slope = torch.zeros(2)
    loss = out.sum() + out.square().sum()
    found = torch.autograd.grad(loss, inputs.leaves())
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=False))
    assert not torch.equal(attend(inputs, Mods(mod))[0], out)  # and the next call reads them anew


# ---- where captured tensors are read -------------------------------------------------------------


def test_a_mask_never_reads_past_the_lengths() -> None:
    """pytorch/pytorch#137801: length 2046, a captured mask of that length."""
    keep = torch.rand(2046, generator=torch.Generator().manual_seed(0)) < 0.7
    block_mask = flexfa4.create_block_mask(
        lambda b, h, q_idx, kv_idx: keep[q_idx] & keep[kv_idx], q_len=2046, kv_len=2046
    )
    assert torch.equal(block_mask.to_dense()[0, 0], keep[:, None] & keep)


def test_documents_shorter_than_the_sequence_name_the_tensor_and_its_size() -> None:
    """meta-pytorch/attention-gym, generate_doc_mask_mod: a bare IndexError."""
    documents = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    with pytest.raises(OutOfRangeError, match=r"size 7 .* index 7"):
        flexfa4.create_block_mask(Document(documents), q_len=10, kv_len=10)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(
    "mod",
    [
        lambda t, o: lambda score, b, h, q, kv: score + t[kv],
        lambda t, o: lambda score, b, h, q, kv: score + t[q],
        lambda t, o: lambda score, b, h, q, kv: score * t[o[kv]] + t[o[q]],
        lambda t, o: lambda score, b, h, q, kv: score * (o[q] % 3) + t[o[q]],
        lambda t, o: lambda score, b, h, q, kv: torch.tanh(score * (o[q] % 3)) * (o[q] % 2) + t[kv],
        lambda t, o: lambda score, b, h, q, kv: score + (t[q] - t[kv]).abs(),
    ],
    ids=["key", "query", "nested", "integer factor", "inner factor", "both"],
)
def test_a_captured_tensor_is_read_only_where_the_mask_lets_scores_through(
    mod: Callable[..., Mod], learned: bool
) -> None:
    """meta-pytorch/attention-gym, generate_doc_mask_mod, the kind: tensors that end early."""
    values = torch.randn(30, generator=torch.Generator().manual_seed(0))
    order = torch.arange(30).flip(0)

    def inside(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx < 30) & (kv_idx < 30)

    inputs = make_inputs(Sizes(1, 2, 2, 50, 45, 8, 8), torch.Generator().manual_seed(1))
    leaves = list(inputs.leaves())
    results = []
    for pad in (0, 20):  # what is masked reads past the end, or reads padding
        tensor = torch.nn.functional.pad(values, (0, pad)).requires_grad_(learned)
        index = torch.nn.functional.pad(order, (0, pad))
        out, lse = attend(inputs, Mods(mod(tensor, index), inside))
        loss = out.square().sum() + lse[:, :, :30].sum()
        grads = torch.autograd.grad(loss, leaves + [tensor] * learned)
        results.append([out, *grads[:3], *(g[:30] for g in grads[3:])])
    for short, long in zip(*results, strict=True):
        torch.testing.assert_close(short, long)


@pytest.mark.parametrize("index", [45, -46], ids=["above", "below"])
def test_reading_outside_a_captured_tensor_on_a_visible_score_is_an_error(index: int) -> None:
    """meta-pytorch/attention-gym, generate_doc_mask_mod, the kind."""
    table = torch.randn(45)
    inputs = make_inputs(Sizes(1, 2, 2, 50, 46, 8, 8), torch.Generator())

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + (table[kv_idx] if index > 0 else table[-1 - kv_idx])

    with pytest.raises(OutOfRangeError, match=f"`table` has size 45 .* index {index}"):
        attend(inputs, Mods(mod, causal))
    attend(inputs, Mods(mod, lambda b, h, q, kv: (kv <= q) & (kv < 45)))


def test_negative_indices_wrap_as_torchs_do_and_their_gradients_follow() -> None:
    """meta-pytorch/attention-gym#20, the kind: table[q - kv] with wrapped distances."""
    case = learned_case(
        lambda s: (s.q_len + s.kv_len,), lambda t: lambda score, b, h, q, kv: score + t[q - kv]
    )
    assert not excess(Trial(case, Sizes(1, 2, 2, 70, 50, 8, 8)))


def test_a_mask_by_captured_positions_equals_the_permuted_causal_result() -> None:
    """pytorch/pytorch#175545: keys in any order of slots."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 200, 8, generator=g) for _ in range(3))
    position = torch.randperm(200, generator=g)
    right = flexfa4.attention(q, k, v, block_mask=causal)
    found = flexfa4.attention(
        q,
        k[:, :, position],
        v[:, :, position],
        block_mask=lambda b, h, q_idx, kv_idx: q_idx >= position[kv_idx],
    )
    torch.testing.assert_close(found, right)
