"""Memory, block sizes, empty inputs and caches: public reports on other systems, right values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import flexfa4
from flexfa4.counters import stats
from flexfa4.errors import ArgumentError
from flexfa4.testing import Case, Inputs, Mods, Sizes, Trial, attend, excess, make_inputs
from flexfa4.variants import Document, SlidingWindow, causal

# ---- memory --------------------------------------------------------------------------------------


def largest_allocation(run: Callable[[], object]) -> int:
    """Return the bytes of the largest tensor that is made on the CPU meanwhile."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    assert recorded.profiler is not None and recorded.profiler.kineto_results is not None
    events = recorded.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]")


@pytest.mark.parametrize("mask", [causal, Document(torch.arange(9000) // 999), "(q ^ kv) % 5 < 3"])
def test_a_block_mask_of_a_long_sequence_never_holds_all_scores(mask: Any) -> None:
    """pytorch/pytorch#134756, meta-pytorch/attention-gym#32, meta-pytorch/attention-gym#187:
    out of memory for 96000 positions."""

    def lists() -> object:
        made = flexfa4.create_block_mask(mask, q_len=9000, kv_len=9000)
        return made.lists("rows"), made.lists("columns")

    assert 9000 <= largest_allocation(lists) <= 8 * 128 * 9000  # an i64 strip of one row of blocks


def test_a_window_over_a_long_sequence_never_holds_all_scores() -> None:
    """pytorch/pytorch#152528: (16, 3, 25000, 32) with a window of 5, in eager."""
    q, k, v = (torch.randn(1, 1, 6000, 8, requires_grad=True) for _ in range(3))

    def both_passes() -> object:
        out = flexfa4.attention(q, k, v, block_mask=SlidingWindow(5))
        return torch.autograd.grad(out.sum(), (q, k, v))

    assert 6000 <= largest_allocation(both_passes) <= 4 * 6000 * 6000 // 16


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [(64, 128), (128, 64), (256, 128), 256])
@pytest.mark.parametrize(("dim", "value_dim"), [(64, 64), (192, 128), (256, 256)])
def test_lists_of_blocks_of_any_size_have_the_gradients_of_the_dense_mask(
    block_size: Any, dim: int, value_dim: int
) -> None:
    """Dao-AILab/flash-attention#2623 (D=64, gradients wrong without NaN),
    Dao-AILab/flash-attention#2429, Dao-AILab/flash-attention#2727 (sizes that do not agree),
    pytorch/pytorch#180278 (D=192 with Dv=128)."""

    def with_blocks(inputs: Inputs, mods: Mods) -> tuple[torch.Tensor, torch.Tensor]:
        made = flexfa4.create_block_mask(mods.mask, q_len=300, kv_len=300, block_size=block_size)
        return attend(inputs, Mods(mods.score_mod, made))

    trial = Trial(Case.of(mask=causal), Sizes(1, 2, 1, 300, 300, dim, value_dim))
    assert not excess(trial, with_blocks)


@pytest.mark.parametrize(("batch", "q_len", "kv_len"), [(0, 5, 5), (1, 0, 5), (1, 5, 0), (0, 0, 0)])
@pytest.mark.parametrize("mask", [None, causal, "q < 0"])
def test_empty_inputs_give_zeros_and_zero_gradients(
    batch: int, q_len: int, kv_len: int, mask: Any
) -> None:
    """Dao-AILab/flash-attention#2776, #2568, #2470, #1713: crashes, or wrong gradients."""
    x = make_inputs(Sizes(batch, 2, 1, q_len, kv_len, 8, 8))
    out, lse = attend(x, Mods(None, mask))
    assert out.shape == (batch, 2, q_len, 8) and lse.shape == (batch, 2, q_len)
    if kv_len == 0 or mask == "q < 0":
        assert (out == 0).all() and (lse == -torch.inf).all()
    grads = torch.autograd.grad(out.sum(), (x.q, x.k, x.v))
    for grad, leaf in zip(grads, (x.q, x.k, x.v), strict=True):
        assert grad.shape == leaf.shape
        assert (grad == 0).all() or (batch and q_len and kv_len)


def test_segments_of_length_zero_change_nothing() -> None:
    """Dao-AILab/flash-attention#2470: cu_q [0, 150, 150, 300], cu_k [0, 100, 200, 300]."""
    q_of, k_of = (torch.repeat_interleave(torch.tensor(n)) for n in ([15, 0, 15], [10, 10, 10]))
    mask = lambda b, h, q, kv: q_of[q] == k_of[kv]  # noqa: E731
    assert not excess(Trial(Case.of(mask=mask), Sizes(1, 2, 1, 30, 30, 8, 8)))
    x = make_inputs(Sizes(1, 2, 1, 30, 30, 8, 8))
    out, _ = attend(x, Mods(None, mask))
    grads = torch.autograd.grad(out.square().sum(), (x.k, x.v))
    assert all((g[:, :, 10:20] == 0).all() and (g[:, :, :10] != 0).any() for g in grads)


@pytest.mark.parametrize("window", [-1, 0, None, 2.0])
def test_a_window_has_no_value_that_means_something_else(window: Any) -> None:
    """NVIDIA/TransformerEngine#3528, NVIDIA/TransformerEngine#3532: (-1, 0) gave zeros."""
    with pytest.raises(ArgumentError, match=r"SlidingWindow\.window"):
        SlidingWindow(window)


def test_a_mask_and_a_window_given_together_both_apply() -> None:
    """flash-attn 4.0.0b36: causal=True and the window were dropped beside a mask."""
    ids = torch.arange(60) // 25
    both = causal & SlidingWindow(9) & Document(ids)
    distance = torch.arange(60)[:, None] - torch.arange(60)
    right = (distance >= 0) & (distance < 9) & (ids[:, None] == ids)
    made = flexfa4.create_block_mask(both, q_len=60, kv_len=60)
    assert torch.equal(made.to_dense()[0, 0], right)


# ---- what is made once ---------------------------------------------------------------------------


def scaled(scale: float, shift: Any = 0.0) -> Callable[..., Any]:
    def score_mod(
        score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, scale: Any = scale, shift: Any = shift
    ) -> Any:
        return score * scale + shift * kv_idx

    return score_mod


@pytest.mark.parametrize("other", [scaled(2.0), scaled(1.0, 0.5), scaled(1.0, torch.tensor(0.5))])
def test_mods_that_differ_in_their_defaults_only_are_told_apart(other: Any) -> None:
    """Dao-AILab/flash-attention#2773: they shared one compiled kernel."""
    for mod in (scaled(1.0), other, scaled(1.0)):
        assert not excess(Trial(Case.of(mod), Sizes(1, 2, 1, 20, 20, 8, 8)))


def test_a_length_in_a_tensor_neither_traces_nor_plans_anew() -> None:
    """Dao-AILab/flash-attention#2635, Dao-AILab/flash-attention#2507: a compilation for each
    backward where max_seqlen is a tensor."""
    length = torch.tensor(30)

    def run() -> None:
        x = make_inputs(Sizes(1, 2, 1, 40, 40, 8, 8))
        out, _ = attend(x, Mods(lambda s, b, h, q, kv: torch.where(kv < length, s, -torch.inf)))
        torch.autograd.grad(out.sum(), (x.q, x.k, x.v))

    run()
    before = stats()
    for value in range(1, 40, 5):
        length.fill_(value)
        run()
    counted = stats() - before
    assert (counted.traces, counted.plans, counted.calls) == (0, 0, 8)
