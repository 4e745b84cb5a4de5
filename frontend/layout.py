"""How the output of attention lies in memory: as the query does, whatever computes it.

A program that splits heads by ``x.view(B, S, H, D).transpose(1, 2)`` joins them again by a view
only if the output keeps the query's order of axes; likewise its backward pass, if gradients keep
those of q, k and v.  Every backend, and the shapes that torch is told before one runs, take it from
here.
"""

from __future__ import annotations

import torch


def empty_output(query: torch.Tensor, width: int) -> torch.Tensor:
    """Return memory for the output ``(B, Hq, Lq, width)``, in query's dtype.

    Batches, heads and rows follow each other in memory as those of `query` do, without gaps; the
    last axis is innermost.

    Args:
        query: ``(B, Hq, Lq, D)``, any strides.
        width: the head dimension of value.
    """
    if query.is_contiguous():
        if width == query.shape[3]:  # a microsecond less
            return torch.empty_like(query, memory_format=torch.contiguous_format)
        return query.new_empty((*query.shape[:3], width))
    shape = (*query.shape[:3], width)
    rows = torch.empty_like(query.select(3, 0))  # torch keeps the order of axes and closes gaps
    return query.new_empty_strided(shape, [*(width * s for s in rows.stride()), 1])


def empty_gradient(x: torch.Tensor) -> torch.Tensor:
    """Return memory for the gradient of ``(B, H, L, D)``, which lies as `x` does, without gaps."""
    return empty_output(x, x.shape[3])


def laid_out(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a gradient as it is told to lie, see `empty_gradient`, whatever has computed it."""
    like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    strides = empty_gradient(like).stride()
    if gradient.stride() == strides:
        return gradient
    return gradient.new_empty_strided(gradient.shape, strides).copy_(gradient)
