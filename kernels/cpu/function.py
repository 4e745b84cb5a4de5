"""The CPU backend's entry: a checked request -> out and lse, with autograd around it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flexfa4.errors import SecondDerivativeError
from flexfa4.frontend.analysis.bounds import Premises, premises, unproved_loads
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import Buffer
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.pool import LARGE, Pool
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.cpu.backward import Saved, backward
from flexfa4.kernels.cpu.forward import forward
from flexfa4.kernels.cpu.gradient_batches import for_each
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
from flexfa4.primitives.online_softmax import LN2, LOG2E


@dataclass(frozen=True, eq=False)
class Results:
    """What a forward pass gave, and the gradients of it that come in, each of which may be None.

    Attributes:
        out, grad_out: ``(B, Hq, Lq, Dv)``.
        lse: ``(B, Hq, Lq)``, base 2; grad_lse: the gradient of the natural one.
    """

    out: torch.Tensor
    lse: torch.Tensor
    grad_out: torch.Tensor | None
    grad_lse: torch.Tensor | None

    @classmethod
    def natural(
        cls,
        out: torch.Tensor,
        lse: torch.Tensor,
        grad_out: torch.Tensor | None,
        grad_lse: torch.Tensor | None,
    ) -> Results:
        """Return the results of `attend`, whose lse is the natural logarithm."""
        return cls(out, lse * LOG2E, grad_out, grad_lse)


@dataclass(frozen=True, eq=False)
class Request:
    """A call whose arguments have been checked.

    Attributes:
        score: the score mod with its captures, or None.
        blocks: the mask with its blocks, or None.
        scale: factor of ``q . k``.
        needs_grad: buffers of the score mod that need gradients.
        return_lse: the log-sum-exp is wanted.
        scores_at_once: see `schedule.SCORES_AT_ONCE`; None is the default.
    """

    score: BoundGraph | None
    blocks: MaskBlocks | None
    scale: float
    needs_grad: frozenset[Buffer]
    return_lse: bool
    scores_at_once: int | None = None


def attend(
    request: Request,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sink: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run attention.

    Args:
        request: everything but the tensors that may need gradients.
        q: ``(B, Hq, Lq, D)``.
        k: ``(B or 1, Hkv, Lk, D)``.
        v: ``(B or 1, Hkv, Lk, Dv)``.
        sink: ``(Hq,)`` or None.

    Returns:
        out ``(B, Hq, Lq, Dv)`` in q's dtype, lse ``(B, Hq, Lq)``, natural logarithm, in fp32
        (fp64 for fp64 inputs), None where it is not wanted.
    """
    with _without_autocast(q.device):
        return _attend(request, q, k, v, sink)


def gradients(
    request: Request,
    inputs: Sequence[Any],
    results: Results,
    wanted: Sequence[bool],
) -> list[torch.Tensor | None]:
    """Run the backward pass of a request.

    Args:
        request: that of the forward pass; the tensors that it captures come from `inputs`.
        inputs: q, k, v, sink (or None) and what the score mod captures.
        results: what the forward pass gave, and the gradients that come in.
        wanted: for each of `inputs` whether its gradient is wanted.

    Returns:
        The gradient of each of `inputs`, in its dtype; None where it is not wanted.
    """
    q, k, v, sink, *tensors = inputs
    grad_out = torch.zeros_like(results.out) if results.grad_out is None else results.grad_out
    saved = Saved(results.out, results.lse, grad_out, results.grad_lse, sink)
    with _without_autocast(q.device):
        found = backward(_call(request, q, k, v, tuple(tensors), for_backward=True), saved)
    buffers = request.score.graph.buffers if request.score is not None else ()
    grads = [found.q, found.k, found.v, found.sink, *(found.captures.get(b) for b in buffers)]
    return [
        g.to(x.dtype) if w and g is not None else None
        for g, x, w in zip(grads, inputs, wanted, strict=True)
    ]


def _without_tensors(request: Request) -> Request:
    """Return a request that keeps no captured tensor alive: autograd keeps them, as it is told."""
    if request.score is None or not request.score.tensors:
        return request
    return replace(request, score=replace(request.score, tensors=()))


def _without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which products of the score dtype stay in it."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()


def _attend(
    request: Request,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sink: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    tensors = request.score.tensors if request.score is not None else ()
    if torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or request.needs_grad
        or (sink is not None and sink.requires_grad)
    ):
        inputs = (q, k, v, sink, *tensors)
        if any([t is not None and t.is_inference() for t in inputs]):
            inputs = tuple([_keepable(t) for t in inputs])
        found = _Attention.apply(request, *inputs)  # type: ignore[no-untyped-call]
        return found if request.return_lse else (found, None)
    out, lse = forward(_call(request, q, k, v, tensors), sink)
    return out, lse.mul_(LN2) if request.return_lse else None


def _keepable(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return what autograd accepts to keep: a copy of an inference tensor."""
    return tensor.clone() if tensor is not None and tensor.is_inference() else tensor


def _call(
    request: Request,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensors: tuple[torch.Tensor, ...],
    for_backward: bool = False,
) -> Call:
    """Return a call with all that is decided for it.

    Args:
        request: everything but the tensors.
        q: as for `attend`.
        k: as for `attend`.
        v: as for `attend`.
        tensors: what the score mod captures.
        for_backward: of the backward pass, which has no use for fast cores, and none for tiles with
            copies: the gradients of their keys would be added up where they overlap.
    """
    score, blocks = request.score, request.blocks
    if score is not None and tensors:
        score = replace(score, tensors=tensors)
    sizes = Sizes(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2])
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
        scores_at_once=request.scores_at_once
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
        return Values(symbols=sizes.symbols(), dtype=dtype, device=q.device)
    return Values(
        tensors=dict(zip(score.graph.buffers, tensors, strict=True)),
        scalars=dict(zip(score.graph.scalars, score.scalars, strict=True)),
        symbols=sizes.symbols(),
        dtype=dtype,
        device=q.device,
        unproved=unproved_loads(given) if tensors else frozenset(),
    )


class _Attention(torch.autograd.Function):
    """Autograd around the tiles: saves inputs, out and lse, and computes the scores again."""

    @staticmethod
    def forward(
        ctx: Any,
        request: Request,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sink: torch.Tensor | None,
        *tensors: torch.Tensor,
    ) -> Any:
        out, lse = forward(_call(request, q, k, v, tensors), sink)
        ctx.request = _without_tensors(request)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, sink, out, lse, *tensors)
        return (out, lse * LN2) if request.return_lse else out

    @staticmethod
    def backward(
        ctx: Any, grad_out: torch.Tensor | None, grad_lse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor | None, ...]:
        q, k, v, sink, out, lse, *tensors = ctx.saved_tensors
        request: Request = ctx.request
        if grad_out is None and grad_lse is None:
            return (None,) * (5 + len(tensors))
        inputs = (q, k, v, sink, *tensors)

        def differentiate(*grads: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
            with torch.no_grad():
                results = Results(out, lse, *grads)
                found = gradients(request, inputs, results, ctx.needs_input_grad[1:])
            if not torch.is_grad_enabled():
                return found
            # create_graph=True: fail where the second derivative is taken
            present = [g for g in found if g is not None]
            sources = [t for t in (*inputs, *grads) if t is not None]
            marked = iter(_OnlyFirstDerivative.apply(len(present), *present, *sources))  # type: ignore[no-untyped-call]
            return [None if g is None else next(marked) for g in found]

        return None, *for_each(differentiate, grad_out, grad_lse)


class _OnlyFirstDerivative(torch.autograd.Function):
    """Identity on gradients that raises when it is itself differentiated."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t.clone() for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise SecondDerivativeError
