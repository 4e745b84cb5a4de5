"""The backends by name, and which one serves a call.

``"sm90"`` and the like name a compute capability as compilers do: a product's name would not say
which cards are meant.  A backend that is named serves the call or says why it does not; no other is
taken in its place.  On a GPU ``"auto"`` takes the first of these that serves the call: the kernels
for this GPU, torch's compiled FlexAttention, the CPU backend's torch code.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Final

import torch

from flexfa4.kernels import autograd
from flexfa4.kernels.cpu.function import CPU
from flexfa4.kernels.flex import function as flex
from flexfa4.kernels.flex.errors import FlexCompileError
from flexfa4.kernels.launch.target import target_of
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import Inputs, Request
from flexfa4.kernels.sm90 import function as sm90
from flexfa4.kernels.sm90.support import CAPABILITY

NAMES: Final = ("auto", "cpu", "flex", "sm90")
"""What `backend` may be."""


class BackendWarning(UserWarning):
    """A GPU runs plain torch code, because kernels for it lack something on this machine."""


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
    """
    differentiable = autograd.needs_gradients(request, inputs)
    lse = differentiable or request.return_lse
    backend = backend_for(request, inputs, lse)
    if isinstance(backend, flex.FlexBackend):
        try:
            return backend.attend(request, inputs, differentiable)
        except FlexCompileError as error:
            if request.choices.backend != "auto":
                raise
            _warn(str(error).splitlines()[0], 'backend="cpu", which does the same without a try')
        backend = backend_for(request, inputs, lse)  # which knows of the failure
    return autograd.attend(backend, request, inputs, differentiable)


def backend_for(request: Request, inputs: Inputs, lse: bool) -> autograd.Backend:
    """Return who computes a call.  Raises as `attend`.

    Args:
        request: everything but the tensors that belong to no mod.
        inputs: these tensors.
        lse: it is wanted, or needed for gradients.
    """
    name, device = request.choices.backend, inputs.q.device
    if name == "cpu" or (name == "auto" and device.type != "cuda"):
        return CPU
    refused: list[Refusal] = []
    for serving in (name,) if name != "auto" else ("sm90", "flex"):
        found = _SERVING[serving](request, inputs, lse)
        if not isinstance(found, Refusal):
            return found
        if name != "auto":
            raise found.error(name)
        refused.append(found)
    for found in refused:
        if found.lacking:
            _warn(found.found, found.rewrite)
    return CPU


def _sm90(request: Request, inputs: Inputs, lse: bool) -> autograd.Backend | Refusal:
    target = target_of(inputs.q.device)
    if request.choices.backend == "auto" and (target is None or target.capability != CAPABILITY):
        return _OTHER_GPU
    return sm90.prepared(request, inputs, target, lse)


def _flex(request: Request, inputs: Inputs, lse: bool) -> autograd.Backend | Refusal:
    if 0 in inputs.q.shape or inputs.k.shape[2] == 0:  # nothing that torch would compile
        return CPU
    return flex.prepared(request, inputs, lse)


_Serving = Callable[[Request, Inputs, bool], "autograd.Backend | Refusal"]
_SERVING: Final[dict[str, _Serving]] = {"sm90": _sm90, "flex": _flex}
_OTHER_GPU: Final = Refusal("another GPU", "", "")  # asked on each call, and told nobody


@functools.cache
def _warn(found: str, rewrite: str) -> None:
    """Warn once of what is lacking."""
    text = f"attention runs as plain torch code on this GPU, without its kernels: {found}. "
    warnings.warn(BackendWarning(f"{text}Instead: {rewrite}"), stacklevel=5)
