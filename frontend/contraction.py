"""Sums of products of two tensors that broadcast against each other, as matrix products.

``(a * b).sum(axes)`` of a tensor that varies with the queries and one that varies with the keys
would first make a tensor as large as the scores times the vector.  An axis that only one of the
two has is an axis of a matrix, one that both have is a batch of matrices or, where it is summed,
their inner axis: then `torch.bmm` does all at once.

Works on tensors, knows nothing of graphs: `evaluate` uses it for sums along the vector axis, the
backward pass of a kernel for the gradients of what a graph reads.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch

from flexfa4.frontend.pool import Pool

# Many tiny matrices cost more as matrix products than element by element: at most so many, or at
# least so many results in each.
_FEW_MATRICES = 64
_LARGE_MATRIX = 64


def sum_of_products(
    a: torch.Tensor,
    b: torch.Tensor,
    axes: Collection[int],
    rank: int,
    pool: Pool | None = None,
) -> torch.Tensor:
    """Return ``(a * b).sum(axes, keepdim=True)``, summed in any order.

    Args:
        a: broadcasts to `rank` axes.
        b: of the dtype of `a`; broadcasts to `rank` axes, and against `a`.
        axes: the axes to sum, counted from the front of `rank` axes.
        rank: number of axes, as far as which a missing one is put in front.
        pool: memory for the result, in the dtype of `a`.

    Returns:
        A tensor of `rank` axes: along each it is 1 where it is summed or where both have 1.
    """
    a, b = _ranked(a, rank), _ranked(b, rank)
    # What only one of the two varies along is summed before it meets the other.
    only_a = [i for i in axes if a.shape[i] > 1 and b.shape[i] == 1]
    only_b = [i for i in axes if b.shape[i] > 1 and a.shape[i] == 1]
    a = a.sum(only_a, keepdim=True) if only_a else a
    b = b.sum(only_b, keepdim=True) if only_b else b
    inner = [i for i in axes if a.shape[i] > 1]
    if not inner:
        shape = [m if n == 1 else n for m, n in zip(a.shape, b.shape, strict=True)]
        return torch.mul(a, b, out=None if pool is None else pool.lend(shape))
    batch = [i for i in range(rank) if i not in axes and a.shape[i] > 1 and b.shape[i] > 1]
    rows = [i for i in range(rank) if i not in axes and a.shape[i] > 1 and b.shape[i] == 1]
    columns = [i for i in range(rank) if i not in axes and b.shape[i] > 1 and a.shape[i] == 1]
    if columns and rows and columns[0] < rows[0]:  # results in the order of their axes in memory
        a, b, rows, columns = b, a, columns, rows
    count, m, n, k = (_size(a, b, part) for part in (batch, rows, columns, inner))
    if count > _FEW_MATRICES and m * n < _LARGE_MATRIX:
        return (a * b).sum(inner, keepdim=True)
    rest = [i for i in range(rank) if i not in (*batch, *rows, *columns)]
    left = a.permute(*batch, *rows, *inner, *_others(rank, batch, rows, inner))
    right = b.permute(*batch, *columns, *inner, *_others(rank, batch, columns, inner))
    left, right = left.reshape(count, m, k), right.reshape(count, n, k).transpose(1, 2)
    product = torch.bmm(left, right, out=None if pool is None else pool.lend((count, m, n)))
    order = (*batch, *rows, *columns, *rest)
    sizes = [1 if i in rest else max(a.shape[i], b.shape[i]) for i in order]
    return product.view(sizes).permute([order.index(i) for i in range(rank)])


def _ranked(t: torch.Tensor, rank: int) -> torch.Tensor:
    return t if t.dim() == rank else t.reshape((1,) * (rank - t.dim()) + t.shape)


def _size(a: torch.Tensor, b: torch.Tensor, axes: list[int]) -> int:
    return math.prod(max(a.shape[i], b.shape[i]) for i in axes)


def _others(rank: int, *parts: list[int]) -> list[int]:
    """Return the axes, all of size one, that are in none of the parts."""
    return [i for i in range(rank) if not any(i in part for part in parts)]
