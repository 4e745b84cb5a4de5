"""The backward pass on a GPU: from out, lse and their gradients to those of every input.

`Backwards` serves the calls of one form of the forward pass.  It is asked for the first time when
the first gradient is, and then compiles, or finds on disk, three kernels that follow each other on
the stream: statistics of each query, the products, dQ as it is wanted.  A repeated call allocates
what it returns and the workspaces, fills in addresses, and launches; nothing waits for the device.

Gradients of captured tensors are summed up by the main kernel for each key, query or distance from
one to the other, and added into the tensors by torch code; or for each element.  Those of a tensor
that is read as a vector are computed as the CPU backend does, on the device (`summed_in_kernel`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch

from flexfa4.frontend.analysis.bounds import premises, unproved_loads
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import Buffer
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.backward.architecture import BackwardKernels
from flexfa4.kernels.backward.call import (
    Given,
    Memory,
    PlannedBackward,
    Statistics,
    Template,
    Wishes,
    first_distance,
    has_gaps,
    plan_backward,
    preprocess_values,
    q_tiles_of,
    summed_in_kernel,
    visitors_of,
    work_of,
)
from flexfa4.kernels.backward.compiled import Kernels, kernels_for
from flexfa4.kernels.backward.plan import GradientPlan
from flexfa4.kernels.blocks.work_counter import stream_and_counter, work_counter
from flexfa4.kernels.compile.errors import MissingCompilerPackageError
from flexfa4.kernels.compile.signature import UNIT
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.emit.gradient import Share
from flexfa4.kernels.forward.call import keys_of
from flexfa4.kernels.launch.target import Target
from flexfa4.kernels.launch.tensor_map import limit_of
from flexfa4.kernels.load_gradients import accumulate
from flexfa4.kernels.refusal import BackendWarning
from flexfa4.kernels.request import Inputs, Request, Results
from flexfa4.primitives.fast_division import MOST

_SLAB: Final = 64  # columns of a slab, where strides alone are looked at: any would do


class Backwards:
    """The backward passes of the calls of one form."""

    def __init__(self, kernels: BackwardKernels, target: Target, name: str) -> None:
        """Serve calls.

        Args:
            kernels: the architecture's.
            target: where they are launched.
            name: what is compiled for, such as ``sm_90a``.
        """
        self._server = _Server(kernels, target, name)
        self._forms: dict[Any, _Launched | None] = {}

    def gradients(
        self,
        request: Request,
        inputs: Sequence[Any],
        results: Results,
        wanted: Sequence[bool],
    ) -> list[torch.Tensor | None]:
        """Return the gradient of each input; see `flexfa4.kernels.autograd.Backend`.

        Args:
            request: as there.
            inputs: as there.
            results: as there; lse is natural.
            wanted: as there.

        Raises:
            CompileError: a kernel has to be compiled and cannot be; where the backend was not named
                and CuTe-DSL is missing, torch code runs instead, with a warning.
            LaunchError: a kernel cannot be loaded.
        """
        own, tensors = Inputs(*inputs[:4]), tuple(inputs[4:])
        request = request.with_tensors(tensors)
        buffers = () if request.score is None else request.score.graph.buffers
        asked = frozenset(b for b, w in zip(buffers, wanted[4:], strict=True) if w)
        captures, deterministic = asked, request.choices.deterministic
        if asked and request.score is not None:
            pairs = zip(buffers, tensors, strict=True)
            strided = frozenset(b for b, t in pairs if b in asked and has_gaps(t))
            captures = summed_in_kernel(request.score.graph, asked, deterministic, strided)
        do = results.grad_out
        if do is None:
            do = torch.zeros_like(results.out)
        wishes = Wishes(captures, results.grad_lse is not None, deterministic)
        key = (wishes, do.stride(), do.data_ptr() % UNIT, results.out.stride())
        if key not in self._forms:
            self._forms[key] = _launched(request, own, (results.out, do), wishes, self._server)
        launched = self._forms[key]
        if launched is None:
            return _by_torch(request, inputs, results, wanted)
        found = launched.run(request, own, results, do)
        named = (found.q, found.k, found.v, found.sink, *map(found.captures.get, buffers))
        gradients = [g if w else None for g, w in zip(named, wanted, strict=True)]
        if asked != captures:
            rest = [w and b in asked - captures for b, w in zip(buffers, wanted[4:], strict=True)]
            others = _by_torch(request, inputs, results, [False] * 4 + rest)
            gradients = [
                g if other is None else other for g, other in zip(gradients, others, strict=True)
            ]
        return gradients


class _Server(NamedTuple):
    """Who serves calls; see `Backwards`."""

    kernels: BackwardKernels
    target: Target
    name: str


def _by_torch(
    request: Request, inputs: Sequence[Any], results: Results, wanted: Sequence[bool]
) -> list[torch.Tensor | None]:
    """Return gradients as the CPU backend computes them, on the device of the tensors."""
    from flexfa4.kernels.cpu.function import CPU  # not on the way to a first gradient

    results = replace(results, lse=results.lse / CPU.lse_unit)
    return CPU.gradients(request, inputs, results, wanted)


@dataclass(frozen=True, eq=False)
class _Found:
    """Gradients of the inputs, in their dtypes."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sink: torch.Tensor | None
    captures: dict[Buffer, torch.Tensor]


@dataclass(frozen=True, eq=False)
class _Launched:
    """What serves the calls of a form.

    Attributes:
        call: the plans.
        kernels: what is launched.
        template: the values of the main one.
        target: who launches them.
        copied: which of q, k, v, out and do the hardware's copies cannot take: they are copied
            first.
        slab: columns of dq that the last kernel writes at once, where there is one.
        visitors: see `call.visitors_of`.
        memory: what the main kernel needs beside what is given to it.
        tiles: blocks of the first and the last kernel: tiles of queries, heads, batches.
        blocks: blocks of the main one.
    """

    call: PlannedBackward
    kernels: Kernels
    template: Template
    target: Target
    copied: tuple[bool, ...]
    slab: int
    visitors: torch.Tensor | None
    memory: Memory
    tiles: tuple[int, int, int]
    blocks: int

    def run(self, request: Request, inputs: Inputs, results: Results, do: torch.Tensor) -> _Found:
        """Run the kernels."""
        call = self.call
        inputs, out, do = _fitting(inputs, results.out, do, self.copied)
        stream, counter = stream_and_counter(inputs.q)
        given = self.memory.given(inputs, do, counter)
        statistics = _statistics(call, inputs, results, self.visitors)
        launch = self.target.executor.launch
        launch(
            self.kernels.preprocess,
            self.tiles,
            preprocess_values(call.preprocess, out, given, statistics),
            stream=stream,
            memory=(out, *given[:-2], *statistics),
        )
        launch(
            self.kernels.main,
            (self.blocks, 1, 1),
            self.template.fill(inputs, given, request),
            stream=stream,
            memory=(*inputs, *given[:-1], *given.shares, *self.template.kept, *request.tensors),
        )
        if self.kernels.postprocess is not None:
            launch(
                self.kernels.postprocess,
                self.tiles,
                [keys_of(given.grad_q, self.slab), given.dq.data_ptr(), request.scale],
                stream=stream,
                memory=(given.grad_q, given.dq),
            )
        sink = None
        if statistics.grad_sink is not None and inputs.sink is not None:
            sink = statistics.grad_sink.sum((1, 2)).to(inputs.sink.dtype)
        return _Found(
            given.grad_q, given.dk, given.dv, sink, _captured(call, request, inputs, given)
        )


def _statistics(
    call: PlannedBackward, inputs: Inputs, results: Results, visitors: torch.Tensor | None
) -> Statistics:
    sink, grad_lse, grad_sink = inputs.sink, results.grad_lse, None
    if sink is not None:
        sink = sink.to(torch.float32).contiguous()
        tiles = q_tiles_of(call.main, inputs.sizes)
        shape = (inputs.sizes.heads, inputs.sizes.batch, tiles)
        grad_sink = sink.new_empty(shape)
    if grad_lse is not None:
        grad_lse = grad_lse.to(torch.float32).contiguous()
    return Statistics(visitors, results.lse.contiguous(), grad_lse, sink, grad_sink)


def _captured(
    call: PlannedBackward, request: Request, inputs: Inputs, given: Given
) -> dict[Buffer, torch.Tensor]:
    """Return the gradients of captured tensors, from the sums of the shares."""
    score, sizes = request.score, inputs.sizes
    if score is None or not given.shares:
        return {}
    known = premises(score, sizes)
    values = Values.of(score, sizes, device=inputs.q.device, unproved=unproved_loads(known))
    found: dict[Buffer, torch.Tensor] = {}
    for share, sums in zip(call.main.score.shares, given.shares, strict=True):
        buffer = share.load.attr
        if buffer not in found:
            found[buffer] = sums.new_zeros(values.tensors[buffer].shape)
        if share.over == "element":
            like = values.tensors[buffer]
            found[buffer] += sums.as_strided(like.shape, like.stride())
            continue
        for own, q, kv in _along(share, sums, call.main, sizes):
            lanes = Lanes((0, sizes.batch), (0, sizes.heads), q, kv)
            indices = Program(share.load.args).run(values, lanes)
            gradient = own.view(lanes.shape)
            accumulate(found[buffer], share.load, indices, gradient, lanes, values)
    return {b: g.to(values.tensors[b].dtype) for b, g in found.items()}


_Stretch = tuple[int, int]


def _along(
    share: Share, sums: torch.Tensor, plan: GradientPlan, sizes: Sizes
) -> Iterator[tuple[torch.Tensor, _Stretch, _Stretch]]:
    """Yield the sums of a share, ``(B, H, n)``, with queries and keys that read the same.

    Those of distances come in two parts: of queries with the first key, and of keys with the first
    query.
    """
    whole = sums.sum(2) if sums.shape[2] > 1 else sums[:, :, 0]
    queries, keys = (0, sizes.q_len), (0, sizes.kv_len)
    if share.over == "query":
        yield whole, queries, (0, 1)
    elif share.over == "distance":
        same = -first_distance(plan, sizes)
        yield whole[..., same : same + sizes.q_len].contiguous(), queries, (0, 1)
        before = whole[..., same - sizes.kv_len + 1 : same].flip(-1)
        yield before, (0, 1), (1, sizes.kv_len)
    else:
        yield whole, (0, 1), keys


# ---- once for a form -----------------------------------------------------------------------------


def _launched(
    request: Request,
    inputs: Inputs,
    out_and_do: tuple[torch.Tensor, torch.Tensor],
    wishes: Wishes,
    server: _Server,
) -> _Launched | None:
    """Return what serves calls of a form; None where torch code does."""
    out, do = out_and_do
    copied = tuple(not _fits(x) for x in (*inputs[:3], out, do))
    inputs, _, do = _fitting(inputs, out, do, copied)
    try:
        call = plan_backward(server.kernels, inputs, request, wishes)
        items = 0 if call is None else work_of(call.main, inputs).items
        if call is None or items > MOST:
            return None
        kernels = kernels_for(call, server.name)
    except KernelLimitError:
        return None
    except MissingCompilerPackageError as error:
        if request.choices.backend != "auto":
            raise
        text = str(error).replace("\n", " ")
        warnings.warn(BackendWarning(f"gradients come from plain torch code: {text}"), stacklevel=2)
        return None
    for kernel in kernels:
        if kernel is not None:
            server.target.executor.load(kernel)
    counter = work_counter(inputs.q.device, 0)
    sizes = inputs.sizes
    memory = Memory.of(call.main, sizes, request.score)
    template = Template(call, inputs, memory.given(inputs, do, counter))
    slab = 0 if call.postprocess is None else call.postprocess.maps[0].box[0]
    visitors = visitors_of(call, inputs)
    tiles = (q_tiles_of(call.main, sizes), sizes.heads, sizes.batch)
    together = kernels.main.cluster[0]
    clusters = max(1, server.target.multiprocessors // together)
    blocks = together * (min(items, clusters) if call.main.fetched else items)
    return _Launched(
        call, kernels, template, server.target, copied, slab, visitors, memory, tiles, blocks
    )


def _fitting(
    inputs: Inputs, out: torch.Tensor, do: torch.Tensor, copied: tuple[bool, ...]
) -> tuple[Inputs, torch.Tensor, torch.Tensor]:
    """Return the inputs, out and do, with contiguous copies of some of q, k, v, out and do."""
    if True not in copied:
        return inputs, out, do
    q, k, v, out, do = (
        x.clone(memory_format=torch.contiguous_format) if copy else x
        for x, copy in zip((*inputs[:3], out, do), copied, strict=True)
    )
    return Inputs(q, k, v, inputs.sink), out, do


def _fits(x: torch.Tensor) -> bool:
    if x.stride(3) != 1 or x.data_ptr() % UNIT:
        return False
    return limit_of(keys_of(x, _SLAB)) is None
