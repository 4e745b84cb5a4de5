"""Backward: tiles -> gradients of q, k, v, sink and captured tensors.

The scores of a tile are computed again and turned into probabilities with the saved log-sum-exp
(FlashAttention, arXiv 2205.14135, section 3 and appendix B).  With ``P`` the probabilities, ``dP =
dO V^T`` and ``delta = rowsum(dO * O) - dlse``::

    dS = P * (dP - delta)
    dV = P^T dO     dQ = dS K     dK = dS^T Q
    dsink = -sum p_sink * delta

where ``dS`` is then multiplied by the derivative of the score mod, if that is not one.  What
captured tensors get of ``dS`` is the business of `captures_grad`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from flexfa4.frontend.ir import Buffer
from flexfa4.frontend.lanes import Lanes
from flexfa4.kernels.cpu import scores as tiles
from flexfa4.kernels.cpu.captures_grad import Rectangle, add_captured
from flexfa4.kernels.cpu.schedule import Chunk, scratch_size
from flexfa4.kernels.cpu.scores import Call
from flexfa4.primitives.key_runs import KeyRun, QueryTile
from flexfa4.primitives.online_softmax import LN2, LOG2E


@dataclass(frozen=True, eq=False)
class Saved:
    """What the forward pass leaves for the backward pass, and the gradients that come in.

    Attributes:
        out, grad_out: ``(B, Hq, Lq, Dv)``.
        lse: ``(B, Hq, Lq)``, base 2; grad_lse: the gradient of the natural one, or None.
        sink: ``(Hq,)`` or None.
    """

    out: torch.Tensor
    lse: torch.Tensor
    grad_out: torch.Tensor
    grad_lse: torch.Tensor | None
    sink: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients, in the score dtype and of the inputs' shapes.

    Attributes:
        q, k, v: of query, key and value.
        sink: ``(Hq,)`` or None.
        captures: of each captured tensor that needs one.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sink: torch.Tensor | None
    captures: dict[Buffer, torch.Tensor]


def backward(call: Call, saved: Saved) -> Gradients:
    """Compute the gradients of one call."""
    grads = Gradients(
        q=torch.zeros_like(call.q, dtype=call.dtype, memory_format=torch.contiguous_format),
        k=torch.zeros_like(call.k, dtype=call.dtype, memory_format=torch.contiguous_format),
        v=torch.zeros_like(call.v, dtype=call.dtype, memory_format=torch.contiguous_format),
        sink=None if saved.sink is None else torch.zeros_like(saved.sink, dtype=call.dtype),
        captures={
            g.load.attr: torch.zeros(
                call.values.tensors[g.load.attr].shape, dtype=call.dtype, device=call.q.device
            )
            for g in call.plan.loads
        },
    )
    if call.chunks:
        size = scratch_size(call.chunks)
        scratch = torch.empty(2, size, dtype=call.dtype, device=call.q.device)
        with tiles.unrecorded():
            for chunk in call.chunks:
                for tile in chunk.tiles:
                    _backward_tile(call, saved, grads, chunk, tile, scratch)
        if call.plan.form.core is None:
            grads.k.mul_(LN2)  # the packed queries carried log2(e)
    elif saved.sink is not None and saved.grad_lse is not None:
        assert grads.sink is not None
        grads.sink.add_(saved.grad_lse.sum((0, 2)))  # lse is the sink where there are no keys
    return grads


@dataclass(frozen=True, eq=False)
class _Rows:
    """One query tile's rows, packed for the products where three-dimensional."""

    queries: torch.Tensor  # (n, packed rows, D), with the factor of `factors.query`
    grad_out: torch.Tensor  # (n, packed rows, Dv)
    lse: torch.Tensor  # (b, h, rows, 1), base 2, finite
    delta: torch.Tensor  # (b, h, rows, 1)
    factors: tiles.RowFactors


def _backward_tile(
    call: Call,
    saved: Saved,
    grads: Gradients,
    chunk: Chunk,
    tile: QueryTile,
    scratch: torch.Tensor,
) -> None:
    """Add one query tile's share to every gradient."""
    at = (slice(*chunk.b), slice(*chunk.h), slice(tile.start, tile.stop))
    grad_out = saved.grad_out[at].to(call.dtype)
    delta = (grad_out * saved.out[at].to(call.dtype)).sum(-1, keepdim=True)
    lse = saved.lse[at].unsqueeze(-1)
    empty = lse == -math.inf
    if saved.grad_lse is not None:
        # an empty row's lse is constant, whatever gradient comes in (NaN is usual: inf - inf)
        delta = delta - torch.where(empty, 0.0, saved.grad_lse[at].unsqueeze(-1))
    if saved.sink is not None:
        assert grads.sink is not None
        sink = (saved.sink[chunk.h[0] : chunk.h[1]].to(call.dtype) * LOG2E)[:, None, None]
        exponent = torch.where(sink == lse, 0.0, sink - lse)  # of two infinities, too
        weight = torch.where(empty, 0.0, exponent.exp2())
        grads.sink[chunk.h[0] : chunk.h[1]] -= (weight * delta).sum((0, 2, 3))
    if not tile.runs:
        return
    factors = tiles.row_factors(call, chunk, tile)
    queries = tiles.query_rows(call, chunk, tile, factors.query)
    rows = _Rows(
        queries,
        grad_out.reshape(queries.shape[0], queries.shape[1], -1),
        torch.where(empty, 0.0, lse),
        delta,
        factors,
    )
    grad_q = torch.zeros_like(queries)
    for run in tile.runs:
        _backward_run(call, grads, chunk, tile, run, rows, grad_q, scratch)
        if call.pool is not None:
            call.pool.reclaim()
    grad_q4 = grad_q.view(*grad_out.shape[:3], -1)
    torch.mul(grad_q4, factors.gradient, out=grads.q[at])


def _backward_run(
    call: Call,
    grads: Gradients,
    chunk: Chunk,
    tile: QueryTile,
    run: KeyRun,
    rows: _Rows,
    grad_q: torch.Tensor,
    scratch: torch.Tensor,
) -> None:
    """Add the share of one rectangle."""
    plan = call.plan
    lanes = Lanes(chunk.b, chunk.h, (tile.start, tile.stop), (run.start, run.stop))
    keys = tiles.key_rows(call.k, call, chunk, tile, run)
    values = tiles.key_rows(call.v, call, chunk, tile, run)
    score = tiles.raw_scores(call, chunk, tile, rows.queries, keys, scratch[0])
    visible = tiles.visible_lanes(call, lanes, run)
    derived: tuple[Any, ...] = ()
    if plan.backward is not None:
        derived = plan.backward.run(call.values, lanes, score, visible, call.pool)
        if plan.form.core is not None:
            score = derived[0].expand(score.shape).contiguous()
            tiles.to_base2(score, rows.factors.outer)
    shift = tiles.add_bias(call, score, lanes, visible)
    score.sub_(rows.lse if shift is None else rows.lse - shift).exp2_()
    if run.partial:
        tiles.mask_run(call, lanes, run, score, 0.0)
    packed = (rows.queries.shape[0], rows.queries.shape[1], run.stop - run.start)

    probability = score.view(packed)
    at = _key_slice(chunk, run, call.v)
    _add_product(grads.v[at], probability.transpose(1, 2), rows.grad_out)

    grad_score = scratch[1][: score.numel()].view(packed)
    torch.bmm(rows.grad_out, values.transpose(1, 2), out=grad_score)
    grad = grad_score.view(score.shape).sub_(rows.delta).mul_(score)
    if plan.loads:
        again = functools.partial(tiles.raw_scores, call, chunk, tile, rows.queries, keys, None)
        add_captured(grads.captures, grad, Rectangle(call, run, lanes, visible, derived, again))
    if plan.form.ignores_score:
        return
    if plan.form.core is not None:
        grad.mul_(derived[1])
        if rows.factors.outer is not None:
            grad.mul_(rows.factors.outer)
        if run.partial:  # 0 * inf: the derivative of a masked lane may be anything
            tiles.mask_run(call, lanes, run, grad, 0.0)
    grad_q.baddbmm_(grad_score, keys)
    _add_product(grads.k[_key_slice(chunk, run, call.k)], grad_score.transpose(1, 2), rows.queries)


def _key_slice(chunk: Chunk, run: KeyRun, x: torch.Tensor) -> tuple[slice, slice, slice]:
    b = chunk.b if x.shape[0] > 1 else (0, 1)
    return slice(*b), slice(*chunk.kv_heads), slice(run.start, run.stop)


def _add_product(target: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Add ``a @ b`` to a ``(batch, kv heads, keys, D)`` slice of a gradient."""
    if target.shape[0] == 1:
        target[0].baddbmm_(a, b)
    else:
        target.add_(torch.bmm(a, b).view(target.shape))
