"""Rows whose scores are beyond what fp32 resolves to a unit, on Hopper and Blackwell.

Score mods that mask by a large number, or that add one, make such rows: all of its scores may be
-10^30, and what comes out is still a mean of values.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.kernels.request import Inputs
from tests import gradient_calls
from tests.emulated_executor import emulated_gpu
from tests.forward_calls import drawn, near
from tests.forward_trials import poisoned_memory

GPUS: Final[dict[str, dict[str, Any]]] = {"sm90": {}, "sm100": {"capability": (10, 0)}}
DTYPES: Final = (torch.bfloat16, torch.float16)
SIZES: Final = (1e9, 1e15, 1e30, -1e9, -1e30)
LOWEST: Final = torch.finfo(torch.float32).min

# Each dtype on one of the GPUs; the others are of the whole matrix.
gpus_and_dtypes = pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        pytest.param(gpu, dtype, marks=[pytest.mark.full] * (i != j))
        for i, gpu in enumerate(GPUS)
        for j, dtype in enumerate(DTYPES)
    ],
    ids=str,
)


def attended(backend: str, inputs: Inputs, score_mod: Any = None, **call: Any) -> Any:
    """Return what the kernel gives; keys come in several tiles."""
    with emulated_gpu(**GPUS[backend]), poisoned_memory():
        return flexfa4.attention(*inputs[:3], score_mod=score_mod, backend=backend, **call)


@gpus_and_dtypes
def test_the_key_with_the_largest_of_huge_scores_has_it_all(
    backend: str, dtype: torch.dtype
) -> None:
    inputs = drawn(1, len(SIZES), 150, 64, kv_len=300, dtype=dtype)
    sizes = torch.tensor(SIZES)
    out, lse = attended(backend, inputs, lambda s, b, h, q, kv: s * sizes[h], return_lse=True)
    scores = inputs.q.double() @ inputs.k.double().mT * sizes[:, None, None].double()
    best = scores.argmax(-1, keepdim=True)
    assert torch.equal(out, inputs.v.gather(2, best.expand(*out.shape)))
    logits = scores.gather(-1, best)[..., 0] * inputs.q.shape[-1] ** -0.5
    assert torch.equal(lse.bfloat16(), logits.bfloat16())


@gpus_and_dtypes
def test_what_is_added_to_a_whole_row_changes_its_lse_alone(
    backend: str, dtype: torch.dtype
) -> None:
    inputs = drawn(1, 4, 150, 64, kv_len=300, dtype=dtype)
    added = torch.tensor([0.0, 1e9, -1e30, 1e30])
    out, lse = attended(backend, inputs, lambda s, b, h, q, kv: s + added[h], return_lse=True)
    assert torch.equal(out, attended(backend, inputs))
    assert torch.equal(lse[:, 1:].bfloat16(), added[1:, None].expand(3, 150)[None].bfloat16())


@pytest.mark.parametrize("fill", [-1e9, -1e30, LOWEST])
@gpus_and_dtypes
def test_a_large_negative_score_is_as_good_as_a_mask_in_rows_that_have_others(
    backend: str, dtype: torch.dtype, fill: float
) -> None:
    inputs = drawn(1, 1, 200, 64, kv_len=300, dtype=dtype)
    filled = torch.tensor(fill)

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.where((kv >= 130) & (q >= 64), s, filled)

    out = attended(backend, inputs, score_mod)
    some = inputs._replace(q=inputs.q[:, :, 64:])
    assert near(out[:, :, 64:], some, mask=lambda b, h, q, kv: kv >= 130)
    if fill == LOWEST:  # which is minus infinity in base 2
        assert not out[:, :, :64].any()
    else:
        none = inputs._replace(q=torch.zeros_like(inputs.q[:, :, :64]))
        assert near(out[:, :, :64], none)


@gpus_and_dtypes
def test_huge_scores_with_a_bias_that_is_linear_in_keys_give_numbers(
    backend: str, dtype: torch.dtype
) -> None:
    inputs = drawn(1, len(SIZES), 150, 64, kv_len=300, dtype=dtype)
    sizes = torch.tensor(SIZES).abs()
    out = attended(backend, inputs, lambda s, b, h, q, kv: s + sizes[h] * (kv - q))
    assert out.isfinite().all()


@pytest.mark.parametrize("fill", [-1e9, -1e30, LOWEST])
@pytest.mark.parametrize("backend", GPUS)
def test_rows_of_a_large_negative_score_alone_leave_gradients_to_others(
    backend: str, fill: float
) -> None:
    filled = torch.tensor(fill)

    def seen(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (kv >= 130) & (q >= 64)

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.where(seen(b, h, q, kv), s, filled)

    call = gradient_calls.drawn(1, 2, 200, 64, kv_len=300, kv_heads=1, mod=score_mod)
    with emulated_gpu(**GPUS[backend]):
        dq, dk, dv = gradient_calls.gradients(call, backend)
    assert not dq[:, :, :64].any()
    some = call._replace(q=call.q[:, :, 64:], do=call.do[:, :, 64:], mod=None)
    others = some._replace(mask=lambda b, h, q, kv: seen(b, h, q + 64, kv))
    assert gradient_calls.near([dq[:, :, 64:], dk, dv], others)


@pytest.mark.parametrize("backend", GPUS)
def test_gradients_of_huge_logits_are_numbers(backend: str) -> None:
    sizes, call = torch.tensor(SIZES), gradient_calls.drawn(1, len(SIZES), 150, 64, kv_len=300)
    sink = sizes.clone().requires_grad_()
    leaves = [*(x.detach().requires_grad_() for x in call[:3]), sink]
    with emulated_gpu(**GPUS[backend]), poisoned_memory():
        out = flexfa4.attention(
            *leaves[:3],
            score_mod=lambda s, b, h, q, kv: s + sizes[h],
            sink=sink,
            backend=backend,
        )
        found = torch.autograd.grad(out, leaves, call.do)
    assert all(x.isfinite().all() for x in found)
