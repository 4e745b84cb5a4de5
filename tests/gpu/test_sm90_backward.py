"""The Hopper backward kernels on this machine's GPU.

Gradients of the case table are held against the dense reference by the tests of the forward pass;
here is what takes long sequences, many blocks, or many runs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

import flexfa4
from flexfa4.kernels.sm90.backward.tilings import BACKWARD
from flexfa4.testing import agrees

MASKS: dict[str, Any] = {
    "full": None,
    "causal": "q >= kv",
    "window": "q >= kv and q - kv < 200",
    "prefix": "q >= kv or kv < 500",
    "middle": "q >= 900 and kv < 300",
}


def drawn(
    *shape: int, heads: int | None = None, keys: int | None = None, value_dim: int | None = None
) -> list[torch.Tensor]:
    """Return q, k, v and dO in bf16 for ``(batch, heads, queries, dim)``."""
    batch, q_heads, queries, dim = shape
    kv = (batch, heads or q_heads, keys or queries)
    sizes = (shape, (*kv, dim), (*kv, value_dim or dim), (*shape[:3], value_dim or dim))
    return [torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in sizes]


def gradients(given: list[torch.Tensor], backend: str, **chosen: Any) -> list[torch.Tensor]:
    """Return dq, dk and dv as a backend computes them."""
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    out = flexfa4.attention(*leaves, backend=backend, **chosen)
    return list(torch.autograd.grad(out, leaves, given[3]))


def near(found: list[torch.Tensor], given: list[torch.Tensor], **chosen: Any) -> bool:
    """Return whether gradients are as near to the exact ones as the CPU backend's in bf16."""
    exact = gradients([x.double() for x in given], "cpu", **chosen)
    eager = gradients(given, "cpu", **chosen)
    terms = max(given[0].shape[2], given[1].shape[2])
    results = zip(found, exact, eager, strict=True)
    return all(f.isfinite().all() and agrees(f, e, b, terms=terms) for f, e, b in results)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("head_dims", BACKWARD, ids=str)
def test_long_sequences_are_right(head_dims: tuple[int, int], name: str) -> None:
    dim, value_dim = head_dims
    given = drawn(2, 8, 1930, dim, heads=2, keys=2011, value_dim=value_dim)
    chosen = {"block_mask": MASKS[name]}
    assert near(gradients(given, "sm90", **chosen), given, **chosen)


@pytest.mark.parametrize("head_dims", [(64, 64), (128, 128)], ids=str)
def test_a_thousand_runs_give_the_same_bits_for_keys_and_values(
    head_dims: tuple[int, int],
) -> None:
    """And sums of queries that differ in nothing but the order of their terms."""
    given = drawn(2, 8, 1100, head_dims[0], heads=4)
    mask = flexfa4.create_block_mask("q >= kv or kv < 200", q_len=1100, kv_len=1100)
    first = gradients(given, "sm90", block_mask=mask)
    assert near(first, given, block_mask=mask)
    for _ in range(1000):
        dq, dk, dv = gradients(given, "sm90", block_mask=mask)
        assert torch.equal(dk, first[1]) and torch.equal(dv, first[2])
        assert agrees(dq, first[0], first[0], terms=1)


def test_scores_of_minus_120_and_a_half_tile_at_the_end_are_right() -> None:
    given = drawn(1, 1, 704, 64)
    given[0][..., 0], given[1][..., 0] = 32.0, -30.0
    for mask in (None, "q + 8 >= kv"):
        assert near(gradients(given, "sm90", block_mask=mask), given, block_mask=mask)


def test_the_default_backend_trains_with_the_kernels() -> None:
    given = drawn(1, 2, 300, 128)
    by_name = gradients(given, "sm90", block_mask="q >= kv")
    by_default = gradients(given, "auto", block_mask="q >= kv")
    assert torch.equal(by_name[1], by_default[1]) and torch.equal(by_name[2], by_default[2])
