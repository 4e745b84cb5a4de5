"""Kernels of a tiling that no table says: their compilation, and calls of them.

What is planned, kept and launched is the package's own, with a tiling that is given to it.  Every
candidate is planned anew, for the package keeps what serves calls of a form, whose tiling is none
of the form's business: two candidates would be one and the same kernel.  Kernels are compiled for
tensors without memory, which takes no GPU, and the calls find them on disk.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from hopper.cases import Case
from hopper.correctness import Expected, expected
from hopper.correctness import verdict as verdict_of_output
from hopper.gradients import ExpectedPart, expected_gradients
from hopper.gradients import verdict as verdict_of_gradients
from hopper.providers import BACKEND, Problem
from hopper.tilings import Search, Tiling
from hopper.timing import Call
from hopper.variants import VARIANTS, Shape

import flexfa4
from flexfa4.kernels.architectures import architecture
from flexfa4.kernels.backward.call import Wishes, plan_backward
from flexfa4.kernels.backward.compiled import kernels_for
from flexfa4.kernels.backward.function import Backwards
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.emit.gradient import GradientProgram
from flexfa4.kernels.forward.call import PlannedCall, plan_call
from flexfa4.kernels.forward.compiled import kernel_for
from flexfa4.kernels.forward.function import Launched, launched
from flexfa4.kernels.launch.target import Target, target_of
from flexfa4.kernels.request import Inputs, Request, Results
from flexfa4.kernels.sm90.backward.architecture import HopperBackward
from flexfa4.kernels.sm90.backward.storage import Tiling as BackwardTiling

ARCH: Final = "sm_90a"
LENGTH: Final = 8192
HEADS: Final = 16
_TFLOP: Final = 1.2  # of a call: about 2 ms


@dataclass(frozen=True)
class Trial:
    """A candidate of a search with a variant.

    Attributes:
        search: whose.
        tiling: of the kernel.
        variant: a key of `hopper.variants.VARIANTS`, without a score mod.
        shape: of the call.
        lse: a forward pass computes it.
    """

    search: Search
    tiling: Tiling
    variant: str
    shape: Shape
    lse: bool = False


@dataclass(frozen=True)
class Made:
    """What compiling a trial gave.

    Attributes:
        digest: of the machine code.
        registers: of a thread when the kernel starts.
        spills: bytes that each thread spills.
    """

    digest: str
    registers: int
    spills: int

    @classmethod
    def of(cls, kernel: CompiledKernel) -> Made:
        """Return what is to be said of a kernel."""
        digest = hashlib.sha256(kernel.cubin).hexdigest()
        return cls(digest, kernel.registers, kernel.spills)


def shape_for(search: Search, variant: str) -> Shape:
    """Return the shape that a search is measured at."""
    one = Shape(1, HEADS, HEADS, LENGTH, *search.head_dims)
    visible = VARIANTS[variant].visible(one)
    flops = one.flops(visible) if search.way == "forward" else one.backward_flops(visible)
    return Shape(max(1, round(_TFLOP * 1e12 / flops)), HEADS, HEADS, LENGTH, *search.head_dims)


def trials_before(search: Search, variant: str, shape: Shape) -> list[Trial]:
    """Return what runs before the candidates of a search: the forward pass, if they are none."""
    if search.way == "forward":
        return []
    forward = Search("forward", search.head_dims)
    return [Trial(forward, forward.present, variant, shape, lse=True)]


def made(trial: Trial) -> Made:
    """Compile the kernels of a trial, or find them on disk; takes no GPU."""
    shape, one = trial.shape, torch.empty(1, dtype=torch.bfloat16)
    dims = (shape.dim, shape.dim, shape.value_dim)
    q, k, v = (one.expand(shape.batch, shape.heads, shape.length, dim) for dim in dims)
    mask = VARIANTS[trial.variant].make(shape, one.device).mask
    inputs = Inputs(q, k, v, None)
    return Made.of(_main_kernel(trial, request_of(inputs, mask), inputs))


def request_of(inputs: Inputs, mask: Any) -> Request:
    """Return a call with a mask function, or None, and no score mod."""
    q, k, _, _ = inputs
    blocks = None
    if mask is not None:
        sizes = {"q_len": q.shape[2], "kv_len": k.shape[2]}
        blocks = flexfa4.create_block_mask(mask, device=q.device, **sizes).blocks_on(q.device)
    return Request(None, blocks, q.shape[3] ** -0.5, frozenset(), False)


class _Tiled(HopperBackward):
    """The backward kernels with a tiling that is given."""

    def __init__(self, tiling: Any) -> None:
        self._tiling = tiling

    def tiling(self, head_dims: tuple[int, int], score: GradientProgram) -> Any:
        """Return the tiling."""
        return self._tiling


def _planned(trial: Trial, request: Request, inputs: Inputs) -> PlannedCall:
    call = plan_call(architecture(BACKEND), inputs, request, trial.tiling, lse=trial.lse)
    assert call.plan.tiling == trial.tiling
    return call


def _launched(trial: Trial, request: Request, inputs: Inputs, target: Target) -> Launched:
    return launched(_planned(trial, request, inputs), request, inputs, target)


def _main_kernel(trial: Trial, request: Request, inputs: Inputs) -> CompiledKernel:
    """Return the kernel that has a trial's tiling."""
    if trial.search.way == "forward":
        call = _planned(trial, request, inputs)
        return kernel_for(call.architecture, call.plan, ARCH)
    planned = plan_backward(_Tiled(trial.tiling), inputs, request, Wishes(frozenset(), False))
    assert planned is not None and isinstance(trial.tiling, BackwardTiling)
    # who finishes dQ is decided by the mask, where a tiling allows both
    assert replace(planned.main.tiling, finishes=trial.tiling.finishes) == trial.tiling
    return kernels_for(planned, ARCH).main


# ---- calls ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ground:
    """What the candidates of a search with one variant have in common.

    Attributes:
        request: the call.
        inputs: its tensors.
        results: of the forward pass, with the gradient that comes in; None for forward passes.
        right: what the output should be, or the gradients.
        target: where kernels are launched.
    """

    request: Request
    inputs: Inputs
    results: Results | None
    right: list[Expected] | list[ExpectedPart]
    target: Target

    @classmethod
    def of(cls, search: Search, variant: str, shape: Shape, device: torch.device) -> Ground:
        """Return that of a search with a variant."""
        problem = Problem.of(Case(search.name, "tilings", variant, shape), device)
        inputs = Inputs(problem.q, problem.k, problem.v, None)
        request, target = request_of(inputs, problem.mods.mask), target_of(device)
        assert target is not None
        if search.way == "forward":
            return cls(request, inputs, None, expected(problem), target)
        (before,) = trials_before(search, variant, shape)
        out, lse = _launched(before, request, inputs, target).forward(request, inputs)
        assert lse is not None
        draw = torch.Generator(device).manual_seed(1)
        do = torch.randn(out.shape, device=device, dtype=out.dtype, generator=draw)
        right = expected_gradients(problem, do, ())
        return cls(request, inputs, Results(out, lse, do, None), right, target)

    def call(self, trial: Trial) -> Call:
        """Return the call of a trial."""
        if self.results is None:
            ready = _launched(trial, self.request, self.inputs, self.target)
            return lambda: ready.forward(self.request, self.inputs)[0]
        backwards = Backwards(_Tiled(trial.tiling), self.target, ARCH)
        results, wanted = self.results, (True, True, True, False)
        return lambda: backwards.gradients(self.request, self.inputs, results, wanted)

    def kernel(self, trial: Trial) -> CompiledKernel:
        """Return the kernel that the call of a trial launches, or that does most of its work."""
        return _main_kernel(trial, self.request, self.inputs)

    def wrong(self, result: Any) -> str | None:
        """Return what is wrong with what a call gave; None if nothing is."""
        if self.results is None:
            output = verdict_of_output(result, self.right)
            return None if output.right else f"off by {output.error:.2g}"
        gradients = verdict_of_gradients(tuple(result[:3]), self.right)
        return None if gradients.right else f"{gradients.worst} off by {gradients.error:.2g}"
