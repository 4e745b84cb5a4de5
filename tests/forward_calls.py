"""Single calls of forward kernels: their inputs, and whether an output is right."""

from __future__ import annotations

from typing import Any

import torch

from flexfa4.kernels.request import Inputs
from flexfa4.testing import Inputs as Given
from flexfa4.testing import Mods, Sizes, agrees, dense_reference, make_inputs


def drawn(
    *shape: int, kv_len: int | None = None, kv_heads: int | None = None, dtype: Any = torch.bfloat16
) -> Inputs:
    """Return inputs for ``(batch, heads, q_len, dim)``."""
    batch, heads, q_len, dim = shape
    sizes = Sizes(
        batch, heads, kv_heads or heads, q_len, q_len if kv_len is None else kv_len, dim, dim
    )
    given = make_inputs(sizes, dtype=dtype)
    return Inputs(given.q.detach(), given.k.detach(), given.v.detach(), None)


def near(
    found: torch.Tensor,
    inputs: Inputs,
    *,
    mask: Any = None,
    score_mod: Any = None,
    **chosen: Any,
) -> bool:
    """Return whether an output is as near to the reference as bf16 lets it be."""
    given, mods = Given(*inputs), Mods(score_mod=score_mod, mask=mask)
    exact, _ = dense_reference(given, mods, **chosen)
    eager, _ = dense_reference(given, mods, dtype=inputs.q.dtype, **chosen)
    terms = max(inputs.q.shape[3], inputs.k.shape[2])
    return not found.isnan().any() and agrees(found, exact, eager, terms=terms)
