"""The ops under ``torch.func``: autograd functions that its transforms understand.

Registered ops have vmap rules, but their derivatives do not go with ``torch.func.grad``, which asks
for an ``autograd.Function`` that keeps its inputs by ``setup_context``.  These two do; innermost
they call the ops.  What a mapped axis means is the business of `folding`.
"""

from __future__ import annotations

from typing import Any

import torch

from flexfa4.errors import SecondDerivativeError
from flexfa4.torch_op import folding, ops
from flexfa4.torch_op.arguments import EMPTY, Arguments
from flexfa4.torch_op.context import forward_mode_error


def attention(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what ``flexfa4::attention`` does, under any stack of ``torch.func`` transforms."""
    rest, tensors = Arguments(*arguments).partition()
    out, lse = _Attention.apply(rest, *tensors)  # type: ignore[no-untyped-call]
    return out, lse


def attention_backward(
    grad_out: torch.Tensor | None,
    grad_lse: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    wanted: list[bool],
    *arguments: Any,
) -> tuple[torch.Tensor, ...]:
    """Return what ``flexfa4::attention_backward`` does, likewise."""
    rest, tensors = Arguments(*arguments).partition()
    results = (grad_out, grad_lse, out, lse)
    grads: tuple[torch.Tensor, ...] = _Gradients.apply(rest, tuple(wanted), *results, *tensors)  # type: ignore[no-untyped-call]
    return grads


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(rest: Arguments, *tensors: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = ops.attention(*rest.combine(tensors))
        return out, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.rest = inputs[0]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output, *inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad_out: Any, grad_lse: Any) -> tuple[Any, ...]:
        out, lse, *tensors = ctx.saved_tensors
        a = ctx.rest.combine(tensors)
        needed = EMPTY.combine(ctx.needs_input_grad[1:])
        grads = ops.differentiate(attention_backward, (grad_out, grad_lse, out, lse), a, needed)
        return None, *grads.partition()[1]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], rest: Arguments, *tensors: Any) -> Any:
        dims = EMPTY.combine(in_dims[1:])
        return folding.attention(info, dims, *rest.combine(tensors), run=attention)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise forward_mode_error()


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(rest: Arguments, wanted: tuple[bool, ...], *tensors: Any) -> Any:
        a = rest.combine(tensors[4:])
        return tuple(ops.attention_backward(*tensors[:4], list(wanted), *a))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keep nothing: no derivative of a gradient is taken."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise SecondDerivativeError

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        rest: Arguments,
        wanted: tuple[bool, ...],
        *tensors: Any,
    ) -> Any:
        dims = (*in_dims[2:6], None, *EMPTY.combine(in_dims[6:]))
        a = rest.combine(tensors[4:])
        grads, axes = folding.attention_backward(
            info, dims, *tensors[:4], list(wanted), *a, run=attention_backward
        )
        return tuple(grads), tuple(axes)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise forward_mode_error()
