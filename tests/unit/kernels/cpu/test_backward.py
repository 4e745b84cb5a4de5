"""Backward: only what forward visited, rows summed in fp32, and every shape of broadcasting."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.kernels.cpu import scores
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
from flexfa4.variants import SlidingWindow, causal

ROUNDED = partial(dense_reference, dtype=torch.float32)  # what eager torch gives


def grads_of(run: Any, inputs: Inputs, mods: Mods) -> tuple[torch.Tensor, ...]:
    out, lse = run(inputs, mods)
    loss = (out * torch.linspace(-1, 1, out.shape[-1])).sum() + (0.1 * lse).sum()
    return torch.autograd.grad(loss, inputs.leaves())


def check(inputs: Inputs, mods: Mods) -> None:
    results = (grads_of(run, inputs, mods) for run in (attend, dense_reference, ROUNDED))
    for found, right, rounded in zip(*results, strict=True):
        assert agrees(found, right, rounded, terms=inputs.q[..., 0].numel())  # over all queries


def test_backward_visits_what_forward_visited_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[int] = []
    raw_scores = scores.raw_scores

    def recorded(*args: Any) -> torch.Tensor:
        result = raw_scores(*args)
        visited.append(result.numel())
        return result

    monkeypatch.setattr(scores, "raw_scores", recorded)
    inputs = make_inputs(Sizes(1, 1, 1, 1024, 1024, 8, 8))
    out, _ = attend(inputs, Mods(None, SlidingWindow(64)))
    forward = sum(visited)
    out.sum().backward()
    assert sum(visited) == 2 * forward < 1024 * 1024


@pytest.mark.parametrize("kv_batch", [None, 1])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (7, 1)])
@pytest.mark.parametrize("mask", [None, causal])
def test_keys_shared_by_heads_or_batches_get_the_sum_of_their_gradients(
    heads: tuple[int, int], kv_batch: int | None, mask: Any
) -> None:
    check(make_inputs(Sizes(3, *heads, 150, 140, 8, 6, kv_batch), sink=True), Mods(None, mask))


LENGTHS = torch.tensor([90, 90, 40])
BY_BATCH_AND_HEAD: dict[str, Any] = {
    "each": lambda b, h, q_idx, kv_idx: (q_idx + 30 * b >= kv_idx) & (kv_idx >= 20 * h),
    "two batches alike": lambda b, h, q_idx, kv_idx: kv_idx < LENGTHS[b],
    "groups alike": lambda b, h, q_idx, kv_idx: q_idx + 30 * (h // 6) >= kv_idx,
    "parts of groups alike": lambda b, h, q_idx, kv_idx: q_idx + 30 * (h // 2) >= kv_idx,
}


@pytest.mark.parametrize("mask", BY_BATCH_AND_HEAD)
def test_a_mask_that_differs_by_batch_and_head_gives_right_gradients(mask: str) -> None:
    inputs = make_inputs(Sizes(3, 9, 3, 150, 140, 8, 8), sink=True)
    check(inputs, Mods(None, BY_BATCH_AND_HEAD[mask]))


def test_keys_that_nobody_sees_get_zero_gradients() -> None:
    inputs = make_inputs(Sizes(1, 2, 2, 50, 300, 8, 8))
    _, k, v = grads_of(attend, inputs, Mods(None, causal))
    assert not k[:, :, 50:].any() and not v[:, :, 50:].any()
    assert k[:, :, :49].any(-1).all() and v[:, :, :50].any(-1).all()


def test_a_mod_whose_derivative_is_infinite_on_masked_lanes_gives_finite_gradients() -> None:
    def root(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.sqrt(torch.where(q_idx >= kv_idx, score * score + 1.0, score * 0.0))

    inputs = make_inputs(Sizes(1, 2, 2, 150, 150, 8, 8))
    assert all(g.isfinite().all() for g in grads_of(attend, inputs, Mods(root, causal)))


def test_captures_whose_factors_are_infinite_on_masked_lanes_get_finite_gradients() -> None:
    weight = torch.rand(150, generator=torch.Generator().manual_seed(0)).add_(1).requires_grad_()
    code = torch.randn(150, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        ahead = q_idx - kv_idx + 1  # at least 1 where visible
        root = torch.sqrt(weight[kv_idx] * ahead)
        return score + root + (code[kv_idx] / (1.0 * ahead)).sum(-1)

    inputs = make_inputs(Sizes(1, 2, 2, 150, 150, 8, 8))
    tensors = (*inputs.leaves(), weight, code)
    out, lse = attend(inputs, Mods(mod, causal))
    found = torch.autograd.grad(out.square().sum() + lse.sum(), tensors)

    def finite(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        ahead = (q_idx - kv_idx + 1).clamp(min=1)
        return score + torch.sqrt(weight[kv_idx] * ahead) + code[kv_idx].sum(-1) / ahead

    grads = [found]
    for run in (dense_reference, ROUNDED):
        out, lse = run(inputs, Mods(finite, causal))
        grads.append(torch.autograd.grad(out.square().sum() + lse.sum(), tensors))
    for got, right, rounded in zip(*grads, strict=True):
        assert agrees(got, right, rounded, terms=2 * 150 * 150)  # a capture sums over all scores


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_gradients_follow_the_scale(scale: float) -> None:
    mods = Mods(lambda score, b, h, q, kv: torch.tanh(score) * 2.0 - kv, causal)
    trial = Trial(Case("scaled", lambda s, d: mods), Sizes(1, 2, 2, 40, 40, 8, 8), scale=scale)

    def run(given: Inputs, m: Mods) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = flexfa4.attention(
            given.q, given.k, given.v, score_mod=m.score_mod, block_mask=m.mask, scale=scale,
            return_lse=True,
        )  # fmt: skip
        return out, lse

    assert not excess(trial, run)


def test_the_gradient_of_a_sink_is_minus_its_share_of_each_row() -> None:
    inputs = make_inputs(Sizes(2, 3, 3, 60, 70, 8, 8), sink=True)
    assert inputs.sink is not None
    out, lse = attend(inputs, Mods(None, causal))
    (found,) = torch.autograd.grad(out.sum(), inputs.sink)
    share = (inputs.sink[:, None] - lse).exp()
    torch.testing.assert_close(found, -(share * out.sum(-1)).sum((0, 2)))


def test_gradients_have_the_dtype_and_shape_of_their_tensors() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        inputs = make_inputs(Sizes(kv_batch=1), torch.Generator(), dtype=dtype, sink=True)
        for grad, tensor in zip(grads_of(attend, inputs, Mods()), inputs.leaves(), strict=True):
            assert grad.dtype is tensor.dtype and grad.shape == tensor.shape
