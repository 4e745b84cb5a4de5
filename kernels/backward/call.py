"""A call of the backward pass: from tensors and a request to the plans of its three kernels.

`plan_backward` decides what code serves a call, `Template` has the values of the main kernel's
signature, of which a repeated call changes addresses and captured numbers only.  As in the forward
pass no tensor is read, so a call waits for no device.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import Buffer, Graph
from flexfa4.frontend.layout import empty_gradient
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.backward.architecture import BackwardKernels
from flexfa4.kernels.backward.plan import (
    STATISTICS,
    GradientPlan,
    PostprocessPlan,
    PreprocessPlan,
    tensor_of,
)
from flexfa4.kernels.blocks.walk import ORDER_PARAMETERS, Walk, walk_for
from flexfa4.kernels.emit.captures import CapturePlan, capture_plan, capture_values, loads_of
from flexfa4.kernels.emit.gradient import GradientProgram, Over, over, prepare_gradient
from flexfa4.kernels.emit.program import MaskProgram, prepare_mask
from flexfa4.kernels.forward.architecture import emulating
from flexfa4.kernels.forward.call import ELEMENTS, CaptureValues, bound_mask, keys_of, pointers
from flexfa4.kernels.request import Inputs, Request
from flexfa4.primitives.scheduler import Work, pairs_at_end, pairs_in_cache, section_numbers
from flexfa4.primitives.tile_walk import TileShape

IN_ORDER: Final[frozenset[Over | None]] = frozenset({"pair", "key"})
"""Sums of which one block alone makes each number."""

IN_ANY_ORDER: Final[frozenset[Over | None]] = frozenset({"query", "distance", "element"})
"""Sums that blocks add to by atomic additions."""


@dataclass(frozen=True, eq=False)
class PlannedBackward:
    """What serves a call.

    Attributes:
        kernels: whose kernels.
        main, preprocess, postprocess: the code; the last one is None where the first finishes dQ.
        walk: how tiles of queries are found, with its values.
        score, mask: the graphs that are evaluated, with their captures.
    """

    kernels: BackwardKernels
    main: GradientPlan
    preprocess: PreprocessPlan
    postprocess: PostprocessPlan | None
    walk: Walk
    score: BoundGraph | None
    mask: BoundGraph | None


class Wishes(NamedTuple):
    """What of a backward pass is wanted, and given.

    Attributes:
        captures: buffers whose gradients the kernel sums up, see `summed_in_kernel`.
        grad_lse: there is a gradient of the lse.
        deterministic: the same bits on every run.
    """

    captures: frozenset[Buffer]
    grad_lse: bool
    deterministic: bool = False


def plan_backward(
    kernels: BackwardKernels, inputs: Inputs, request: Request, wishes: Wishes
) -> PlannedBackward | None:
    """Return what serves a call; None for head dims that there is no kernel for.

    Args:
        kernels: whose kernels.
        inputs: bf16 or fp16.
        request: with what the score mod captures.
        wishes: see there.

    Raises:
        KernelLimitError: kernels have no code for something in the mod or the mask.
    """
    sizes, score, blocks = inputs.sizes, request.score, request.blocks
    head_dims = (inputs.q.shape[3], inputs.v.shape[3])
    program = _program(None if score is None else score.graph, wishes.captures)
    tiling = kernels.tiling(head_dims, program)
    if tiling is None:
        return None
    walk = _walk(blocks, tiling, inputs, wishes)
    better = kernels.fitting(tiling, head_dims, walk)
    if better != tiling:
        tiling, walk = better, _walk(blocks, better, inputs, wishes)
    tiling = emulating(tiling, request.choices)
    mask = None
    if blocks is not None and not walk.plan.has_limits:
        mask = bound_mask(blocks)
    element = ELEMENTS[inputs.q.dtype]
    main = kernels.plan(
        tiling,
        element=element,
        head_dims=head_dims,
        walk=walk.plan,
        score=program,
        score_captures=_captures(score, sizes),
        mask=None if mask is None else _mask_program(mask.graph),
        mask_captures=_captures(mask, sizes),
        limit_captures=_captures(walk.interval, sizes),
    )
    order, sink = main.dq_order, inputs.sink is not None
    finished = main.finishes_dq
    before = PreprocessPlan(element, inputs.v.shape[3], order, wishes.grad_lse, sink, finished)
    after = None if finished else PostprocessPlan(element, order)
    return PlannedBackward(kernels, main, before, after, walk, score, mask)


def _walk(blocks: Any, tiling: Any, inputs: Inputs, wishes: Wishes) -> Walk:
    """Return how tiles of queries are found, with a tiling."""
    shape, device = TileShape(tiling.queries, tiling.keys), inputs.q.device
    return walk_for(blocks, shape, device, by="columns", ranked=wishes.deterministic)


def summed_in_kernel(
    graph: Graph,
    wanted: frozenset[Buffer],
    deterministic: bool = False,
    strided: frozenset[Buffer] = frozenset(),
) -> frozenset[Buffer]:
    """Return the captured tensors whose gradients the kernel sums up: none of their loads is other.

    Args:
        graph: the score mod.
        wanted: those whose gradients are wanted.
        deterministic: not those that blocks add to in any order.
        strided: those with gaps between elements, or elements in one place, see `has_gaps`.
    """
    known = IN_ORDER if deterministic else IN_ORDER | IN_ANY_ORDER
    return frozenset(
        buffer
        for buffer in wanted
        if (kinds := _kinds(graph, buffer)) <= known
        and not (buffer in strided and "element" in kinds)
    )


def has_gaps(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements do not lie side by side, each in a place of its own."""
    expected = 1
    axes = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, extent in sorted(axis for axis in axes if axis[1] != 1):
        if stride != expected:
            return True
        expected *= extent
    return not tensor.numel()


@functools.lru_cache(maxsize=1024)
def _kinds(graph: Graph, buffer: Buffer) -> frozenset[Over | None]:
    return frozenset(over(load) for load in loads_of(graph) if load.attr == buffer)


@functools.lru_cache(maxsize=1024)
def _program(graph: Graph | None, captures: frozenset[Buffer]) -> GradientProgram:
    return prepare_gradient(graph, captures)


@functools.lru_cache(maxsize=1024)
def _mask_program(graph: Graph) -> MaskProgram:
    return prepare_mask(graph, "q")


def _captures(bound: BoundGraph | None, sizes: Sizes) -> CapturePlan:
    return CapturePlan(along="q") if bound is None else capture_plan(bound, sizes, "q")


# ---- values --------------------------------------------------------------------------------------


class Given(NamedTuple):
    """Tensors that the kernels read and write; the axes are those of the inputs.

    Attributes:
        do: of out.
        grad_q, dk, dv: of q, k and v.
        statistics, dq, arrivals, turns: the workspaces, see `plan`; the last two are any tensor
            where there are none.
        counter: see `flexfa4.kernels.blocks.work_counter`.
        shares: fp32, of each of the program's shares.
    """

    do: torch.Tensor
    grad_q: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    statistics: torch.Tensor
    dq: torch.Tensor
    arrivals: torch.Tensor
    turns: torch.Tensor
    counter: torch.Tensor
    shares: tuple[torch.Tensor, ...]


def q_tiles_of(plan: GradientPlan, sizes: Sizes) -> int:
    """Return how many tiles of queries a head has."""
    queries: int = plan.tiling.queries
    return -(-sizes.q_len // queries)


def work_of(plan: GradientPlan, inputs: Inputs) -> Work:
    """Return how many items a call has: tiles of keys."""
    batches, heads, length, _ = inputs.k.shape
    return Work(-(-length // plan.tiling.keys), heads, batches)


@dataclass(frozen=True)
class Memory:
    """The shapes of what the kernels of a call write, worked out once.

    Attributes:
        statistics, dq, arrivals, turns: of the workspaces, see `plan`; the last two are None where
            there are none.
        shares: of the sums of each share, and whether they have to be cleared.
    """

    statistics: tuple[int, ...]
    dq: tuple[int, ...]
    arrivals: tuple[int, ...] | None
    turns: tuple[int, ...] | None
    shares: tuple[tuple[tuple[int, ...], bool], ...]

    @classmethod
    def of(cls, plan: GradientPlan, sizes: Sizes, score: BoundGraph | None) -> Memory:
        """Return the shapes of a call."""
        queries = plan.tiling.queries
        tiles = (sizes.batch, sizes.heads, q_tiles_of(plan, sizes))
        # each key is written; to what is of queries or distances is added
        added = [share.over in IN_ANY_ORDER for share in plan.score.shares]
        return cls(
            (*tiles, STATISTICS * queries),
            (*tiles, queries * plan.head_dims[0]),
            (*tiles, plan.dq_order.parts) if plan.finishes_dq else None,
            (*tiles, plan.takers) if plan.ordered else None,
            tuple(zip(share_shapes(plan, sizes, score), added, strict=True)),
        )

    def given(self, inputs: Inputs, do: torch.Tensor, counter: torch.Tensor) -> Given:
        """Return new memory for a call, with what it is given.

        Args:
            inputs: of the call.
            do: the gradient of out.
            counter: see `Given`.
        """
        grad_q, dk, dv = (empty_gradient(x) for x in inputs[:3])
        statistics = counter.new_empty(self.statistics, dtype=torch.float32)
        dq = counter.new_empty(self.dq, dtype=torch.float32)
        arrivals = counter
        if self.arrivals is not None:
            arrivals = counter.new_empty(self.arrivals, dtype=torch.int64)
        turns = counter if self.turns is None else counter.new_zeros(self.turns)
        shares = [
            (counter.new_zeros if added else counter.new_empty)(shape, dtype=torch.float32)
            for shape, added in self.shares
        ]
        return Given(do, grad_q, dk, dv, statistics, dq, arrivals, turns, counter, tuple(shares))


def share_shapes(
    plan: GradientPlan, sizes: Sizes, score: BoundGraph | None
) -> list[tuple[int, ...]]:
    """Return the shapes of the sums of each share: ``(B, H, parts, positions)``.

    Parts are added up afterwards: of warpgroups that have the same keys.  Of distances there are as
    many as whole tiles have, and `first_distance` says which comes first; of elements as many as
    the tensor has, in the order in which these lie.
    """
    of_keys, q_len = (plan.parts, sizes.kv_len), sizes.q_len
    queries = q_tiles_of(plan, sizes) * plan.tiling.queries
    own: dict[Over, tuple[int, ...]] = {
        "pair": of_keys,
        "key": of_keys,
        "query": (1, q_len),
        "distance": (1, queries - first_distance(plan, sizes)),
    }
    buffers = () if score is None else score.graph.buffers
    tensors = dict(zip(buffers, () if score is None else score.tensors, strict=True))
    return [
        (tensors[share.load.attr].numel(),)
        if share.over == "element"
        else (sizes.batch, sizes.heads, *own[share.over])
        for share in plan.score.shares
    ]


def first_distance(plan: GradientPlan, sizes: Sizes) -> int:
    """Return the distance that the first of the sums of distances is for: that of tiles' ends."""
    keys: int = plan.tiling.keys
    return -sizes.kv_len // keys * keys


class Template:
    """The values of the main kernel's signature; calls of the same form differ in few of them.

    Attributes:
        kept: tensors of the mask that kernels read: the template has their addresses.
    """

    def __init__(self, call: PlannedBackward, inputs: Inputs, given: Given) -> None:
        """Fill in what calls of one form have in common.

        Args:
            call: what serves them.
            inputs: of one of them.
            given: likewise.
        """
        plan, sizes = call.main, inputs.sizes
        maps = self._maps(plan, inputs, given)
        self._forms = [(tensor.sizes, tensor.strides) for tensor in maps]
        self._mapped = [tensor_of(tensor_map) for tensor_map in plan.maps]
        values: list[Any] = [*maps]
        numbers = {
            "q_len": sizes.q_len,
            "kv_len": sizes.kv_len,
            "heads": sizes.heads,
            "kv_heads": sizes.kv_heads,
            "group": sizes.heads // sizes.kv_heads,
            "shared_batches": sizes.batch // inputs.k.shape[0],
        }
        self._places = {}
        own = len(plan.scalars) - len(plan.walk.parameters) - len(ORDER_PARAMETERS)
        for parameter in plan.scalars[:own]:
            self._places[parameter.name] = len(values)
            values.append(numbers.get(parameter.name, 0))
        if plan.finishes_dq:
            first = self._places["grad_q"] + 1
            values[first : first + 3] = given.grad_q.stride()[:3]
        values += order_numbers(call, inputs)
        values += call.walk.arguments
        self._score = CaptureValues(call.score, plan.score_captures, len(values))
        self._empty: list[int] = []  # places of tensors of the mask that have no elements
        bound = {"score": call.score, "mask": call.mask, "limit": call.walk.interval}
        for what, graph, known in plan.graphs:
            captured = bound[what]
            assert captured is not None
            if what != "score":
                at = pointers(graph, known, len(values))
                placed = zip(at, captured.tensors, strict=True)
                self._empty += [place for place, tensor in placed if not tensor.numel()]
            values += capture_values(captured, known, 0)
        self._values = values
        own_tensors = [t for t in call.walk.values if isinstance(t, torch.Tensor)]
        masks = [b for b in (call.mask, call.walk.interval) if b is not None]
        self.kept = (*own_tensors, *(t for b in masks for t in b.tensors))

    @staticmethod
    def _maps(plan: GradientPlan, inputs: Inputs, given: Given) -> list[Any]:
        tensors = _tensors(inputs, given)
        return [keys_of(tensors[tensor_of(spec)], spec.box[0]) for spec in plan.maps]

    def fill(self, inputs: Inputs, given: Given, request: Request) -> list[Any]:
        """Return the values of a call of the form that the template was made of."""
        values, places = self._values.copy(), self._places
        tensors = _tensors(inputs, given)
        for i, (sizes, strides) in enumerate(self._forms):
            values[i] = (tensors[self._mapped[i]].data_ptr(), sizes, strides)
        values[places["scale"]] = request.scale
        values[places["statistics"]] = given.statistics.data_ptr()
        values[places["dq"]] = given.dq.data_ptr()
        if "arrivals" in places:
            values[places["arrivals"]] = given.arrivals.data_ptr()
            values[places["grad_q"]] = given.grad_q.data_ptr()
        if "turns" in places:
            values[places["turns"]] = given.turns.data_ptr()
        if "counter" in places:
            values[places["counter"]] = given.counter.data_ptr()
        for i, share in enumerate(given.shares):
            values[places[f"share{i}"]] = share.data_ptr()
        readable = inputs.q.data_ptr()
        if request.score is not None:
            self._score.fill(values, request.score, readable)
        for place in self._empty:
            values[place] = readable
        return values


def _tensors(inputs: Inputs, given: Given) -> dict[str, torch.Tensor]:
    """Return the tensors that tensor maps are of, by name."""
    q, k, v, _ = inputs
    return {"q": q, "k": k, "v": v, "do": given.do, "dk": given.dk, "dv": given.dv}


def order_numbers(call: PlannedBackward, inputs: Inputs) -> tuple[int, ...]:
    """Return the numbers of the order of work: `primitives.scheduler.Sections.numbers`."""
    work, pairs = work_of(call.main, inputs), _pairs(call, inputs.sizes)
    at_end = pairs_at_end(work.tiles, call.kernels.multiprocessors, pairs)
    return section_numbers(work, pairs, call.walk.descending, at_end)


def _pairs(call: PlannedBackward, sizes: Sizes) -> int:
    """Return how many pairs of batch and key head make a section of the order of work."""
    plan = call.main
    group = sizes.heads // sizes.kv_heads
    row_bytes = 2 * sum(plan.head_dims) + 4 * plan.head_dims[0]
    return pairs_in_cache(call.kernels.cached_bytes, sizes.q_len, row_bytes * group)


class Statistics(NamedTuple):
    """What the kernel before the main one reads and writes beside; fp32 and contiguous.

    Attributes:
        visitors: int32, not contiguous: see `visitors_of`; None where dQ is not finished.
        lse: ``(B, H, Lq)``, natural.
        grad_lse: likewise, or None.
        sink: ``(H,)`` or None.
        grad_sink: ``(H, B, tiles)``, written; or None.
    """

    visitors: torch.Tensor | None
    lse: torch.Tensor
    grad_lse: torch.Tensor | None
    sink: torch.Tensor | None
    grad_sink: torch.Tensor | None


def preprocess_values(
    plan: PreprocessPlan, out: torch.Tensor, given: Given, statistics: Statistics
) -> list[Any]:
    """Return the values of the signature of the kernel before the main one."""
    tensors = [out, given.do, statistics.lse, given.statistics]
    visitors = statistics.visitors
    tensors += [given.dq] if visitors is None else [given.arrivals, visitors]
    if plan.grad_lse:
        assert statistics.grad_lse is not None
        tensors.append(statistics.grad_lse)
    if plan.sink:
        assert statistics.sink is not None and statistics.grad_sink is not None
        tensors += [statistics.sink, statistics.grad_sink]
    strides = [stride for x in (out, given.do) for stride in x.stride()[:3]]
    values = [*(t.data_ptr() for t in tensors), *strides, out.shape[2]]
    if visitors is not None:
        values += [*visitors.stride()[:2], given.grad_q.data_ptr(), *given.grad_q.stride()[:3]]
    return values


def visitors_of(call: PlannedBackward, inputs: Inputs) -> torch.Tensor | None:
    """Return how many tiles of keys add to each tile of dQ, for a main kernel that finishes it.

    Returns:
        Int32 ``(B, H, tiles)``, expanded where batches or heads are alike; else None.
    """
    if not call.main.finishes_dq:
        return None
    sizes, found = inputs.sizes, call.walk.visitors
    shape = (sizes.batch, sizes.heads, q_tiles_of(call.main, sizes))
    if found is None:
        every = work_of(call.main, inputs).tiles
        found = torch.full(shape[2:], every, dtype=torch.int32, device=inputs.q.device)
    return found.expand(shape)
