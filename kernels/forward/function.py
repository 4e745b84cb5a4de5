"""The entry of backends for GPUs: a checked request -> out and lse, and their gradients.

`prepared` decides once for all calls of a form what serves them: a kernel with its tiling and the
template of its values, or nothing to compute, or a `Refusal`.  A repeated call looks that up,
allocates what it returns, fills in addresses, and launches.

Gradients are computed from out and lse of this forward pass: by kernels where the architecture has
them (`BackwardPass`), and otherwise by the CPU backend's torch code on the GPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from flexfa4.frontend.layout import empty_output
from flexfa4.kernels.architectures import architecture
from flexfa4.kernels.blocks.work_counter import stream_and_counter
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.compile.errors import MissingCompilerPackageError
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.emit.number_facts import number_facts
from flexfa4.kernels.emit.program import is_moderate
from flexfa4.kernels.forms import form_of, layout_of
from flexfa4.kernels.forward.architecture import AnyArchitecture, BackwardPass
from flexfa4.kernels.forward.call import (
    Outputs,
    PlannedCall,
    Template,
    plan_call,
    tensors_of,
    work_of,
)
from flexfa4.kernels.forward.compiled import kernel_for
from flexfa4.kernels.forward.empty_captures import check_that_captures_have_elements
from flexfa4.kernels.forward.plan import VariantPlan
from flexfa4.kernels.forward.support import refused_device, refused_dtype
from flexfa4.kernels.launch.errors import MissingDriverError, OldDriverError
from flexfa4.kernels.launch.executor import Executor
from flexfa4.kernels.launch.target import Target
from flexfa4.kernels.launch.tensor_map import Tensor, limit_of
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import Inputs, Request, Results
from flexfa4.primitives.fast_division import MOST

LACKING: Final = (MissingCompilerPackageError, MissingDriverError, OldDriverError)
"""What a machine lacks that could serve a call."""


class _GradientsByTorch:
    """The backward pass where there are no kernels for it; the lse is the natural logarithm."""

    lse_unit: Final = 1.0

    def gradients(
        self,
        request: Request,
        inputs: Sequence[Any],
        results: Results,
        wanted: Sequence[bool],
    ) -> list[torch.Tensor | None]:
        """Run the CPU backend's backward pass, on the device of the tensors."""
        from flexfa4.kernels.cpu.function import CPU  # not on the way to a first result

        results = replace(results, lse=results.lse / CPU.lse_unit)
        return CPU.gradients(request, inputs, results, wanted)


class Nothing(_GradientsByTorch):
    """Calls without queries or without keys."""

    def forward(self, request: Request, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what queries that see nothing get."""
        q, _, v, sink = inputs
        lse = q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
        if sink is not None:
            lse.copy_(sink[:, None])
        return empty_output(q, v.shape[3]).zero_(), lse


_Layout = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Launched(_GradientsByTorch):
    """What serves the calls of a form.

    Attributes:
        kernel: what is launched.
        executor: who launches it.
        template: the values it is given.
        blocks: how many blocks are launched.
        out, lse: sizes and strides of what is computed; no lse where it is not.
        copied: which of q, k and v are copied first.
        make_backwards: returns new backward passes of these calls; None: the CPU backend's.
    """

    kernel: CompiledKernel
    executor: Executor
    template: Template
    blocks: int
    out: _Layout
    lse: _Layout | None
    copied: tuple[bool, bool, bool]
    make_backwards: Callable[[], BackwardPass | None] = lambda: None

    @functools.cached_property
    def backwards(self) -> BackwardPass | None:
        """The backward passes, made for the first one: most calls have none."""
        return self.make_backwards()

    def gradients(
        self,
        request: Request,
        inputs: Sequence[Any],
        results: Results,
        wanted: Sequence[bool],
    ) -> list[torch.Tensor | None]:
        """Run the backward pass."""
        if self.backwards is None:
            return super().gradients(request, inputs, results, wanted)
        return self.backwards.gradients(request, inputs, results, wanted)

    def forward(self, request: Request, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the forward kernel."""
        q, sink = inputs.q, inputs.sink
        out = q.new_empty_strided(*self.out)
        lse = None if self.lse is None else q.new_empty_strided(*self.lse, dtype=torch.float32)
        if True in self.copied:
            inputs = copies(inputs, self.copied)
        if sink is not None:
            inputs = inputs._replace(sink=sink.to(torch.float32).contiguous())
        stream, counter = stream_and_counter(q)
        outputs = Outputs(out, lse, counter)
        values = self.template.fill(inputs, outputs, request)
        memory = (*inputs, *outputs, *self.template.kept, *request.tensors)
        grid = (self.blocks, 1, 1)
        self.executor.launch(self.kernel, grid, values, stream=stream, memory=memory)
        return out, lse


Prepared = Launched | Nothing | Refusal
"""What is known of a form of calls."""


# ---- once for a form -----------------------------------------------------------------------------


class _Forms(dict[Any, Prepared]):
    """What serves the calls of each form that have one mask, or none."""

    _MOST: Final = 256

    def put(self, key: Any, made: Prepared) -> None:
        """Keep what was made; forget all if it is too many."""
        if len(self) >= self._MOST:
            self.clear()
        self[key] = made


_WITHOUT_MASK: Final = _Forms()


def prepared(
    backend: str, request: Request, inputs: Inputs, target: Target | None, lse: bool
) -> Prepared:
    """Return what serves a call, kept with its mask.

    Args:
        backend: whose kernels serve it, see `flexfa4.kernels.architectures`.
        request: everything but the tensors that belong to no mod.
        inputs: these tensors.
        target: where kernels for their device are launched.
        lse: it is wanted, or needed for gradients.

    Raises:
        CompileError: the kernel cannot be compiled, though CuTe-DSL is there.
        LaunchError: the kernel cannot be loaded.
        OutOfRangeError: a captured tensor without elements is read.
    """
    blocks, score = request.blocks, request.score
    forms = _WITHOUT_MASK if blocks is None else blocks.cache(_Forms)
    form = request.form or form_of(inputs, request.choices)
    key: Any = (form, backend, target, lse, is_moderate(request.scale))
    if score is not None:
        facts = number_facts(score, form.sizes) if score.scalars else None
        key = (*key, request.layout or layout_of(score), facts)
    found = forms.get(key)
    if found is None:
        found = _prepared(architecture(backend), request, inputs, target, lse)
        forms.put(key, found)
    return found


def _prepared(
    architecture: AnyArchitecture,
    request: Request,
    inputs: Inputs,
    target: Target | None,
    lse: bool,
) -> Prepared:
    refused = refused_device(architecture.gpus, inputs.q.device, target)
    if refused is not None:
        return refused
    assert target is not None
    name = architecture.name_of(target.capability)
    call = planned(architecture, request, inputs, lse, name)
    if isinstance(call, Refusal):
        return call
    if call is None:
        return Nothing()
    check_that_captures_have_elements(request.score, request.blocks, inputs.sizes)
    try:
        return launched(call, request, inputs, target)
    except LACKING as error:
        return Refusal.of(error, lacking=True)


def planned(
    architecture: AnyArchitecture, request: Request, inputs: Inputs, lse: bool, name: str
) -> PlannedCall | Refusal | None:
    """Return what serves a call on a device that kernels are for; None for nothing to compute.

    Args:
        architecture: whose kernels serve it.
        request: everything but the tensors that belong to no mod.
        inputs: these tensors, of which no element is read.
        lse: it is computed.
        name: what is compiled for, one of the architecture's names.
    """
    head_dims, tile = (inputs.q.shape[3], inputs.v.shape[3]), request.choices.tile
    refused = refused_dtype(inputs.q.dtype) or architecture.refused_head_dims(head_dims)
    if refused is not None:
        return refused
    if 0 in inputs.q.shape or inputs.k.shape[2] == 0:
        return None
    tiling = architecture.tiling(head_dims, tile, name)
    if isinstance(tiling, Refusal):
        return tiling
    try:
        call = plan_call(architecture, inputs, request, tiling, lse=lse)
        fitting = architecture.fitting(call.plan, request.choices, name)
        if fitting != tiling:
            call = plan_call(architecture, inputs, request, fitting, lse=lse)
    except KernelLimitError as error:
        return Refusal.of(error)
    items = work_of(call.plan, inputs.sizes).items
    if items > MOST:
        found = f"{items} tiles of queries, of all batches and heads"
        return Refusal(found, f"at most {MOST} in a call", "calls of fewer batches")
    return call


def launched(call: PlannedCall, request: Request, inputs: Inputs, target: Target) -> Launched:
    """Return what serves calls of the form of a planned one, with its kernel ready.

    Args:
        call: decides all but the tensors.
        request: that it was planned for.
        inputs: likewise.
        target: where the kernel is launched.

    Raises:
        CompileError: the kernel has to be compiled and cannot be.
        LaunchError: it cannot be loaded.
    """
    kernel = kernel_for(call.architecture, call.plan, call.architecture.name_of(target.capability))
    target.executor.load(kernel)
    copied = to_copy(call.plan, inputs)
    items = work_of(call.plan, inputs.sizes).items
    q = inputs.q
    out = empty_output(q, inputs.v.shape[3])
    lse = _layout(q.new_empty(q.shape[:3])) if call.plan.lse else None
    template = Template(call, copies(inputs, copied), out)
    together = kernel.cluster[0]
    clusters = max(1, target.multiprocessors // together)
    blocks = together * (min(items, clusters) if call.plan.fetched else items)
    backwards = functools.partial(call.architecture.backwards, target)
    executor = target.executor
    return Launched(kernel, executor, template, blocks, _layout(out), lse, copied, backwards)


def _layout(tensor: torch.Tensor) -> _Layout:
    return tuple(tensor.shape), tensor.stride()


def to_copy(plan: VariantPlan, inputs: Inputs) -> tuple[bool, bool, bool]:
    """Return which of q, k and v the hardware's tensor copies cannot take."""
    given = zip(inputs[:3], tensors_of(plan, *inputs[:3]), strict=True)
    q, k, v = (_unfit(x, tensor) for x, tensor in given)
    return q, k, v


def _unfit(x: torch.Tensor, tensor: Tensor) -> bool:
    return x.stride(3) != 1 or limit_of(tensor) is not None


def copies(inputs: Inputs, copied: tuple[bool, bool, bool]) -> Inputs:
    """Return inputs with contiguous copies of some of them."""
    q, k, v = (
        x.clone(memory_format=torch.contiguous_format) if copy else x
        for x, copy in zip(inputs[:3], copied, strict=True)
    )
    return Inputs(q, k, v, inputs.sink)
