"""Whether a call must be one op of torch's: something watches that cannot follow a backend's tiles.

Asked on every eager call, so it costs about a microsecond.  Dynamo is not found here: under it
`attention` takes another way from its first line on.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from flexfa4.errors import TransformError

_dispatch_modes: Final = torch._C._len_torch_dispatch_stack
_transform: Final = torch._C._functorch.peek_interpreter_stack
_PLAIN: Final = frozenset((torch.Tensor, torch.nn.Parameter))


def needs_op(*tensors: torch.Tensor | None) -> bool:
    """Return whether torch's machinery has to see the call as one op.

    It is asked for by dispatch modes of torch's own (fake tensors, tracing, selective
    checkpointing), ``torch.func`` transforms and tensor subclasses.  Modes of users, such as one
    that counts operations, see a backend's tiles.

    Args:
        tensors: query, key, value and sink.

    Raises:
        TransformError: one of them carries a forward-mode derivative.
    """
    refuse_forward_mode(*tensors)
    if _transform() is not None or (_dispatch_modes() and _any_mode_of_torchs()):
        return True
    for tensor in tensors:
        if tensor is not None and type(tensor) not in _PLAIN:
            return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return False


def _any_mode_of_torchs() -> bool:
    return any(
        mode.is_infra_mode() or type(mode).__module__ == "torch.utils.checkpoint"
        for mode in _get_current_dispatch_mode_stack()
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
