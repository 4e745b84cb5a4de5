"""Small calls of attention with a mask, and what torch's own attention gives for the dense mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import flexfa4
from tests.random_masks import Space

_GENERATOR = torch.Generator().manual_seed(0)


def inputs(batch: int = 1, heads: int = 2, length: int = 40) -> list[torch.Tensor]:
    """Return random q, k and v, others on each call."""
    return [torch.randn(batch, heads, length, 16, generator=_GENERATOR) for _ in range(3)]


def attend(tensors: list[torch.Tensor], mask: Any) -> torch.Tensor:
    """Return what attention gives for a mask function or a block mask."""
    out = flexfa4.attention(*tensors, block_mask=mask)
    assert isinstance(out, torch.Tensor)
    return out


def reference(tensors: list[torch.Tensor], mask: Callable[..., Any]) -> torch.Tensor:
    """Return what torch gives for a mask function, called on index tensors."""
    q, k, v = tensors
    seen = Space(q.shape[0], q.shape[1], q.shape[2], k.shape[2]).dense(mask)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, seen)
