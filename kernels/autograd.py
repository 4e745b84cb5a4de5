"""Autograd around a backend: saves inputs, out and lse, and computes the scores again.

One function of torch's for all backends.  A backend gives the results of a forward pass, and the
gradients of what it gave; what is saved, when gradients are needed at all, batches of gradients and
second derivatives are decided here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from flexfa4.errors import SecondDerivativeError
from flexfa4.kernels.gradient_batches import for_each
from flexfa4.kernels.request import Inputs, Request, Results


class Backend(Protocol):
    """Who computes a call."""

    @property
    def lse_unit(self) -> float:
        """Natural logarithm of the base in which `forward` returns lse."""

    def forward(self, request: Request, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return out ``(B, Hq, Lq, Dv)``, in q's dtype, and lse ``(B, Hq, Lq)``.

        lse is fp32, fp64 for fp64 inputs; it may be None where the request does not want it and
        nothing is to be differentiated.
        """

    def gradients(
        self,
        request: Request,
        inputs: Sequence[Any],
        results: Results,
        wanted: Sequence[bool],
    ) -> list[torch.Tensor | None]:
        """Return the gradient of each input, in its dtype; None where it is not wanted.

        Args:
            request: that of the forward pass; what it captures comes from `inputs`.
            inputs: q, k, v, sink (or None) and what the score mod captures.
            results: what the forward pass gave, and the gradients that come in.
            wanted: for each of `inputs` whether its gradient is wanted.
        """


class DifferentiableBackend:  # no ABC: `isinstance` would take half a microsecond of each call
    """A backend that torch's autograd follows, with no help of this module."""

    @abstractmethod
    def attend(
        self, request: Request, inputs: Inputs, differentiable: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return out and lse, as `attend` of this module does."""


def needs_gradients(request: Request, inputs: Inputs) -> bool:
    """Return whether autograd has to follow a call."""
    q, k, v, sink = inputs
    return torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or bool(request.needs_grad)
        or (sink is not None and sink.requires_grad)
    )


def attend(
    backend: Backend, request: Request, inputs: Inputs, differentiable: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run a backend, followed by autograd or not.

    Args:
        backend: who computes.
        request: everything but the tensors that belong to no mod.
        inputs: these tensors.
        differentiable: autograd follows, see `needs_gradients`.

    Returns:
        out ``(B, Hq, Lq, Dv)`` in q's dtype, lse ``(B, Hq, Lq)``, natural logarithm, None where it
        is not wanted.
    """
    if differentiable:
        given = (*inputs, *request.tensors)
        if any([t is not None and t.is_inference() for t in given]):
            given = tuple([_keepable(t) for t in given])
        found = _Attention.apply(backend, request, *given)  # type: ignore[no-untyped-call]
        return found if request.return_lse else (found, None)
    out, lse = backend.forward(request, inputs)
    if not request.return_lse or lse is None:
        return out, None
    return out, lse if backend.lse_unit == 1 else lse.mul_(backend.lse_unit)


def _keepable(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return what autograd accepts to keep: a copy of an inference tensor."""
    return tensor.clone() if tensor is not None and tensor.is_inference() else tensor


class _Attention(torch.autograd.Function):
    """See the module."""

    @staticmethod
    def forward(
        ctx: Any,
        backend: Backend,
        request: Request,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sink: torch.Tensor | None,
        *tensors: torch.Tensor,
    ) -> Any:
        out, lse = backend.forward(request.with_tensors(tensors), Inputs(q, k, v, sink))
        assert lse is not None
        ctx.backend = backend
        ctx.request = request.with_tensors(())  # autograd keeps tensors, as it is told
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, sink, out, lse, *tensors)
        if not request.return_lse:
            return out
        return out, lse if backend.lse_unit == 1 else lse * backend.lse_unit

    @staticmethod
    def backward(
        ctx: Any, grad_out: torch.Tensor | None, grad_lse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor | None, ...]:
        q, k, v, sink, out, lse, *tensors = ctx.saved_tensors
        backend: Backend = ctx.backend
        if grad_out is None and grad_lse is None:
            return (None,) * (6 + len(tensors))
        inputs = (q, k, v, sink, *tensors)

        def differentiate(*grads: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
            results, wanted = Results(out, lse, *grads), ctx.needs_input_grad[2:]
            if not torch.is_grad_enabled():
                return backend.gradients(ctx.request, inputs, results, wanted)
            with torch.no_grad():
                found = backend.gradients(ctx.request, inputs, results, wanted)
            # create_graph=True: fail where the second derivative is taken
            present = [g for g in found if g is not None]
            sources = [t for t in (*inputs, *grads) if t is not None]
            marked = iter(_OnlyFirstDerivative.apply(len(present), *present, *sources))  # type: ignore[no-untyped-call]
            return [None if g is None else next(marked) for g in found]

        return None, None, *for_each(differentiate, grad_out, grad_lse)


class _OnlyFirstDerivative(torch.autograd.Function):
    """Identity on gradients that raises when it is itself differentiated."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t.clone() for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise SecondDerivativeError
