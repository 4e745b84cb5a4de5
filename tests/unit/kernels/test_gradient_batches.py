"""Many gradients in one backward pass: `is_grads_batched` and what of torch's is made of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._vmap_internals import _vmap

import flexfa4

B, H, HKV, L, D, V = 2, 4, 2, 12, 8, 3
G = torch.Generator().manual_seed(0)
Q, K, VALUE = (torch.randn(B, h, L, D, generator=G) for h in (H, HKV, HKV))
SLOPES = torch.rand(H, generator=G)


def attention(q: Any, slopes: Any) -> Any:
    return flexfa4.attention(
        q, K.to(q.dtype), VALUE.to(q.dtype), block_mask="q >= kv", return_lse=True,
        score_mod=lambda s, b, h, i, j: s * slopes[h],
    )  # fmt: skip


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_batched_gradients_are_those_one_by_one(backend: str | None) -> None:
    leaves = (Q.clone().requires_grad_(), SLOPES.clone().requires_grad_())
    torch._dynamo.reset()
    run = attention if backend is None else torch.compile(attention, backend=backend)
    results = run(*leaves)
    given = tuple(torch.randn(V, *x.shape, generator=G) for x in results)
    for n in (V, 1):
        each = [
            torch.autograd.grad(results, leaves, [g[i] for g in given], retain_graph=True)
            for i in range(n)
        ]
        found = torch.autograd.grad(
            results, leaves, [g[:n] for g in given], is_grads_batched=True, retain_graph=True
        )
        for a, b in zip(found, zip(*each, strict=True), strict=True):
            torch.testing.assert_close(a, torch.stack(b))


@pytest.mark.parametrize("backend", [None, "eager"])
def test_a_second_derivative_is_refused_as_ever(backend: str | None) -> None:
    q = Q.clone().requires_grad_()
    torch._dynamo.reset()
    run = attention if backend is None else torch.compile(attention, backend=backend)
    out, _ = run(q, SLOPES)
    given = torch.randn(V, *out.shape, generator=G)
    (first,) = torch.autograd.grad(out, q, given, is_grads_batched=True, create_graph=True)
    with pytest.raises(flexfa4.errors.SecondDerivativeError):
        first.sum().backward()


def test_an_axis_may_be_hidden_in_another() -> None:
    q = Q.clone().requires_grad_()
    out, lse = attention(q, SLOPES)

    def pull(grad_out: Any, grad_lse: Any) -> Any:
        return torch.autograd.grad((out, lse), q, (grad_out, grad_lse), retain_graph=True)[0]

    outs = torch.randn(2, *out.shape, generator=G)
    lses = torch.randn(V, *lse.shape, generator=G)
    inner = _vmap(pull, in_dims=(None, 0))
    found = _vmap(inner, in_dims=(0, None))(outs, lses)
    torch.testing.assert_close(
        found, torch.stack([torch.stack([pull(a, b) for b in lses]) for a in outs])
    )


def test_torch_checks_batched_gradients_and_vectorizes_jacobians() -> None:
    q = Q[:, :, :2].double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda q: flexfa4.attention(q, K.double(), VALUE.double()), q, check_batched_grad=True
    )

    def sums(q: Any) -> Any:
        return attention(q, SLOPES)[0].sum((0, 1, 2))

    found, expected = (
        torch.autograd.functional.jacobian(sums, Q, vectorize=v) for v in (True, False)
    )
    torch.testing.assert_close(found, expected)
