"""Gradients of loads, added into the captured tensors that were read; the same for every backend.

A backend computes what each load of a score mod gets, of a rectangle of scores, summed over axes
that the load does not vary along if it likes.  Dimensions that were sliced by the load are added to
by slice, the others by index.  Torch code, deterministic on every device.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from flexfa4.frontend.evaluate import VECTOR_AXIS, Values, is_whole_axis, plain_axes
from flexfa4.frontend.ir import Node
from flexfa4.frontend.lanes import AXES, Lanes

_ALL: Final = frozenset(AXES)


def varies(node: Node) -> frozenset[str]:
    """Return the axes that a value varies along; what varies with the score varies along all."""
    return _ALL if "score" in node.depends else node.depends


def load_axes(load: Node) -> frozenset[int]:
    """Return the axes that the elements of a load vary along, `VECTOR_AXIS` included."""
    axes = {AXES[name] for arg in load.args for name in varies(arg)}
    return frozenset(axes | {VECTOR_AXIS} if load.length is not None else axes)


def accumulate(
    target: torch.Tensor,
    load: Node,
    indices: tuple[Any, ...],
    gradient: torch.Tensor,
    lanes: Lanes,
    values: Values,
) -> None:
    """Add a tile's gradient of one load into `target`.

    Args:
        target: sum so far, of the buffer's shape, in the score dtype.
        load: the load.
        indices: its indices on these lanes, as tensors that broadcast over them or numbers.
        gradient: ``lanes.shape``, with a trailing axis for a vector load; an axis that the load
            does not vary along may be summed before, to one.
        lanes: the rectangle.
        values: the call's captures.
    """
    rank = 5 if load.length is not None else 4
    own = load_axes(load)
    rest = [axis for axis in range(rank) if axis not in own and gradient.shape[axis] > 1]
    if rest:
        gradient = gradient.sum(rest, keepdim=True)
    plain = {} if load in values.unproved else plain_axes(load)
    if len(plain) == target.dim():
        _add_slice(target, load, plain, gradient, lanes)
    else:
        _add_indexed(target, load, indices, gradient, rank)


def _add_slice(
    target: torch.Tensor, load: Node, plain: dict[int, int], gradient: torch.Tensor, lanes: Lanes
) -> None:
    for d, axis in plain.items():
        if axis != VECTOR_AXIS:
            start, stop = getattr(lanes, load.args[d].attr)
            target = target.narrow(d, start, stop - start)
    used = [plain[d] for d in range(target.dim())]
    unused = [axis for axis in range(gradient.dim()) if axis not in used]
    target.add_(gradient.permute(*unused, *used)[(0,) * len(unused)])


def _add_indexed(
    target: torch.Tensor, load: Node, indices: tuple[Any, ...], gradient: torch.Tensor, rank: int
) -> None:
    if not target.numel():
        return
    indexed = target.dim()
    if [d for d, arg in enumerate(load.args) if arg.length is not None] == [indexed - 1]:
        indexed -= is_whole_axis(load, indexed - 1)  # whole vectors are added at once
    flat: Any = 0
    for d, index in enumerate(indices[:indexed]):
        size = target.shape[d]
        t = torch.as_tensor(index, device=target.device)
        if rank == 5 and indexed == target.dim() and load.args[d].length is None and t.dim():
            t = t.unsqueeze(-1)
        t = torch.where(t < 0, t + size, t).clamp(0, max(size - 1, 0))  # torch's negative indices
        flat = flat * size + t
    flat = flat if isinstance(flat, torch.Tensor) else torch.tensor(flat, device=target.device)
    row = target.shape[indexed:]
    flat = flat.expand(gradient.shape[: gradient.dim() - len(row)]).reshape(-1)
    source, rows = gradient.reshape(-1, *row), target.view(-1, *row)
    if target.device.type == "cpu":
        rows.index_add_(0, flat, source)
    else:  # elsewhere index_add_ sums in any order; this one sorts first: the same bits each run
        rows.index_put_((flat,), source, accumulate=True)
