"""The backends by name, and which one serves a call.

``"sm90"`` and the like name a compute capability as compilers do: a product's name would not say
which cards are meant.  A backend that is named serves the call or says why it does not; no other is
taken in its place.  On a GPU ``"auto"`` takes the first of these that serves the call: the kernels
for this GPU, if any GPU has run them, torch's compiled FlexAttention, the CPU backend's torch code.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch

from flexfa4.frontend.binding import BoundGraph
from flexfa4.kernels import autograd
from flexfa4.kernels.architectures import AUTOMATIC, CAPABILITIES, architecture, named
from flexfa4.kernels.errors import CallMemoryError
from flexfa4.kernels.flex.errors import FlexCompileError
from flexfa4.kernels.forward import function as forward
from flexfa4.kernels.launch.emulated import emulated_target
from flexfa4.kernels.launch.target import Target, target_of
from flexfa4.kernels.refusal import BackendWarning, Refusal
from flexfa4.kernels.request import Inputs, Request

if TYPE_CHECKING:
    from flexfa4.kernels.varlen.call import Ends

NAMES: Final = (
    "auto", "cpu", "flex", "sm90", "sm100",
    "emulator", "emulator:sm_90a", "emulator:sm_103a",
)  # fmt: skip
"""What `backend` may be.  ``"emulator"`` runs kernels for GPUs on tensors of the CPU: those for
``sm_100a``, or what is named behind it."""


def attend(request: Request, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run attention.

    Args:
        request: everything but the tensors that belong to no mod.
        inputs: these tensors.

    Returns:
        out ``(B, Hq, Lq, Dv)`` in q's dtype, lse ``(B, Hq, Lq)``, natural logarithm, in fp32
        (fp64 for fp64 inputs), None where it is not wanted.

    Raises:
        UnservedCallError: the backend that was named does not serve the call.
        KernelLimitError: likewise, because of a mod.
        CompileError: a kernel has to be compiled and cannot be.
        LaunchError: a kernel cannot be launched.
        FlexCompileError: torch was named to compile a call, and cannot.
        CallMemoryError: the device has too little free memory.
    """
    differentiable = autograd.needs_gradients(request, inputs)
    lse = differentiable or request.return_lse
    try:
        backend = backend_for(request, inputs, lse)
        if isinstance(backend, autograd.DifferentiableBackend):
            try:
                return backend.attend(request, inputs, differentiable)
            except FlexCompileError as error:
                if request.choices.backend != "auto":
                    raise
                _warn(str(error).splitlines()[0], 'backend="cpu", which does as much without a try')
            backend = backend_for(request, inputs, lse)  # which knows of the failure
        return autograd.attend(backend, request, inputs, differentiable)
    except torch.OutOfMemoryError as error:
        raise _memory_error(error, request, inputs, differentiable) from error


def backend_for(request: Request, inputs: Inputs, lse: bool) -> autograd.Backend:
    """Return who computes a call.  Raises as `attend`.

    Args:
        request: everything but the tensors that belong to no mod.
        inputs: these tensors.
        lse: it is wanted, or needed for gradients.
    """
    name = request.choices.backend
    if name == "cpu" or (name == "auto" and not inputs.q.is_cuda):
        return _cpu()
    refused: list[Refusal] = []
    for serving in (name,) if name != "auto" else (*AUTOMATIC, "flex"):
        found = _SERVING[serving](request, inputs, lse)
        if not isinstance(found, Refusal):
            return found
        if name != "auto":
            raise found.error(name)
        refused.append(found)
    for found in refused:
        if found.lacking:
            _warn(found.found, found.rewrite)
    return _cpu()


# Backends are imported when they are first asked: a process begins with the import.


@functools.cache
def _cpu() -> autograd.Backend:
    from flexfa4.kernels.cpu.function import CPU

    return CPU


def _kernels(backend: str, request: Request, inputs: Inputs, lse: bool) -> forward.Prepared:
    """Return what serves a call on the GPUs that a backend is for."""
    target = target_of(inputs.q.device)
    if request.choices.backend == "auto" and (
        target is None or CAPABILITIES.get(target.capability) != backend
    ):
        return _OTHER_GPU
    return forward.prepared(backend, request, inputs, target, lse)


def _emulated(name: str, request: Request, inputs: Inputs, lse: bool) -> forward.Prepared:
    """Return what serves a call on the CPU, by the kernels for a GPU."""
    device = inputs.q.device
    if device.type != "cpu":
        rewrite = "query, key, value = query.cpu(), key.cpu(), value.cpu()"
        return Refusal(f"tensors on {device}", "tensors on the CPU, where it runs", rewrite)
    known = named(name)
    target = emulated_target(known.capability_of(name))
    return forward.prepared(known.backend, request, inputs, target, lse)


def _flex(request: Request, inputs: Inputs, lse: bool) -> autograd.Backend | Refusal:
    if 0 in inputs.q.shape or inputs.k.shape[2] == 0:  # nothing that torch would compile
        return _cpu()
    from flexfa4.kernels.flex.function import prepared

    return prepared(request, inputs, lse)


def attend_varlen(
    request: Request, mask: BoundGraph | None, inputs: Inputs, ends: Ends
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Run attention on packed sequences whose lengths the host does not know.

    Args:
        request: everything but tensors and mask.
        mask: of one sequence; None for none.
        inputs: all sequences as one row, of a batch of 1.
        ends: where each of them ends.

    Returns:
        As `attend`; None where no backend does this, and the lengths have to be read.

    Raises:
        CompileError: a kernel has to be compiled and cannot be.
        LaunchError: a kernel cannot be launched.
        CallMemoryError: the device has too little free memory.
    """
    if autograd.needs_gradients(request, inputs):
        return None
    from flexfa4.kernels.forward import varlen
    from flexfa4.kernels.forward.varlen_call import VarlenCall

    emulated = request.choices.backend == _EMULATED_HOPPER
    target = emulated_target((9, 0)) if emulated else target_of(inputs.q.device)
    serving = None if target is None else _packed_on(request.choices.backend, target)
    if target is None or serving is None:
        return None
    call = VarlenCall(request, mask, ends.sequences)
    try:
        return varlen.attend(architecture(serving), call, inputs, ends, target)
    except torch.OutOfMemoryError as error:
        raise _memory_error(error, request, inputs, False) from error


def _packed_on(name: str, target: Target) -> str | None:
    """Return the backend that was named, or that ``"auto"`` takes on a GPU; None for none."""
    if name in _OF_PACKED:
        return name
    own = CAPABILITIES.get(target.capability)
    return own if own in AUTOMATIC else None


_OF_PACKED: Final = ("sm90", "sm100")
_EMULATED_HOPPER: Final = "emulator:sm_90a"


def finds_lengths(name: str, device: torch.device) -> bool:
    """Return whether a backend may have kernels that find the lengths of packed sequences."""
    if name in ("auto", _EMULATED_HOPPER):
        return device.type == ("cuda" if name == "auto" else "cpu")
    return name in _OF_PACKED


_Serving = Callable[[Request, Inputs, bool], "autograd.Backend | Refusal"]
_SERVING: Final[dict[str, _Serving]] = {
    "sm90": functools.partial(_kernels, "sm90"),
    "sm100": functools.partial(_kernels, "sm100"),
    "flex": _flex,
    **{
        name: functools.partial(_emulated, name.partition(":")[2] or "sm_100a")
        for name in NAMES
        if name.startswith("emulator")
    },
}
_OTHER_GPU: Final = Refusal("another GPU", "", "")  # asked on each call, and told nobody


def _memory_error(
    error: torch.OutOfMemoryError, request: Request, inputs: Inputs, differentiable: bool
) -> CallMemoryError:
    """Return the error for a call that torch has no memory for."""
    q, _, v, _ = inputs
    rows = q.numel() // max(q.shape[3], 1)
    sizes = {"out": rows * v.shape[3] * q.element_size()}
    if differentiable or request.return_lse:
        sizes["lse"] = rows * (8 if q.dtype is torch.float64 else 4)
    return CallMemoryError(
        device=q.device,
        needed=_in_units(sum(sizes.values())),
        parts=", ".join(f"{name} {_in_units(nbytes)}" for name, nbytes in sizes.items()),
        reason=str(error).splitlines()[0] if str(error) else "out of memory",
        rewrite="calls of fewer batches or heads, one after the other"
        + ("; or torch.no_grad(), if no gradients are wanted" if differentiable else ""),
    )


def _in_units(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


@functools.cache
def _warn(found: str, rewrite: str) -> None:
    """Warn once of what is lacking."""
    text = f"attention runs as plain torch code on this GPU, without its kernels: {found}. "
    warnings.warn(BackendWarning(f"{text}Instead: {rewrite}"), stacklevel=5)
