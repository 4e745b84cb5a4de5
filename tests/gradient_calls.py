"""Single calls whose gradients kernels compute, and what those should be by plain torch."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

import flexfa4
from flexfa4.testing import Sizes, agrees, make_inputs
from tests.forward_trials import poisoned_memory


class Call(NamedTuple):
    """What is differentiated.

    Attributes:
        q, k, v, do: bf16, unless a test says otherwise.
        mask: of the attention, or None.
        mod: its score mod, or None.
        chosen: further arguments of `flexfa4.attention`.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    mask: Any = None
    mod: Any = None
    chosen: dict[str, Any] = {}  # noqa: RUF012

    def of(self, tensors: list[torch.Tensor]) -> Call:
        """Return the call with other q, k, v and do."""
        q, k, v, do = tensors
        return self._replace(q=q, k=k, v=v, do=do)


def drawn(
    *shape: int,
    kv_len: int | None = None,
    kv_heads: int | None = None,
    kv_batch: int | None = None,
    value_dim: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    **call: Any,
) -> Call:
    """Return a call for ``(batch, heads, q_len, dim)``."""
    batch, heads, q_len, dim = shape
    sizes = Sizes(
        batch,
        heads,
        kv_heads or heads,
        q_len,
        q_len if kv_len is None else kv_len,
        dim,
        value_dim or dim,
        kv_batch,
    )
    given = make_inputs(sizes, dtype=dtype)
    q, k, v = (x.detach() for x in (given.q, given.k, given.v))
    do = torch.randn(*q.shape[:3], v.shape[3], generator=torch.Generator().manual_seed(5))
    return Call(q, k, v, do.to(dtype), **call)


def gradients(call: Call, backend: str) -> list[torch.Tensor]:
    """Return dq, dk and dv as the kernels of a backend compute them."""
    leaves = [x.detach().requires_grad_() for x in call[:3]]
    with poisoned_memory():
        out = flexfa4.attention(
            *leaves, score_mod=call.mod, block_mask=call.mask, backend=backend, **call.chosen
        )
        return list(torch.autograd.grad(out, leaves, call.do))


def expected(call: Call, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return dq, dk and dv by plain torch in a dtype."""
    leaves = [x.to(dtype).requires_grad_() for x in call[:3]]
    q, k, v = leaves
    group, batch = q.shape[1] // k.shape[1], q.shape[0]
    k, v = (x.expand(batch, -1, -1, -1).repeat_interleave(group, 1) for x in (k, v))
    scale = call.chosen.get("scale", q.shape[3] ** -0.5)
    scores = (q @ k.mT) * scale
    visible = torch.ones(scores.shape[2:], dtype=torch.bool)
    rows, columns = torch.arange(len(visible))[:, None], torch.arange(visible.shape[1])[None]
    if call.mask is not None:
        visible = call.mask(0, 0, rows, columns)
    if call.mod is not None:
        scores = call.mod(scores, 0, 0, rows, columns)
    scores = scores.float() if dtype is not torch.float64 else scores
    scores = scores.masked_fill(~visible, -math.inf)
    weights = torch.softmax(scores, -1).masked_fill(~visible, 0).to(dtype)
    return list(torch.autograd.grad(weights @ v, leaves, call.do.to(dtype)))


def near(found: list[torch.Tensor], call: Call) -> bool:
    """Return whether gradients are as near to the exact ones as the dtype lets them be."""
    exact, eager = expected(call, torch.float64), expected(call, call.q.dtype)
    terms = max(call.q.shape[2] * call.q.shape[1] // call.k.shape[1], call.k.shape[2])
    return all(
        not mine.isnan().any() and agrees(mine, right, torch_s, terms=terms)
        for mine, right, torch_s in zip(found, exact, eager, strict=True)
    )


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def ahead(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Show no row a single key: its gradients would be 0, and nothing but rounding."""
    return q + 8 >= kv


def window(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q >= kv) & (q - kv < 40)
