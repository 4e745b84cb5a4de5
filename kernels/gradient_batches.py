"""Backward passes of many gradients at once: ``torch.autograd.grad(..., is_grads_batched=True)``.

There, and in ``torch.autograd.functional.jacobian(vectorize=True)`` and ``gradcheck``, the gradient
that comes in is one tensor with a hidden axis.  The kernels look at strides and write into slices,
which such tensors do not allow; so a backward pass runs once for each element of the axis.

Not for ``torch.func.vmap``, whose hidden axes are another mechanism of torch's
(`flexfa4.torch_op.folding`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from flexfa4.frontend.lanes import common_shape

_is_batched: Callable[[Any], bool] = torch._C._functorch.is_legacy_batchedtensor


def for_each(run: Callable[..., Sequence[Any]], *arguments: Any) -> list[Any]:
    """Return ``run(*arguments)``, where tensors may have hidden axes.

    Args:
        run: gives tensors and None for tensors without hidden axes.
        arguments: tensors, lists of them, and whatever else.

    Returns:
        What `run` gives, with the hidden axes of the arguments.
    """
    if not any([isinstance(x, list) or _has_axis(x) for x in arguments]):  # in a microsecond
        return list(run(*arguments))
    leaves, tree = tree_flatten(arguments)
    batched = {i: x for i, x in enumerate(leaves) if _has_axis(x)}
    if not batched:
        return list(run(*arguments))
    levels = _nesting()
    plain = {i: _shown(x, levels) for i, x in batched.items()}
    sizes = common_shape(*[x.shape[:levels] for x in plain.values()])
    rows = {i: x.expand(*sizes, *x.shape[levels:]).flatten(0, levels - 1)
            for i, x in plain.items()}  # fmt: skip
    found = [
        run(*tree_unflatten([rows[i][n] if i in rows else x for i, x in enumerate(leaves)], tree))
        for n in range(math.prod(sizes))
    ]
    return [
        None if results[0] is None else _hidden(torch.stack(results), sizes)
        for results in zip(*found, strict=True)
    ]


def _has_axis(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and _is_batched(x)


def _nesting() -> int:
    """Return how many hidden axes there may be; threads of autograd's own do not know: one."""
    torch._C._vmapmode_increment_nesting()
    return max(1, torch._C._vmapmode_decrement_nesting())


def _shown(x: torch.Tensor, levels: int) -> torch.Tensor:
    """Return a tensor with its hidden axes in front, outermost first; of size 1 if it lacks one."""
    return functools.reduce(
        lambda y, level: torch._remove_batch_dim(y, level, 1, 0), range(levels, 0, -1), x
    )


def _hidden(rows: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return what `_shown` was given.

    An axis of size 1 is left out: either there is none, or torch puts it back itself.
    """
    kept = [(level, n) for level, n in enumerate(sizes, start=1) if n != 1]
    x = rows.reshape(*[n for _, n in kept], *rows.shape[1:])
    return functools.reduce(lambda y, axis: torch._add_batch_dim(y, 0, axis[0]), kept, x)
