"""The entry of torch's FlexAttention: a checked request -> out and lse, and their gradients.

The meaning is that of every backend.  Where torch's is narrower it is made up for: sinks are folded
in behind the kernel by lse, mods that ignore the score or read one learned tensor in two places are
written so that torch takes them, keys of one batch are expanded, integers are as wide as they need.

An eager call is differentiated by torch, as its own operation.  Inside an op, where nothing of a
forward pass is kept but out and lse, the backward pass runs the forward pass once more.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import Buffer, Node
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.autograd import DifferentiableBackend
from flexfa4.kernels.emit.captures import BufferPlan, CapturePlan, capture_plan
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.flex.blocks import lists_of, refused_blocks
from flexfa4.kernels.flex.compiled import FlexPlan, chosen_compiler, compiled
from flexfa4.kernels.flex.elements import without_vectors
from flexfa4.kernels.flex.errors import FlexCompileError
from flexfa4.kernels.flex.source import ModPlan, ModSource, for_one_read
from flexfa4.kernels.flex.support import refused_inputs, row_of
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import Inputs, Request, Results

_NOTHING: Final[frozenset[Buffer]] = frozenset()

# What torch could not compile, which "auto" does not try again.
_FAILED: Final[dict[FlexPlan, Refusal]] = {}

# Plans for which the tiles of torch's choice took too much shared memory.
_TOO_LARGE: Final[set[FlexPlan]] = set()


@dataclass(frozen=True, eq=False)
class FlexBackend(DifferentiableBackend):
    """Serves the calls of a plan; see `flexfa4.kernels.autograd.Backend`.

    Attributes:
        plan: which calls.
        mask: the mask, bound to the values that its blocks were found for.
    """

    plan: FlexPlan
    mask: BoundGraph | None
    lse_unit: float = 1.0

    def forward(self, request: Request, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the forward pass; autograd does not follow."""
        with torch.no_grad():
            return self.attend(request, inputs, differentiable=False)

    def attend(
        self, request: Request, inputs: Inputs, differentiable: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the forward pass, followed by torch's autograd or not.

        Raises:
            FlexCompileError: torch cannot compile it.
        """
        taken: list[Any] = [_taken(x, differentiable) for x in inputs]
        given = Inputs(*taken)
        out, lse = self._run(request, given, self._score_values(request, inputs), differentiable)
        return out, lse if request.return_lse or not differentiable else None

    def gradients(
        self,
        request: Request,
        inputs: Sequence[Any],
        results: Results,
        wanted: Sequence[bool],
    ) -> list[torch.Tensor | None]:
        """Run the forward pass again, and the backward pass of torch."""
        taken: list[Any] = [
            None if x is None else _taken(x, differentiable=False).requires_grad_(w)
            for x, w in zip(inputs[:4], wanted, strict=False)
        ]
        request, tensors, given = request.with_tensors(inputs[4:]), inputs[4:], Inputs(*taken)
        values = self._score_values(request, given)
        copies = self._learned(values)
        with torch.enable_grad():
            found = self._run(request, given, values, differentiable=True)
        leaves = [x for x in given if x is not None and x.requires_grad]
        grads = _gradients(found, results, [*leaves, *(copy for _, copy in copies)])
        made = [next(grads) if x is not None and x.requires_grad else None for x in given]
        of: dict[Buffer, torch.Tensor] = {}
        for (buffer, _), grad in zip(copies, grads, strict=True):
            of[buffer] = of[buffer] + grad if buffer in of else grad
        buffers = () if request.score is None else request.score.graph.buffers
        for buffer, tensor in zip(buffers, tensors, strict=True):
            made.append(of[buffer].view(tensor.shape).to(tensor.dtype) if buffer in of else None)
        return made

    def _learned(self, values: list[torch.Tensor]) -> list[tuple[Buffer, torch.Tensor]]:
        """Return those of what the score mod reads that get gradients, from now on as leaves."""
        made, plan = compiled(self.plan).score, self.plan.score
        if made is None or plan is None:
            return []
        read = zip(made.tensors, values, strict=False)  # numbers follow
        return [(b, value.requires_grad_()) for b, value in read if b in plan.learned]

    def _score_values(self, request: Request, inputs: Inputs) -> list[torch.Tensor]:
        """Return what the score mod reads."""
        made = compiled(self.plan).score
        if made is None:
            return []
        assert request.score is not None and self.plan.score is not None
        bound = plain(request.score)
        learned, symbols = self.plan.score.learned, inputs.sizes.symbols()
        return _values(bound, learned, symbols, made, inputs.q.device)

    def _run(
        self,
        request: Request,
        inputs: Inputs,
        score: list[torch.Tensor],
        differentiable: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run what torch has compiled.

        Args:
            request: the call.
            inputs: as torch takes them.
            score: what the score mod reads.
            differentiable: autograd follows.
        """
        made, blocks, device = compiled(self.plan), request.blocks, inputs.q.device
        lists = None
        mask: list[torch.Tensor] = []
        if made.mask is not None and blocks is not None:
            lists = lists_of(blocks, device, differentiable)
            assert self.mask is not None
            mask = _values(self.mask, _NOTHING, blocks.values.symbols, made.mask, device)
        with contextlib.ExitStack() as contexts:
            contexts.enter_context(_outside_ops())
            contexts.enter_context(_gradients_at_once() if differentiable else torch.no_grad())
            if torch._C._is_any_autocast_enabled():
                contexts.enter_context(torch.autocast(device.type, enabled=False))
            try:
                return made.function(*inputs, lists, score, mask)
            except _failures() as error:
                if self.plan.small or "out of resource" not in str(error):
                    raise self._failed(error) from error
        if len(_TOO_LARGE) >= 1024:
            _TOO_LARGE.clear()
        _TOO_LARGE.add(self.plan)
        smaller = replace(self, plan=replace(self.plan, small=True))
        return smaller._run(request, inputs, score, differentiable)

    def _failed(self, error: Exception) -> FlexCompileError:
        """Return the error for what torch could not compile, which is not tried again."""
        mods = [p.graph for p in (self.plan.score, self.plan.mask) if p is not None]
        shown = "".join(f"\n\n{graph.kind} mod:\n{graph}" for graph in mods)
        failure = FlexCompileError(reason=_in_short(error), mods=shown)
        if len(_FAILED) >= 1024:
            _FAILED.clear()
        _FAILED[self.plan] = Refusal.of(failure)
        return failure


def prepared(request: Request, inputs: Inputs, lse: bool) -> FlexBackend | Refusal:
    """Return what serves a call with queries and keys.

    Args:
        request: everything but the tensors that belong to no mod.
        inputs: these tensors.
        lse: it is wanted, or needed for gradients.
    """
    lse = lse or inputs.sink is not None
    refused = refused_inputs(inputs, lse)
    if refused is None and request.blocks is not None:
        refused = refused_blocks(request.blocks)
    if refused is not None:
        return refused
    mask = None if request.blocks is None else _bound_mask(request.blocks)
    try:
        plan = _plan(request, inputs, mask, lse)
        plan = replace(plan, small=plan in _TOO_LARGE)
        compiled(plan)
    except KernelLimitError as error:
        return Refusal.of(error)
    return _FAILED.get(plan) or FlexBackend(plan, mask)


def plain(bound: BoundGraph) -> BoundGraph:
    """Return a mod without vectors.

    Raises:
        KernelLimitError: they are too long.
    """
    graph = without_vectors(bound.graph)
    if graph is bound.graph:
        return bound
    tensors = dict(zip(bound.graph.buffers, bound.tensors, strict=True))
    scalars = dict(zip(bound.graph.scalars, bound.scalars, strict=True))
    return BoundGraph(
        graph,
        tuple([tensors[b] for b in graph.buffers]),
        tuple([scalars[s] for s in graph.scalars]),
    )


def plan_mod(bound: BoundGraph, sizes: Sizes, learned: frozenset[Buffer]) -> ModPlan:
    """Return what the code of a mod rests on.

    Args:
        bound: the mod, without vectors.
        sizes: of the call.
        learned: captured tensors that get gradients.

    Raises:
        KernelLimitError: a captured tensor has a dtype that kernels do not read, or no elements.
    """
    for buffer, tensor in zip(bound.graph.buffers, bound.tensors, strict=True):
        if not tensor.numel():
            raise KernelLimitError(
                found=f"the captured tensor `{buffer.name}` has no elements",
                allowed="tensors that masked scores can read",
                rewrite=f"{buffer.name} of one element",
            )
    plan = capture_plan(bound, sizes)
    # addresses and strides are torch's business
    buffers = tuple([BufferPlan(b.storage, True, b.narrow, 1) for b in plan.buffers])
    plain = CapturePlan(buffers, plan.loads, plan.scalars, plan.positions)
    return ModPlan(bound.graph, plain, learned)


# ---- the plan of a call --------------------------------------------------------------------------


def _plan(request: Request, inputs: Inputs, mask: BoundGraph | None, lse: bool) -> FlexPlan:
    score, sizes = request.score, inputs.sizes
    row = row_of(inputs.q.device)
    shapes = (inputs.q.shape, inputs.k.shape, inputs.v.shape)
    return FlexPlan(
        None if score is None else plan_mod(plain(score), sizes, request.needs_grad),
        None if mask is None else plan_mod(mask, _made_for(request.blocks, sizes), _NOTHING),
        request.scale,
        lse,
        inputs.sink is not None,
        None if row is None or row.any_shape else shapes,
        chosen_compiler() or "inductor",
    )


def _made_for(blocks: MaskBlocks | None, sizes: Sizes) -> Sizes:
    """Return the sizes that a mask reads, which may be those of a call that it is a part of."""
    assert blocks is not None
    symbols = blocks.values.symbols
    return Sizes(
        sizes.batch,
        symbols.get("num_heads", sizes.heads),
        symbols.get("num_kv_heads", sizes.kv_heads),
        symbols.get("q_len", sizes.q_len),
        symbols.get("kv_len", sizes.kv_len),
    )


def _bound_mask(blocks: MaskBlocks) -> BoundGraph:
    """Return a mask with the values that its blocks were found for."""
    graph, values = without_vectors(blocks.graph), blocks.values
    tensors = tuple([values.tensors[b] for b in graph.buffers])
    return BoundGraph(graph, tensors, tuple([values.scalars[s] for s in graph.scalars]))


# ---- what a call gives ---------------------------------------------------------------------------


def _values(
    bound: BoundGraph,
    learned: frozenset[Buffer],
    symbols: Mapping[str, int],
    source: ModSource,
    device: torch.device,
) -> list[torch.Tensor]:
    """Return the tensors that a mod reads, then its numbers.

    Args:
        bound: the mod.
        learned: captured tensors that get gradients.
        symbols: values of the sizes that it reads.
        source: its code.
        device: where numbers are needed.
    """
    tensors = dict(zip(bound.graph.buffers, bound.tensors, strict=True))
    scalars = dict(zip(bound.graph.scalars, bound.scalars, strict=True))

    def value(leaf: Node) -> Any:
        if leaf.op == "symbol":
            return symbols[leaf.attr]
        if leaf.op == "scalar":
            return scalars[leaf.attr]
        buffer, axis = leaf.attr
        return tensors[buffer].shape[axis]

    given = [
        for_one_read(tensors[b]) if b in learned else tensors[b].detach() for b in source.tensors
    ]
    make: Callable[..., torch.Tensor] = _number
    stream = 0
    if device.type == "cuda" and source.numbers:
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        if torch.cuda.is_current_stream_capturing():  # what is filled when a graph is replayed
            make = _number.__wrapped__
    numbers = [make(value(leaf), dtype, device, stream) for leaf, dtype in source.numbers]
    return [*given, *numbers]


@functools.lru_cache(maxsize=1024)
def _number(
    value: int | float, dtype: torch.dtype, device: torch.device, stream: int
) -> torch.Tensor:
    """Return a number as a tensor without dimensions; made on the device, without a wait.

    One for each stream, whose other work comes after it.
    """
    with torch.inference_mode(False):
        return torch.full((), value, dtype=dtype, device=device)


def _failures() -> tuple[type[Exception], ...]:
    """Return what torch raises where it does not get through a call."""
    from torch._dynamo import exc

    return (exc.TorchDynamoException, exc.FailOnRecompileLimitHit, NotImplementedError)


def _gradients_at_once() -> contextlib.AbstractContextManager[Any]:
    """Have torch compile a backward pass with the forward pass, not in the first backward pass.

    What fails there would come out of torch's autograd, where nobody can say what to do instead.
    """
    from torch._functorch import config

    name = "force_non_lazy_backward_lowering"  # of torch 2.8 and later
    if not hasattr(config, name):
        return contextlib.nullcontext()
    patched: contextlib.AbstractContextManager[Any] = config.patch({name: True})
    return patched


@contextlib.contextmanager
def _outside_ops() -> Iterator[None]:
    """Let autograd and torch.compile work as outside of ops, for a while.

    The code of an op runs with keys of torch's dispatcher switched off: those for autograd, and
    inside compiled code all others but the device's, which compiling needs as well.
    """
    excluded, key = torch._C._dispatch_tls_is_dispatch_key_excluded, torch._C.DispatchKey
    inference = torch.is_inference_mode_enabled()  # switches autograd's off, too
    if not excluded(key.FuncTorchBatched) and (
        inference or not excluded(key.AutogradFunctionality)
    ):
        yield
        return
    with contextlib.ExitStack() as contexts:
        if inference:
            contexts.enter_context(torch.inference_mode(False))
        contexts.enter_context(torch._C._ForceDispatchKeyGuard(*_keys_outside()))
        yield


@functools.cache
def _keys_outside() -> tuple[Any, Any]:
    """Return the keys that the dispatcher includes and excludes where nothing runs yet."""
    found: list[Any] = []

    def look() -> None:
        found.append(torch._C._dispatch_tls_local_include_set())
        found.append(torch._C._dispatch_tls_local_exclude_set())

    thread = threading.Thread(target=look)  # a new one
    thread.start()
    thread.join()
    return found[0], found[1]


def _gradients(
    found: Sequence[torch.Tensor | None], results: Results, leaves: Sequence[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Return the gradients of leaves, from what a forward pass gave and those that come in."""
    pairs = zip(found, (results.grad_out, results.grad_lse), strict=True)
    known = [(x, grad) for x, grad in pairs if x is not None and grad is not None]
    outputs, grads = [x for x, _ in known], [grad for _, grad in known]
    return iter(torch.autograd.grad(outputs, leaves, grads, materialize_grads=True))


def _taken(x: Any, differentiable: bool) -> Any:
    """Return a tensor as torch's kernels take it: its last axis is contiguous."""
    if x is None:
        return None
    if not differentiable:
        x = x.detach()
    elif x.is_inference():
        x = x.clone()
    return x if x.stride(-1) == 1 else x.contiguous()


def _in_short(error: Exception) -> str:
    """Return what torch says of a failure, without the stack and the advice behind it."""
    inner = getattr(error, "inner_exception", error)
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return f"{type(inner).__name__}: {'; '.join(lines[:2])}"
