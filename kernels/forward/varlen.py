"""Packed sequences: a call whose lengths only the device knows -> out and lse.

Two launches: the kernel that makes the table of work items from the cumulative lengths
(`flexfa4.kernels.varlen`), and the forward kernel.  Nothing is read by the host, in a first call
either.  What is not served here, `attend` returns None for: masks that need lists of tiles, and
whatever `function` refuses; then lengths have to be read, and the call becomes one of `attention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.layout import empty_output
from flexfa4.kernels.blocks.work_counter import stream_and_counter
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.forms import ALIGNMENT
from flexfa4.kernels.forward.architecture import AnyArchitecture
from flexfa4.kernels.forward.call import Outputs, PlannedCall, pairs_of, work_of
from flexfa4.kernels.forward.compiled import kernel_for
from flexfa4.kernels.forward.empty_captures import check_that_captures_have_elements
from flexfa4.kernels.forward.function import LACKING, copies, to_copy
from flexfa4.kernels.forward.support import refused_device, refused_dtype
from flexfa4.kernels.forward.varlen_call import VarlenCall, VarlenTemplate, plan_varlen
from flexfa4.kernels.launch.executor import Executor
from flexfa4.kernels.launch.target import Target
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import Inputs
from flexfa4.kernels.varlen import table
from flexfa4.kernels.varlen.call import Ends, TableCall, numbers_of
from flexfa4.kernels.varlen.plan import TablePlan
from flexfa4.kernels.varlen.plan import kernel_for as table_kernel_for
from flexfa4.primitives.fast_division import MOST

_LONGEST: Final = MOST - (1 << 10)  # tokens: positions of a tile behind the last one fit 32 bits


@dataclass(frozen=True, eq=False)
class LaunchedVarlen:
    """What serves the calls of a form.

    Attributes:
        kernel: the forward kernel.
        table: what makes its table.
        executor: who launches them.
        template: the values that the kernel is given.
        blocks: how many blocks are launched.
        copied: which of q, k and v are copied first.
        limits: places of the mask's captures that its interval has: of tensors, and of numbers.
    """

    kernel: CompiledKernel
    table: TableCall
    executor: Executor
    template: VarlenTemplate
    blocks: int
    copied: tuple[bool, bool, bool]
    limits: tuple[tuple[int, ...], tuple[int, ...]]

    def forward(
        self, call: VarlenCall, inputs: Inputs, ends: Ends
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run both kernels."""
        (q, _, v, sink), request = inputs, call.request
        out = empty_output(q, v.shape[3])
        lse = q.new_empty(q.shape[:3], dtype=torch.float32) if request.return_lse else None
        if True in self.copied:
            inputs = copies(inputs, self.copied)
        if sink is not None:
            inputs = inputs._replace(sink=sink.to(torch.float32).contiguous())
        stream, counter = stream_and_counter(q)
        interval = self._interval(call.mask)
        made = self.table.launch(self.executor, ends, interval, stream)
        outputs = Outputs(out, lse, counter)
        values = self.template.fill_varlen(inputs, outputs, request, made, interval)
        captured = () if interval is None else interval.tensors
        memory = (*inputs, *outputs, made, *captured, *request.tensors)
        grid = (self.blocks, 1, 1)
        self.executor.launch(self.kernel, grid, values, stream=stream, memory=memory)
        return out, lse

    def _interval(self, mask: BoundGraph | None) -> BoundGraph | None:
        graph = self.table.plan.graph
        if mask is None or graph is None:
            return None
        tensors, numbers = self.limits
        return BoundGraph(
            graph,
            tuple([mask.tensors[i] for i in tensors]),
            tuple([mask.scalars[i] for i in numbers]),
        )


_MOST_FORMS: Final = 256
_FORMS: Final[dict[Any, LaunchedVarlen | None]] = {}


def attend(
    architecture: AnyArchitecture, call: VarlenCall, inputs: Inputs, ends: Ends, target: Target
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Run attention on packed sequences; None where this is not served.

    Args:
        architecture: whose kernels serve it.
        call: the call.
        inputs: all sequences as one row, of a batch of 1.
        ends: where each of them ends, contiguous.
        target: where kernels for the tensors' device are launched.

    Raises:
        CompileError: a kernel cannot be compiled, though CuTe-DSL is there.
        LaunchError: a kernel cannot be loaded.
        OutOfRangeError: a captured tensor without elements is read.
    """
    key = (architecture.backend, *_form(call, inputs, ends, target))
    if key not in _FORMS:
        if len(_FORMS) >= _MOST_FORMS:
            _FORMS.clear()
        _FORMS[key] = _prepared(architecture, call, inputs, ends, target)
    found = _FORMS.get(key)
    return None if found is None else found.forward(call, inputs, ends)


# ---- once for a form -----------------------------------------------------------------------------


def _form(call: VarlenCall, inputs: Inputs, ends: Ends, target: Target) -> Any:
    """Return all of a call that decides what serves it."""
    (q, k, v, sink), request = inputs, call.request
    choices = request.choices
    return (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, q.device,
        q.data_ptr() % ALIGNMENT, k.data_ptr() % ALIGNMENT, v.data_ptr() % ALIGNMENT,
        sink is None, request.return_lse, request.scale, choices.tile, choices.tau,
        choices.emulated, target,
        ends.sequences, ends.wide, _captured(request.score), _captured(call.mask),
    )  # fmt: skip


def _captured(bound: BoundGraph | None) -> Any:
    if bound is None:
        return None
    layouts = [(t.dtype, t.shape, t.stride(), t.data_ptr() % ALIGNMENT) for t in bound.tensors]
    return (bound.graph, bound.scalars, tuple(layouts))


def _prepared(
    architecture: AnyArchitecture, call: VarlenCall, inputs: Inputs, ends: Ends, target: Target
) -> LaunchedVarlen | None:
    if refused_device(architecture.gpus, inputs.q.device, target) is not None:
        return None
    plan = planned(architecture, call, inputs, architecture.name_of(target.capability))
    if plan is None:
        return None
    check_that_captures_have_elements(call.request.score, None, inputs.sizes)
    try:
        return _launched(plan, call, inputs, ends, target)
    except LACKING:
        return None


def planned(
    architecture: AnyArchitecture, call: VarlenCall, inputs: Inputs, name: str
) -> PlannedCall | None:
    """Return what serves a call on a device that kernels are for; None where nothing does.

    Args:
        architecture: whose kernels serve it.
        call: the call.
        inputs: all sequences as one row, of which no element is read.
        name: what is compiled for, one of the architecture's names.
    """
    head_dims, tile = (inputs.q.shape[3], inputs.v.shape[3]), call.request.choices.tile
    if refused_dtype(inputs.q.dtype) or architecture.refused_head_dims(head_dims):
        return None
    totals = inputs.sizes
    lengths = (totals.q_len, totals.kv_len, call.sequences)
    if 0 in inputs.q.shape or 0 in lengths or max(lengths) > _LONGEST:
        return None
    tiling = architecture.tiling(head_dims, tile, name)
    if isinstance(tiling, Refusal):
        return None
    try:
        found = plan_varlen(architecture, call, inputs, tiling)
        if found is not None:
            fitting = architecture.fitting(found.plan, call.request.choices, name)
            if fitting != tiling:
                found = plan_varlen(architecture, call, inputs, fitting)
    except KernelLimitError:
        return None
    if found is None:
        return None
    sizes = _table_sizes(found, inputs, call.sequences)
    items = sizes.most * work_of(found.plan, totals).heads
    return found if max(items, sizes.numbers) <= MOST else None


def _table_sizes(planned: PlannedCall, inputs: Inputs, sequences: int) -> table.Sizes:
    totals = inputs.sizes
    return table.Sizes(sequences, totals.q_len, totals.kv_len, planned.plan.walk.shape.queries)


def _launched(
    planned: PlannedCall, call: VarlenCall, inputs: Inputs, ends: Ends, target: Target
) -> LaunchedVarlen:
    """Return what serves calls of the form of a planned one, with its kernels ready."""
    architecture, plan, totals = planned.architecture, planned.plan, inputs.sizes
    name = architecture.name_of(target.capability)
    table_plan = TablePlan(plan.walk, plan.limit_captures, ends.wide)
    kernel, maker = kernel_for(architecture, plan, name), table_kernel_for(table_plan, name)
    executor = target.executor
    executor.load(kernel)
    executor.load(maker)
    copied = to_copy(plan, inputs)
    out = empty_output(inputs.q, plan.head_dims[1])
    template = VarlenTemplate(planned, copies(inputs, copied), out)
    sizes = _table_sizes(planned, inputs, call.sequences)
    work = work_of(plan, totals)
    cached = architecture.gpus.cached_bytes // (2 * sum(plan.head_dims))
    numbers = numbers_of(sizes, totals, work, pairs_of(planned, totals), cached)
    made = TableCall(table_plan, maker, sizes, numbers)
    blocks = min(sizes.least * work.heads, target.multiprocessors)
    limits = _limits(planned, call.mask)
    return LaunchedVarlen(kernel, made, executor, template, blocks, copied, limits)


def _limits(
    planned: PlannedCall, mask: BoundGraph | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return which tensors and numbers of the mask its interval captures."""
    interval = planned.walk.interval
    if mask is None or interval is None:
        return (), ()
    buffers, scalars = mask.graph.buffers, mask.graph.scalars
    return (
        tuple([buffers.index(b) for b in interval.graph.buffers]),
        tuple([scalars.index(s) for s in interval.graph.scalars]),
    )
