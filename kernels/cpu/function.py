"""The CPU backend's entry: a checked request -> out and lse, and their gradients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from flexfa4.frontend.analysis.bounds import Premises, premises, unproved_loads
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.pool import LARGE, Pool
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.cpu.backward import Saved, backward
from flexfa4.kernels.cpu.forward import forward
from flexfa4.kernels.cpu.plan import plan_for
from flexfa4.kernels.cpu.proofs import (
    factors_finite,
    fast_core,
    follows_diagonal,
    largest_score,
    scores_bounded,
)
from flexfa4.kernels.cpu.schedule import (
    SCORES_AT_ONCE,
    SCORES_AT_ONCE_WITH_CORE,
    Chunk,
    Problem,
    dense_schedule,
    mask_schedule,
    scratch_size,
)
from flexfa4.kernels.cpu.scores import Call
from flexfa4.kernels.request import Inputs, Request, Results
from flexfa4.primitives.online_softmax import LN2


class CpuBackend:
    """Tiles in plain torch; see `flexfa4.kernels.autograd.Backend`.

    Its lse is in base 2, and always returned.
    """

    lse_unit: Final = LN2

    def forward(self, request: Request, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the forward pass."""
        with _without_autocast(inputs.q.device):
            return forward(_call(request, inputs, request.tensors), inputs.sink)

    def gradients(
        self,
        request: Request,
        inputs: Sequence[Any],
        results: Results,
        wanted: Sequence[bool],
    ) -> list[torch.Tensor | None]:
        """Run the backward pass."""
        q, k, v, sink, *tensors = inputs
        grad_out = torch.zeros_like(results.out) if results.grad_out is None else results.grad_out
        saved = Saved(results.out, results.lse, grad_out, results.grad_lse, sink)
        with _without_autocast(q.device):
            call = _call(request, Inputs(q, k, v, sink), tuple(tensors), for_backward=True)
            found = backward(call, saved)
        buffers = request.score.graph.buffers if request.score is not None else ()
        grads = [found.q, found.k, found.v, found.sink, *(found.captures.get(b) for b in buffers)]
        return [
            g.to(x.dtype) if w and g is not None else None
            for g, x, w in zip(grads, inputs, wanted, strict=True)
        ]


CPU: Final = CpuBackend()


_AS_IT_IS: Final = contextlib.nullcontext()


def _without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which products of the score dtype stay in it."""
    if not torch._C._is_any_autocast_enabled():
        return _AS_IT_IS
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return _AS_IT_IS


def _call(
    request: Request,
    inputs: Inputs,
    tensors: tuple[torch.Tensor, ...],
    for_backward: bool = False,
) -> Call:
    """Return a call with all that is decided for it.

    Args:
        request: everything but the tensors.
        inputs: the tensors that belong to no mod.
        tensors: what the score mod captures.
        for_backward: of the backward pass, which has no use for fast cores, and none for tiles with
            copies: the gradients of their keys would be added up where they overlap.
    """
    score, blocks = request.score, request.blocks
    q, k, v, _ = inputs
    if score is not None and tensors:
        score = replace(score, tensors=tensors)
    sizes = inputs.sizes
    given = None if score is None else premises(score, sizes)
    graph = score.graph if score is not None else None
    mask = blocks.graph if blocks is not None else None
    plan = plan_for(graph, mask, request.needs_grad)
    if given is not None and plan.form.factors_to_check() and not factors_finite(given):
        plan = plan_for(graph, mask, request.needs_grad, fold=False)
    largest = largest_score(q, k, request.scale)
    core = None if for_backward else fast_core(given, plan, largest)
    bands = not for_backward and blocks is not None
    problem = Problem(
        sizes,
        join_batches=_joinable(k) and _joinable(v),
        scores_at_once=request.choices.scores_at_once
        or (SCORES_AT_ONCE_WITH_CORE if plan.form.core and not core else SCORES_AT_ONCE),
        bands=bands and (given is None or follows_diagonal(given, plan.form)),
    ).for_vectors(plan.shared_vector, plan.separate_vector)
    chunks = dense_schedule(problem) if blocks is None else mask_schedule(problem, blocks)
    values = _values(score, given, q, sizes, tensors)
    return Call(
        q=q,
        k=k,
        v=v,
        scale=request.scale,
        plan=plan,
        values=values,
        blocks=blocks,
        chunks=chunks,
        bounded=scores_bounded(given, largest),
        fast_core=core,
        pool=_pool(score, values, chunks),
    )


def _pool(score: BoundGraph | None, values: Values, chunks: tuple[Chunk, ...]) -> Pool | None:
    """Return memory for a score mod's temporaries, where they are large.

    None on other devices, whose allocators keep memory themselves.
    """
    if score is None or values.device.type != "cpu" or scratch_size(chunks) < LARGE:
        return None
    return Pool(values.dtype, values.device)


def _joinable(x: torch.Tensor) -> bool:
    """Whether batches and heads of keys or values form one axis without a copy."""
    return x.shape[0] > 1 and x.stride(0) == x.shape[1] * x.stride(1)


def _values(
    score: BoundGraph | None,
    given: Premises | None,
    q: torch.Tensor,
    sizes: Sizes,
    tensors: tuple[torch.Tensor, ...],
) -> Values:
    dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
    if score is None or given is None:
        return _sizes_alone(sizes, dtype, q.device)
    return Values(
        tensors=dict(zip(score.graph.buffers, tensors, strict=True)),
        scalars=dict(zip(score.graph.scalars, score.scalars, strict=True)),
        symbols=sizes.symbols(),
        dtype=dtype,
        device=q.device,
        unproved=unproved_loads(given) if tensors else frozenset(),
    )


@functools.lru_cache(maxsize=64)
def _sizes_alone(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Values:
    """Return the values of a call that captures nothing."""
    return Values(symbols=sizes.symbols(), dtype=dtype, device=device)
