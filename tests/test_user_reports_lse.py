"""Log-sum-exp, precision and determinism: public reports on other systems, right values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.errors import DTypeError
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
from flexfa4.variants import SlidingWindow, alibi, causal

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def scores_of(inputs: Inputs) -> torch.Tensor:
    """Return the scaled scores in fp64, for equal numbers of heads."""
    q, k = inputs.q.double(), inputs.k.double()
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


# ---- what lse is ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lse_is_the_natural_logarithm_in_fp32_or_fp64(dtype: torch.dtype) -> None:
    """pytorch/pytorch#181645, pytorch/pytorch#181824 (off by ln 2),
    meta-pytorch/attention-gym#37 (all zeros), flashinfer-ai/flashinfer#4485 (unstated base)."""
    s = Sizes(2, 4, 4, 128, 128, 64, 64)
    _, lse = attend(make_inputs(s, torch.Generator(), dtype=dtype), Mods())
    assert lse.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert not excess(Trial(Case("reported", lambda s, d: Mods()), s, dtype))


@pytest.mark.parametrize("mod", [None, alibi, lambda score, b, h, q, kv: torch.tanh(score) - q])
@pytest.mark.parametrize("grad", [False, True])
def test_lse_holds_every_term_of_the_score_also_those_that_softmax_cannot_see(
    mod: Callable[..., Any] | None, grad: bool
) -> None:
    """pytorch/pytorch, lse times 1.4427 outside the fused kernel (2.13)."""
    inputs = make_inputs(Sizes(1, 2, 2, 8, 8, 16, 16), torch.Generator())
    eager = (
        None if mod is not alibi else lambda s, b, h, q, kv: s + 2.0 ** (-4 * (h + 1)) * (kv - q)
    )
    with torch.set_grad_enabled(grad):
        _, lse = attend(inputs, Mods(mod))
    (_, right), (_, rounded) = (
        dense_reference(inputs, Mods(mod, eager_score_mod=eager), dtype=dtype)
        for dtype in (torch.float64, torch.float32)
    )
    assert agrees(lse, right, rounded, terms=16)


def test_asking_for_lse_does_not_change_the_output() -> None:
    """meta-pytorch/attention-gym#37."""
    inputs = make_inputs(Sizes(), torch.Generator())
    q, k, v = inputs.q, inputs.k, inputs.v
    out, _ = flexfa4.attention(q, k, v, block_mask=causal, return_lse=True)
    assert torch.equal(out, flexfa4.attention(q, k, v, block_mask=causal))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_gradient_of_lse_alone_is_that_of_logsumexp(dtype: torch.dtype) -> None:
    """pytorch/pytorch#136232: a loss that reads lse."""
    inputs = make_inputs(Sizes(2, 2, 2, 70, 90, 16, 16), torch.Generator(), dtype=dtype)
    _, lse = attend(inputs, Mods())
    found = torch.autograd.grad(lse.sum(), inputs.leaves(), materialize_grads=True)
    right = torch.autograd.grad(scores_of(inputs).logsumexp(-1).sum(), (inputs.q, inputs.k))
    for a, b in zip(found, right, strict=False):
        torch.testing.assert_close(a, b)
    assert not found[2].any()


# ---- precision -----------------------------------------------------------------------------------


def test_fp32_is_computed_in_fp32() -> None:
    """pytorch/pytorch#135161, pytorch/pytorch#138556: fp32 computed as TF32."""
    inputs = make_inputs(Sizes(1, 2, 2, 256, 256, 64, 64), torch.Generator())
    out, _ = attend(inputs, Mods(None, causal))
    right, _ = dense_reference(inputs, Mods(None, causal))
    tf32 = 2.0**-11
    assert float((out - right).detach().abs().max()) < tf32 / 100


def test_a_half_masked_bf16_row_is_within_rounding_of_fp64() -> None:
    """pytorch/pytorch#163588, meta-pytorch/attention-gym#131: 1 query, 58 % masked."""
    keep = torch.rand(512, generator=torch.Generator().manual_seed(0)) > 0.58
    inputs = make_inputs(Sizes(1, 4, 4, 1, 512, 64, 64), torch.Generator(), dtype=torch.bfloat16)
    mods = Mods(None, lambda b, h, q_idx, kv_idx: keep[kv_idx])
    out, _ = attend(inputs, mods)
    right, _ = dense_reference(inputs, mods)
    # scores and sums are fp32: one rounding of the result to bf16 is all that is left
    torch.testing.assert_close(out, right.bfloat16(), rtol=2.0**-8, atol=1e-6)


def test_different_dtypes_are_refused() -> None:
    """k2-fsa/OmniVoice#212: fp32 query and key beside bf16 value, silently four times slower."""
    q = torch.randn(1, 1, 4, 8)
    for dtypes in (
        (torch.float32, torch.float32, torch.bfloat16),
        (torch.float16, torch.float32, torch.float32),
    ):
        with pytest.raises(DTypeError, match="dtypes differ"):
            flexfa4.attention(*(q.to(d) for d in dtypes))


@pytest.mark.parametrize("mod", [None, lambda score, b, h, q, kv: torch.tanh(score)])
@pytest.mark.parametrize("length", [20, 700])
def test_autocast_casts_the_inputs_and_leaves_the_scores_in_fp32(
    length: int, mod: Callable[..., Any] | None
) -> None:
    """k2-fsa/OmniVoice#212: fp32 query and key under autocast."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, length, 16, generator=g, requires_grad=True) for _ in range(3))
    low = tuple(x.detach().bfloat16().requires_grad_() for x in (q, k, v))
    right, right_lse = flexfa4.attention(*low, score_mod=mod, block_mask=causal, return_lse=True)
    right.float().square().sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, lse = flexfa4.attention(
            q, k, v.bfloat16(), score_mod=mod, block_mask=causal, return_lse=True
        )
        out.float().square().sum().backward()  # backward is usually outside; inside must work too
    assert out.dtype is torch.bfloat16 and torch.equal(out, right)
    assert torch.equal(lse, right_lse)
    assert q.grad is not None and low[0].grad is not None
    assert q.grad.dtype is torch.float32 and torch.equal(q.grad, low[0].grad.float())


def test_autocast_leaves_fp64_alone() -> None:
    """k2-fsa/OmniVoice#212, the kind: as for a matrix product."""
    q = torch.randn(1, 1, 20, 8, dtype=torch.float64)
    right = flexfa4.attention(q, q, q)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(flexfa4.attention(q, q, q), right)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_gradients_of_many_rows_are_summed_in_fp32(dtype: torch.dtype) -> None:
    """pytorch/pytorch#163588, the kind: keys that 4000 query rows add to."""
    s = Sizes(1, 4, 1, 1000, 16, 8, 8)
    case = Case("dense", lambda s, d: Mods())
    inputs, mods = Trial(case, s, dtype).build(dtype)
    exact, _ = Trial(case, s, dtype).build(torch.float64)
    grads = []
    for run, given in ((attend, inputs), (dense_reference, exact)):
        out, _ = run(given, mods)
        grads.append(torch.autograd.grad(out.double().square().sum(), given.leaves())[2])
    eps = torch.finfo(dtype).eps
    assert float((grads[0].double() - grads[1]).abs().max() / grads[1].abs().max()) < 2 * eps


# ---- positions far out ---------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1 << 20, (1 << 24) + 3, 1 << 33])
@pytest.mark.parametrize(
    "mod",
    [
        lambda at: lambda score, b, h, q, kv: score + 0.3 * ((kv + at) - (q + at)),
        lambda at: lambda score, b, h, q, kv: score - (q + at - kv - at).abs() * 0.05 * (h + 1),
        lambda at: lambda score, b, h, q, kv: score + torch.sin(0.1 * ((kv + at) % 1000)),
        lambda at: (
            lambda score, b, h, q, kv: torch.where((q + at) % 7 == (kv + at) % 7, score, 0.0)
        ),
    ],
    ids=["slope", "distance", "period", "classes"],
)
def test_scores_at_positions_beyond_2_to_the_20_are_as_exact_as_at_the_origin(
    mod: Callable[[int], Callable[..., Any]], offset: int
) -> None:
    """pytorch/pytorch#163588, the kind: no index passes through fp32 on its way."""
    s = Sizes(1, 2, 1, 5, 140, 8, 8)
    assert not excess(Trial(Case("far", lambda s, d: Mods(mod(offset))), s))


def test_a_mask_at_positions_beyond_2_to_the_24_is_exact() -> None:
    """pytorch/pytorch#163588, the kind: fp32 cannot tell neighbours apart there."""
    offset = (1 << 25) + 1

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        query, key = q_idx + offset, kv_idx + offset
        return (query >= key) & (query - key < 3) & (key % 2 == 1)

    dense = flexfa4.create_block_mask(mask, q_len=40, kv_len=40).to_dense()[0, 0]
    q, k = torch.arange(40)[:, None], torch.arange(40)
    assert torch.equal(dense, (q >= k) & (q - k < 3) & (k % 2 == 0))


# ---- determinism ---------------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [False, True])
def test_repeated_calls_give_the_same_bits_gradients_included(deterministic: bool) -> None:
    """Dao-AILab/flash-attention#2244, Dao-AILab/flash-attention#2510,
    Dao-AILab/flash-attention#2549, SandAI-org/MagiAttention#65: 30 runs."""
    g = torch.Generator().manual_seed(0)
    inputs = make_inputs(Sizes(2, 6, 2, 300, 300, 16, 16), g, dtype=torch.float16, sink=True)
    table = torch.randn(64, generator=g, requires_grad=True)

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[(q_idx - kv_idx) % 64]

    threads = torch.get_num_threads()
    first: list[torch.Tensor] = []
    try:
        for run in range(30):
            torch.set_num_threads(1 + run % 2)
            out, lse = flexfa4.attention(
                inputs.q, inputs.k, inputs.v, score_mod=mod, block_mask=SlidingWindow(100),
                sink=inputs.sink, return_lse=True, deterministic=deterministic,
            )  # fmt: skip
            loss = out.float().square().sum() + lse.sum()
            found = [out, lse, *torch.autograd.grad(loss, (*inputs.leaves(), table))]
            first = first or found
            assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True)), run
    finally:
        torch.set_num_threads(threads)


def test_the_same_rows_give_the_same_bits_in_a_larger_batch() -> None:
    """Dao-AILab/flash-attention#2244, the kind: what is beside a row does not change it."""
    inputs = make_inputs(Sizes(4, 2, 2, 130, 130, 16, 16))
    whole, _ = attend(inputs, Mods(alibi, causal))
    alone, _ = attend(Inputs(inputs.q[2:3], inputs.k[2:3], inputs.v[2:3]), Mods(alibi, causal))
    assert torch.equal(alone, whole[2:3])
