"""Gradients of captured tensors: a rectangle's share of each, added into the buffer that was read.

A share is the gradient of the scores times the derivative of the mod, as sums of products
(`products`), or as the mod is written where that gives no finite result.  A load that does not vary
along an axis gets the sum over that axis first, so that a slope for each head costs one reduction.
Sums are kept in the score dtype (fp32 for bf16 buffers); how they are added up is the business of
`kernels.load_gradients`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flexfa4.frontend.contraction import sum_of_products
from flexfa4.frontend.ir import Buffer
from flexfa4.frontend.lanes import Lanes
from flexfa4.kernels.cpu import scores as tiles
from flexfa4.kernels.cpu.plan import LoadGradient
from flexfa4.kernels.cpu.scores import Call
from flexfa4.kernels.load_gradients import accumulate, load_axes
from flexfa4.primitives.key_runs import KeyRun


@dataclass(frozen=True, eq=False)
class Rectangle:
    """A rectangle of scores in the backward pass.

    Attributes:
        call: the call; run: the run of keys.
        lanes: the rectangle; visible: which of its lanes are, where loads ask for it.
        results: what `CpuPlan.backward` gave.
        score: computes the scores before the mod again.
    """

    call: Call
    run: KeyRun
    lanes: Lanes
    visible: torch.Tensor | None
    results: tuple[Any, ...]
    score: Callable[[], torch.Tensor]


def add_captured(captures: dict[Buffer, torch.Tensor], grad: torch.Tensor, at: Rectangle) -> None:
    """Add the share of a rectangle to the gradients of captured tensors.

    Args:
        captures: the gradients so far, in the score dtype.
        grad: those of the modified scores, ``at.lanes.shape``; masked lanes become zero.
        at: the rectangle.
    """
    call = at.call
    if at.run.partial:
        tiles.mask_run(call, at.lanes, at.run, grad, 0.0)
    for item in call.plan.loads:
        share = _share(item, grad, at)
        if share is None:
            continue
        if item.load.length is not None:
            share = share.expand(*share.shape[:-1], item.load.length)
        indices = item.indices.run(call.values, at.lanes, visible=at.visible)
        accumulate(captures[item.load.attr], item.load, indices, share, at.lanes, call.values)


def _share(item: LoadGradient, grad: torch.Tensor, at: Rectangle) -> torch.Tensor | None:
    """Return a load's gradient on a rectangle; None: the load does not matter.

    A finite result of regrouped factors had finite factors, and is right.  Whether it is finite is
    read on a CPU only: elsewhere that waits for all work, so the factors stay as they are written.
    """
    if item.one:
        return grad if item.load.length is None else grad.unsqueeze(-1)
    if grad.device.type == "cpu":
        found = _regrouped(item, grad, at)
        if found is None or math.isfinite(found.sum()):  # so is each element
            return found
    return _written(item, grad, at)


def _regrouped(item: LoadGradient, grad: torch.Tensor, at: Rectangle) -> torch.Tensor | None:
    """Return a load's gradient on a rectangle, summed over what the load does not vary along.

    It is right where it is finite.  None: the load does not matter.
    """
    rank = 4 if item.load.length is None else 5
    summed, pool = set(range(rank)) - load_axes(item.load), at.call.pool
    total: torch.Tensor | None = None
    for term in item.terms:
        factor, inner, outer = (
            None if f is None else _aligned(at.results[f.position], f.vector, grad, rank)
            for f in (term.per_score, term.inner, term.outer)
        )
        share = grad if rank == 4 else grad.unsqueeze(-1)
        if factor is not None:
            room = None if pool is None else pool.lend(share.shape)
            share = torch.mul(share, factor, out=room)
            if at.run.partial:  # 0 * inf
                tiles.mask_run(at.call, at.lanes, at.run, share.view(grad.shape), 0.0)
        if inner is not None:
            later = set() if outer is None else {d for d in summed if outer.shape[d] > 1}
            whole, share = share, sum_of_products(share, inner, summed - later, rank, pool)
            if pool is not None:
                pool.give_back(whole)
        if outer is not None:
            share = sum_of_products(share, outer, summed, rank, pool)
        total = share if total is None else total + share
    return total


def _aligned(value: Any, vector: bool, like: torch.Tensor, rank: int) -> torch.Tensor:
    """Return a factor, a tensor or a number, with `rank` axes and the dtype of `like`."""
    t = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if rank == 5 and not vector:
        t = t.unsqueeze(-1)
    return t.reshape((1,) * (rank - t.dim()) + t.shape)


def _written(item: LoadGradient, grad: torch.Tensor, at: Rectangle) -> torch.Tensor:
    """Return a load's gradient on each lane of a rectangle, whatever takes part on masked ones."""
    score = at.score() if "score" in item.derivative.depends else None
    (factor,) = item.written.run(at.call.values, at.lanes, score, at.visible)
    vector = item.load.length is not None
    if isinstance(factor, torch.Tensor) and vector and item.derivative.length is None:
        factor = factor.unsqueeze(-1) if factor.dim() else factor
    share: torch.Tensor = (grad.unsqueeze(-1) if vector else grad) * factor
    if at.run.partial:
        _zero_masked(share, at)
    return share


def _zero_masked(share: torch.Tensor, at: Rectangle) -> None:
    """Set masked lanes of a capture's share to zero: its factor may be NaN or infinite there."""
    call, lanes, run = at.call, at.lanes, at.run
    if share.dim() == 4:
        tiles.mask_run(call, lanes, run, share, 0.0)
        return
    for start, stop in run.partial:
        keep, _ = tiles.mask_bits(call, Lanes(lanes.b, lanes.h, lanes.q, (start, stop)))
        columns = share[..., start - run.start : stop - run.start, :]
        columns.masked_fill_((keep == 0).unsqueeze(-1), 0.0)
