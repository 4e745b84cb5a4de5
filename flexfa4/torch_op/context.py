"""Whether a call must be one op of torch's: something watches that cannot follow a backend's tiles.

Asked on every eager call, so it costs about a microsecond.  Dynamo is not found here: under it
`attention` takes another way from its first line on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

import torch
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from flexfa4.errors import TransformError

_tracer: Final = torch._C._get_tracing_state
_set_tracer: Final[Callable[[Any], None]] = torch._C._set_tracing_state  # type: ignore[attr-defined]
_dispatch_modes: Final = torch._C._len_torch_dispatch_stack
_transform: Final = torch._C._functorch.peek_interpreter_stack
_P = ParamSpec("_P")
_R = TypeVar("_R")
_PLAIN: Final = frozenset((torch.Tensor, torch.nn.Parameter))


def may_need_op(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sink: torch.Tensor | None
) -> bool:
    """Return whether to ask `needs_op`: something watches, or one of them is no plain tensor."""
    return not (
        type(query) in _PLAIN
        and type(key) in _PLAIN
        and type(value) in _PLAIN
        and (sink is None or type(sink) in _PLAIN)
        and _transform() is None
        and not _dispatch_modes()
        and _tracer() is None
        and forward_ad._current_level < 0
    )


def needs_op(*tensors: torch.Tensor | None) -> bool:
    """Return whether torch's machinery has to see the call as one op.

    It is asked for by dispatch modes of torch's own (fake tensors, tracing, selective
    checkpointing), ``torch.func`` transforms, ``torch.jit.trace`` and tensor subclasses.  Modes of
    users, such as one that counts operations, see a backend's tiles.

    Args:
        tensors: query, key, value and sink.

    Raises:
        TransformError: one of them carries a forward-mode derivative.
    """
    refuse_forward_mode(*tensors)
    if _transform() is not None or (_dispatch_modes() and _any_mode_of_torchs()):
        return True
    if _tracer() is not None:
        return True
    for tensor in tensors:
        if tensor is not None and type(tensor) not in _PLAIN:
            return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return False


def differentiates() -> bool:
    """Return whether ``torch.func`` differentiates: registered ops go with its other transforms.

    Raises:
        TransformError: there is ``functionalize``, too, which autograd functions do not go with.
    """
    kinds = {transform.key() for transform in retrieve_all_functorch_interpreters()}
    if kinds.isdisjoint((TransformType.Grad, TransformType.Jvp)):
        return False
    if TransformType.Functionalize in kinds:
        raise TransformError(
            transform="torch.func.functionalize together with grad, vjp or jacrev",
            expected="each of them alone",
            rewrite="the function itself for functionalize(function): attention changes no input",
        )
    return True


def _any_mode_of_torchs() -> bool:
    return any(
        mode.is_infra_mode() or type(mode).__module__ == "torch.utils.checkpoint"
        for mode in _get_current_dispatch_mode_stack()
    )


def untraced(check: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function of which ``torch.jit.trace`` sees nothing: to it, sizes are plain ints."""

    @functools.wraps(check)
    def unseen(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        tracer = _tracer()
        if tracer is None:
            return check(*args, **kwargs)
        _set_tracer(None)
        try:
            return check(*args, **kwargs)
        finally:
            _set_tracer(tracer)

    return unseen


def refuse_jit_trace(what: str, rewrite: str) -> None:
    """Refuse what ``torch.jit.trace`` would record as it was for the example inputs.

    Raises:
        TransformError: it records.
    """
    if _tracer() is not None:
        raise TransformError(
            transform=f"torch.jit.trace of {what}",
            expected="attention there, with masks as functions or made before; or torch.export",
            rewrite=rewrite,
        )


def refuse_forward_mode(*tensors: torch.Tensor | None) -> None:
    """Refuse tensors with a forward-mode derivative.

    Raises:
        TransformError: there is one.
    """
    if forward_ad._current_level < 0:
        return
    for tensor in tensors:
        if tensor is None:
            continue
        primal_and_tangent = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
        if primal_and_tangent.tangent is not None:
            raise forward_mode_error()


def forward_mode_error() -> TransformError:
    """Return the error for a forward-mode derivative."""
    return TransformError(
        transform="a forward-mode derivative through flexfa4.attention",
        expected="reverse mode: backward(), torch.autograd.grad, torch.func.grad, vjp and jacrev",
        rewrite="torch.func.vjp for jvp, torch.func.jacrev for jacfwd",
    )
