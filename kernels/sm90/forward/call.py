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
    MODERATE,
    MaskProgram,
    ScoreProgram,
    ScorePromises,
    prepare_mask,
    prepare_score,
    score_promises,
)
from flexfa4.kernels.launch.tensor_map import Tensor
from flexfa4.kernels.request import Inputs
from flexfa4.kernels.sm90.forward.plan import ForwardPlan, Tiling
from flexfa4.primitives.scheduler import Work, pairs_in_cache, section_numbers
from flexfa4.primitives.tile_walk import TileShape

ELEMENTS: Final = {torch.bfloat16: "bf16", torch.float16: "f16"}
"""The dtypes of q, k and v that the kernel takes."""

L2_BYTES: Final = 24 << 20
"""Of the 50 MB of the L2 cache, what keys and values of a section of heads may take."""


@dataclass(frozen=True, eq=False)
class PlannedCall:
    """What serves a call.

    Attributes:
        plan: the code.
        walk: how tiles are found, with its values.
        score, mask: the graphs that are evaluated, with their captures.
    """

    plan: ForwardPlan
    walk: Walk
    score: BoundGraph | None
    mask: BoundGraph | None


def plan_call(
    inputs: Inputs,
    score: BoundGraph | None,
    blocks: MaskBlocks | None,
    scale: float,
    tiling: Tiling,
    *,
    lse: bool,
) -> PlannedCall:
    """Return what serves a call.

    Args:
        inputs: bf16 or fp16, with head dims that `tiling` is for.
        score: the score mod.
        blocks: the mask.
        scale: the softmax scale.
        tiling: how work is cut.
        lse: it is wanted.
    """
    sizes = inputs.sizes
    group = _packed(sizes, blocks, tiling)
    shape = TileShape(tiling.rows // group, tiling.keys, group)
    walk = walk_for(blocks, shape, inputs.q.device)
    mask = None
    if blocks is not None and not walk.plan.has_limits:
        mask = _bound_mask(blocks)
    program, known = _score(score, sizes, scale)
    plan = ForwardPlan(
        element=ELEMENTS[inputs.q.dtype],
        head_dims=(inputs.q.shape[3], inputs.v.shape[3]),
        tiling=tiling,
        walk=walk.plan,
        score=program,
        score_captures=known,
        mask=None if mask is None else _mask_program(mask),
        mask_captures=_captures(mask, sizes),
        limit_captures=_captures(walk.interval, sizes),
        sink=inputs.sink is not None,
        lse=lse,
    )
    return PlannedCall(plan, walk, score, mask)


def _packed(sizes: Sizes, blocks: MaskBlocks | None, tiling: Tiling) -> int:
    """Return how many query heads are packed into a tile.

    Each warpgroup's rows must be whole queries, and all heads of a tile must see the same.
    """
    group = sizes.heads // sizes.kv_heads
    whole = tiling.rows // tiling.warpgroups % group == 0
    return group if whole and heads_alike(blocks, group) else 1


def _score(
    score: BoundGraph | None, sizes: Sizes, scale: float
) -> tuple[ScoreProgram, CapturePlan]:
    if score is None:
        return _plain(scale), CapturePlan()
    program = _program(premises(score, sizes), scale)
    return program, capture_plan(score, sizes)


@functools.lru_cache(maxsize=64)
def _plain(scale: float) -> ScoreProgram:
    return prepare_score(None, ScorePromises(MODERATE[0] <= scale <= MODERATE[1]))


@functools.lru_cache(maxsize=1024)
def _program(given: Premises, scale: float) -> ScoreProgram:
    return prepare_score(given.graph, score_promises(given.graph, given.domain(), scale))


def _mask_program(mask: BoundGraph) -> MaskProgram:
    return prepare_mask(mask.graph)


def _bound_mask(blocks: MaskBlocks) -> BoundGraph:
    graph, values = blocks.graph, blocks.values
    return BoundGraph(
        graph,
        tuple([values.tensors[b] for b in graph.buffers]),
        tuple([values.scalars[s] for s in graph.scalars]),
    )


def _captures(bound: BoundGraph | None, sizes: Sizes) -> CapturePlan:
    return CapturePlan() if bound is None else capture_plan(bound, sizes)


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


def work_of(plan: ForwardPlan, sizes: Sizes) -> Work:
    """Return how many items a call has."""
    shape = plan.walk.shape
    heads = sizes.kv_heads if shape.group > 1 else sizes.heads
    return Work(-(-sizes.q_len // shape.queries), heads, sizes.batch)


def pairs_of(plan: ForwardPlan, sizes: Sizes) -> int:
    """Return how many pairs of batch and head make a section of the order of work."""
    row_bytes = 2 * sum(plan.head_dims)
    shared = 1 if plan.group > 1 else sizes.heads // sizes.kv_heads
    return pairs_in_cache(L2_BYTES, sizes.kv_len, row_bytes, shared)


class Template:
    """The values of a call's signature; calls of the same form differ in few of them.

    Attributes:
        kept: tensors of the mask that kernels read: the template has their addresses.
    """

    def __init__(self, call: PlannedCall, inputs: Inputs, out: torch.Tensor, scale: float) -> None:
        """Fill in what calls of one form have in common.

        Args:
            call: what serves them.
            inputs: of one of them.
            out: of one of them.
            scale: the softmax scale.
        """
        plan, sizes = call.plan, inputs.sizes
        q, k, v, _ = inputs
        storage, group = plan.storage, plan.group
        maps = (
            queries_of(q, group),
            keys_of(k, storage.k.slab),
            keys_of(v, storage.v.slab),
            queries_of(out, group),
        )
        self._forms = [(tensor.sizes, tensor.strides) for tensor in maps]
        values: list[Any] = [*maps]
        numbers = {
            "q_len": sizes.q_len,
            "kv_len": sizes.kv_len,
            "heads": sizes.heads,
            "kv_heads": sizes.kv_heads,
            "kv_batch_step": int(k.shape[0] > 1),
            "scale": scale,
        }
        self._places = {}
        own = len(plan.scalars) - len(plan.walk.parameters) - len(ORDER_PARAMETERS)
        for parameter in plan.scalars[:own]:
            self._places[parameter.name] = len(values)
            values.append(numbers.get(parameter.name, 0))
        values += section_numbers(work_of(plan, sizes), pairs_of(plan, sizes), call.walk.descending)
        values += call.walk.arguments
        self._score = _Captures(call.score, plan.score_captures, len(values))
        self._empty: list[int] = []  # places of tensors of the mask that have no elements
        bound = {"score": call.score, "mask": call.mask, "limit": call.walk.interval}
        for what, graph, known in plan.graphs:
            given = bound[what]
            assert given is not None
            if what != "score":
                at = _pointers(graph, known, len(values))
                placed = zip(at, given.tensors, strict=True)
                self._empty += [place for place, tensor in placed if not tensor.numel()]
            values += capture_values(given, known, 0)
        self._values = values
        own_tensors = [t for t in call.walk.values if isinstance(t, torch.Tensor)]
        masks = [b for b in (call.mask, call.walk.interval) if b is not None]
        self.kept = (*own_tensors, *(t for b in masks for t in b.tensors))

    def fill(self, inputs: Inputs, outputs: Outputs, score: BoundGraph | None) -> list[Any]:
        """Return the values of a call.

        Args:
            inputs: in the form of those the template was made of.
            outputs: likewise.
            score: the score mod with the captures of the call.
        """
        q, k, v, sink = inputs
        values, places = self._values.copy(), self._places
        at = q.data_ptr()
        addresses = (at, k.data_ptr(), v.data_ptr(), outputs.out.data_ptr())
        for i, (sizes, strides) in enumerate(self._forms):
            values[i] = (addresses[i], sizes, strides)
        values[places["counter"]] = outputs.counter.data_ptr()
        if outputs.lse is not None:
            values[places["lse"]] = outputs.lse.data_ptr()
        if sink is not None:
            values[places["sink"]] = sink.data_ptr()
        if score is not None:
            self._score.fill(values, score, at)
        for place in self._empty:
            values[place] = at
        return values


class _Captures:
    """Where the captures of a score mod have their values."""

    def __init__(self, bound: BoundGraph | None, known: CapturePlan, at: int) -> None:
        """Find the places of numbers and addresses from the place `at`."""
        self._at = at
        self._kinds = known.scalars
        self._pointers = [] if bound is None else _pointers(bound.graph, known, at)

    def fill(self, values: list[Any], bound: BoundGraph, readable: int) -> None:
        """Write the numbers and addresses of a call; see `capture_values` for `readable`."""
        if self._kinds:
            values[self._at : self._at + len(self._kinds)] = number_values(
                bound.scalars, self._kinds
            )
        for place, tensor in zip(self._pointers, bound.tensors, strict=False):
            values[place] = tensor.data_ptr() or readable


def _pointers(graph: Graph, known: CapturePlan, at: int) -> list[int]:
    """Return the places of the captured tensors' addresses, of parameters that start at `at`."""
    parameters = captures_signature(graph, known)
    return [at + i for i, parameter in enumerate(parameters) if parameter.kind == "pointer"]


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
