"""A call of the forward kernel: from tensors and a request to a plan, and the values it is given.

`plan_call` decides what code serves a call.  `Template` has the values of its signature, of which a
repeated call changes addresses and captured numbers only.  Both look at shapes, strides and facts:
no tensor is read, so a call waits for no device.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from flexfa4.frontend.analysis.bounds import Premises, premises
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import Graph
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.blocks.walk import ORDER_PARAMETERS, Walk, heads_alike, walk_for
from flexfa4.kernels.emit.captures import (
    CapturePlan,
    capture_plan,
    capture_values,
    captures_signature,
    number_values,
)
from flexfa4.kernels.emit.program import (
    MaskProgram,
    ScoreProgram,
    ScorePromises,
    is_moderate,
    prepare_mask,
    prepare_score,
    score_promises,
)
from flexfa4.kernels.forward.architecture import AnyArchitecture
from flexfa4.kernels.forward.plan import VariantPlan
from flexfa4.kernels.launch.tensor_map import Tensor
from flexfa4.kernels.request import Inputs, Request
from flexfa4.primitives.scheduler import Work, pairs_at_end, pairs_in_cache, section_numbers
from flexfa4.primitives.tile_walk import TileShape

ELEMENTS: Final = {torch.bfloat16: "bf16", torch.float16: "f16"}
"""The dtypes of q, k and v that the kernel takes."""


@dataclass(frozen=True, eq=False)
class PlannedCall:
    """What serves a call.

    Attributes:
        architecture: that it is for.
        plan: the code.
        walk: how tiles are found, with its values.
        score, mask: the graphs that are evaluated, with their captures.
    """

    architecture: AnyArchitecture
    plan: VariantPlan
    walk: Walk
    score: BoundGraph | None
    mask: BoundGraph | None


def plan_call(
    architecture: AnyArchitecture, inputs: Inputs, request: Request, tiling: Any, *, lse: bool
) -> PlannedCall:
    """Return what serves a call.

    Args:
        architecture: that it is for.
        inputs: bf16 or fp16, with head dims that `tiling` is for.
        request: everything else of the call.
        tiling: how work is cut.
        lse: it is wanted.
    """
    sizes, score, blocks = inputs.sizes, request.score, request.blocks
    alike = heads_alike(blocks, sizes.heads // sizes.kv_heads)
    group = group_of(sizes, architecture.row_unit, alike)
    shape = TileShape(tiling.rows // group, tiling.keys, group)
    walk = walk_for(blocks, shape, inputs.q.device, halves=architecture.halves)
    mask = None
    if blocks is not None and not walk.plan.has_limits:
        mask = bound_mask(blocks)
    program, known = score_program(score, sizes, request.scale)
    plan = architecture.plan(
        tiling,
        element=ELEMENTS[inputs.q.dtype],
        head_dims=(inputs.q.shape[3], inputs.v.shape[3]),
        walk=walk.plan,
        score=program,
        score_captures=known,
        mask=None if mask is None else _mask_program(mask),
        mask_captures=captures_of(mask, sizes),
        limit_captures=captures_of(walk.interval, sizes),
        sink=inputs.sink is not None,
        lse=lse,
        tau=request.choices.tau,
    )
    return PlannedCall(architecture, _first_of_equal(plan), walk, score, mask)


@functools.lru_cache(maxsize=1024)
def _first_of_equal(plan: VariantPlan) -> VariantPlan:
    """Return the first of equal plans, which has its maps and its signature already."""
    return plan


def group_of(sizes: Sizes, row_unit: int, alike: bool) -> int:
    """Return how many query heads are packed into a tile.

    Rows that are moved together must be whole queries, and all heads of a tile must see the same.

    Args:
        sizes: of the call.
        row_unit: see `Architecture`.
        alike: query heads of a key head have one mask.
    """
    group = sizes.heads // sizes.kv_heads
    return group if row_unit % group == 0 and alike else 1


def score_program(
    score: BoundGraph | None, sizes: Sizes, scale: float, *, any_length: bool = False
) -> tuple[ScoreProgram, CapturePlan]:
    """Return how a score mod is computed, and what is known of its captures.

    Args:
        score: the score mod.
        sizes: of the call.
        scale: the softmax scale.
        any_length: see `flexfa4.frontend.analysis.bounds.Premises`.
    """
    if score is None:
        return _plain(scale), CapturePlan()
    program = _program(premises(score, sizes, any_length=any_length), scale)
    return program, capture_plan(score, sizes, any_length=any_length)


@functools.lru_cache(maxsize=64)
def _plain(scale: float) -> ScoreProgram:
    return prepare_score(None, ScorePromises(is_moderate(scale)))


@functools.lru_cache(maxsize=1024)
def _program(given: Premises, scale: float) -> ScoreProgram:
    return prepare_score(given.graph, score_promises(given.graph, given.domain(), scale))


def _mask_program(mask: BoundGraph) -> MaskProgram:
    return prepare_mask(mask.graph)


def bound_mask(blocks: MaskBlocks) -> BoundGraph:
    """Return the mask of blocks with what it captures."""
    graph, values = blocks.graph, blocks.values
    return BoundGraph(
        graph,
        tuple([values.tensors[b] for b in graph.buffers]),
        tuple([values.scalars[s] for s in graph.scalars]),
    )


def captures_of(bound: BoundGraph | None, sizes: Sizes, *, any_length: bool = False) -> CapturePlan:
    """Return what is known of the captures of a graph, if there is one; see `score_program`."""
    return CapturePlan() if bound is None else capture_plan(bound, sizes, any_length=any_length)


# ---- values --------------------------------------------------------------------------------------


class Outputs(NamedTuple):
    """What a call writes.

    Attributes:
        out: ``(B, Hq, Lq, Dv)``, in the dtype of q.
        lse: fp32 ``(B, Hq, Lq)``, contiguous; None where it is not wanted.
        counter: see `flexfa4.kernels.blocks.work_counter`.
    """

    out: torch.Tensor
    lse: torch.Tensor | None
    counter: torch.Tensor


def work_of(plan: VariantPlan, sizes: Sizes) -> Work:
    """Return how many items a call has."""
    shape = plan.walk.shape
    heads = sizes.kv_heads if shape.group > 1 else sizes.heads
    return Work(-(-sizes.q_len // shape.queries), heads, sizes.batch)


def pairs_of(call: PlannedCall, sizes: Sizes) -> int:
    """Return how many pairs of batch and head make a section of the order of work."""
    plan = call.plan
    row_bytes = 2 * sum(plan.head_dims)
    cached = call.architecture.gpus.cached_bytes
    shared = 1 if plan.group > 1 else sizes.heads // sizes.kv_heads
    return pairs_in_cache(cached, sizes.kv_len, row_bytes, shared)


class Template:
    """The values of a call's signature; calls of the same form differ in few of them.

    Attributes:
        kept: tensors of the mask that kernels read: the template has their addresses.
    """

    def __init__(self, call: PlannedCall, inputs: Inputs, out: torch.Tensor) -> None:
        """Fill in what calls of one form have in common.

        Args:
            call: what serves them.
            inputs: of one of them.
            out: of one of them.
        """
        plan, sizes = call.plan, inputs.sizes
        q, k, v, _ = inputs
        maps = self._maps(plan, *tensors_of(plan, q, k, v, out))
        self._layouts = [(tensor.sizes, tensor.strides) for tensor in maps]
        values: list[Any] = [*maps]
        numbers = {
            "q_len": sizes.q_len,
            "kv_len": sizes.kv_len,
            "heads": sizes.heads,
            "kv_heads": sizes.kv_heads,
            "kv_batch_step": int(k.shape[0] > 1),
        }
        self._places: dict[str, int] = {}
        scalars = plan.scalars
        own = len(scalars) - len(plan.walk.parameters) - len(ORDER_PARAMETERS)
        for parameter in scalars[:own]:
            self._places[parameter.name] = len(values)
            values.append(numbers.get(parameter.name, 0))
        work, pairs = work_of(plan, sizes), pairs_of(call, sizes)
        at_end = pairs_at_end(work.tiles, call.architecture.gpus.multiprocessors, pairs)
        values += section_numbers(work, pairs, call.walk.descending, at_end)
        values += call.walk.arguments
        places = self._places.get
        self._scale, self._counter = self._places["scale"], places("counter")
        self._lse, self._sink = places("lse"), places("sink")
        self._score = CaptureValues(call.score, plan.score_captures, len(values))
        self._empty: list[int] = []  # places of tensors of the mask that have no elements
        bound = {"score": call.score, "mask": call.mask, "limit": call.walk.interval}
        for what, graph, known in plan.graphs:
            given = bound[what]
            assert given is not None
            if what != "score":
                at = pointers(graph, known, len(values))
                placed = zip(at, given.tensors, strict=True)
                self._empty += [place for place, tensor in placed if not tensor.numel()]
            values += capture_values(given, known, 0)
        self._values = values
        own_tensors = [t for t in call.walk.values if isinstance(t, torch.Tensor)]
        masks = [b for b in (call.mask, call.walk.interval) if b is not None]
        self.kept = (*own_tensors, *(t for b in masks for t in b.tensors))

    def _maps(self, plan: VariantPlan, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return q, k, v and out as the kernel is given them."""
        return tensors

    def fill(self, inputs: Inputs, outputs: Outputs, request: Request) -> list[Any]:
        """Return the values of a call.

        Args:
            inputs: in the form of those the template was made of.
            outputs: likewise.
            request: likewise; with the numbers and tensors of the call.
        """
        q, k, v, sink = inputs
        out, lse, counter = outputs
        values = self._values.copy()
        at = q.data_ptr()
        of_q, of_k, of_v, of_out = self._layouts
        values[0] = (at, *of_q)
        values[1] = (k.data_ptr(), *of_k)
        values[2] = (v.data_ptr(), *of_v)
        values[3] = (out.data_ptr(), *of_out)
        values[self._scale] = request.scale
        if self._counter is not None:
            values[self._counter] = counter.data_ptr()
        if lse is not None and self._lse is not None:
            values[self._lse] = lse.data_ptr()
        if sink is not None and self._sink is not None:
            values[self._sink] = sink.data_ptr()
        if request.score is not None:
            self._score.fill(values, request.score, at)
        for place in self._empty:
            values[place] = at
        return values


class CaptureValues:
    """Where the captures of a graph have their values."""

    def __init__(self, bound: BoundGraph | None, known: CapturePlan, at: int) -> None:
        """Find the places of numbers and addresses from the place `at`."""
        self._at = at
        self._kinds = known.scalars
        self._pointers = [] if bound is None else pointers(bound.graph, known, at)

    def fill(self, values: list[Any], bound: BoundGraph, readable: int) -> None:
        """Write the numbers and addresses of a call; see `capture_values` for `readable`."""
        if self._kinds:
            values[self._at : self._at + len(self._kinds)] = number_values(
                bound.scalars, self._kinds
            )
        for place, tensor in zip(self._pointers, bound.tensors, strict=False):
            values[place] = tensor.data_ptr() or readable


def pointers(graph: Graph, known: CapturePlan, at: int) -> list[int]:
    """Return the places of the captured tensors' addresses, of parameters that start at `at`."""
    parameters = captures_signature(graph, known)
    return [at + i for i, parameter in enumerate(parameters) if parameter.kind == "pointer"]


def tensors_of(plan: VariantPlan, *tensors: torch.Tensor) -> tuple[Tensor, ...]:
    """Return q, k, v and out, or the first of them, as their tensor maps are given them."""
    return tuple(
        queries_of(x, plan.group) if known.name in ("q", "out") else keys_of(x, known.box[0])
        for x, known in zip(tensors, plan.maps, strict=False)
    )


def queries_of(x: torch.Tensor, group: int) -> Tensor:
    """Return q or out as its tensor map is given it: ``(D, G, S, H / G, B)``."""
    b, h, s, _ = x.stride()
    nbytes = x.element_size()
    batch, heads, length, width = x.shape
    return Tensor(
        x.data_ptr(),
        (width, group, length, heads // group, batch),
        (h * nbytes, s * nbytes, group * h * nbytes, b * nbytes),
    )


def keys_of(x: torch.Tensor, slab: int) -> Tensor:
    """Return k or v as its tensor map is given it: ``(slab, S, slabs, H, B)``."""
    b, h, s, _ = x.stride()
    nbytes = x.element_size()
    batch, heads, length, width = x.shape
    return Tensor(
        x.data_ptr(),
        (slab, length, width // slab, heads, batch),
        (s * nbytes, slab * nbytes, h * nbytes, b * nbytes),
    )
