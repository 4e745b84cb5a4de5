"""Hopper's backward kernels on this machine's GPU: many runs, and sizes that no emulator runs.

Gradients of the case table are held against the dense reference in `test_sm90_forward`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

import flexfa4

RUNS = 20
DOCUMENTS = torch.repeat_interleave(torch.arange(5), torch.tensor([700, 300, 1100, 64, 836])).cuda()
MASKS: dict[str, Any] = {
    "full": None,
    "causal": lambda b, h, q, kv: q >= kv,
    "window": lambda b, h, q, kv: (q >= kv) & (q - kv < 500),
    "prefix": lambda b, h, q, kv: (q >= kv) | (kv < 700),
    "documents": lambda b, h, q, kv: (q >= kv) & (DOCUMENTS[q] == DOCUMENTS[kv]),
    "scattered": lambda b, h, q, kv: (q // 100 + kv // 150 + h) % 3 > 0,
}


def drawn(dims: tuple[int, int] = (128, 128), length: int = 3000) -> list[torch.Tensor]:
    """Return q, k, v and the gradient of the output: 8 query heads and 2 key heads."""
    draw = torch.Generator("cuda").manual_seed(0)
    d, dv = dims
    sizes = [(2, 8, length, d), (2, 2, length, d), (2, 2, length, dv), (2, 8, length, dv)]
    return [
        torch.randn(s, device="cuda", dtype=torch.bfloat16, generator=draw).requires_grad_()
        for s in sizes
    ]


def learned(*shape: int) -> torch.Tensor:
    draw = torch.Generator("cuda").manual_seed(1)
    return torch.randn(shape, device="cuda", generator=draw).requires_grad_()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (192, 128), (256, 256)], ids=str)
def test_deterministic_gradients_have_the_same_bits_on_every_run(
    mask: str, dims: tuple[int, int]
) -> None:
    q, k, v, do = drawn(dims)
    bias, sink = learned(8, 3000), learned(8)
    inputs = (q, k, v, bias, sink)
    runs = []
    for _ in range(RUNS):
        out = flexfa4.attention(
            q, k, v, sink=sink, score_mod=lambda score, b, h, i, j: score + bias[h, j],
            block_mask=MASKS[mask], deterministic=True, backend="sm90",
        )  # fmt: skip
        runs.append(torch.autograd.grad(out, inputs, do))
    for run in runs[1:]:
        assert all(map(torch.equal, run, runs[0]))


@pytest.mark.parametrize("mask", MASKS)
def test_repeated_gradients_differ_by_nothing_but_the_order_of_sums(mask: str) -> None:
    q, k, v, do = drawn()
    out = flexfa4.attention(q, k, v, block_mask=MASKS[mask], backend="sm90")
    first = torch.autograd.grad(out, (q, k, v), do, retain_graph=True)
    for _ in range(50 * RUNS):
        dq, dk, dv = torch.autograd.grad(out, (q, k, v), do, retain_graph=True)
        assert torch.equal(dk, first[1]) and torch.equal(dv, first[2])
        eps = torch.finfo(dq.dtype).eps
        assert bool(((dq - first[0]).abs() <= 2 * eps * first[0].abs() + eps**2).all())


def test_captured_tensors_of_every_kind_of_sum_get_what_the_cpu_backend_gives_them() -> None:
    q, k, v, do = drawn(length=1000)
    slope, by_key, by_query = learned(8), learned(2, 8, 1000), learned(8, 1000)
    table, pairs = learned(64, 8), learned(8, 1000, 1000)

    def mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        near = table[(i - j).clamp(-32, 31) + 32, h] + slope[h] * (j - i).abs() / 1000
        return score * by_query[h, i].sigmoid() + by_key[b, h, j] + pairs[h, i, j] + near

    inputs = (slope, by_key, by_query, table, pairs)

    def gradients(backend: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        given = (x.to(dtype) for x in (q, k, v))
        out = flexfa4.attention(*given, score_mod=mod, block_mask="q >= kv", backend=backend)
        return torch.autograd.grad(out, inputs, do.to(dtype))

    exact, plain = gradients("cpu", torch.float64), gradients("cpu", torch.bfloat16)
    found = gradients("sm90", torch.bfloat16)
    largest = max(float((p - x).norm() / x.norm()) for p, x in zip(plain, exact, strict=True))
    for mine, right in zip(found, exact, strict=True):
        assert float((mine - right).norm() / right.norm()) <= 2 * largest
