"""Captured tensors and numbers as parameters of a kernel.

`capture_plan` keeps what a kernel's code may rest on, and no value: storage types, whether a tensor
is contiguous along its last axis, which reads are proved to be in range, whether 32 bits hold every
offset.  It is part of a kernel's cache key.  `captures_signature` is the order of the parameters,
`capture_values` a call's values in that order.

Needs no CuTe-DSL: it is on the way of every launch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch

from flexfa4.frontend.analysis.bounds import Premises, bounds, premises
from flexfa4.frontend.analysis.intervals import Interval
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.integers import DIVISIONS
from flexfa4.frontend.ir import F32, I32, Buffer, Graph, Node, topological
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.emit.access import LoadPlan, access
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.emit.places import Along

Kind = Literal["pointer", "i64", "i32", "f32"]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    Attributes:
        name: unique in the graph: ``slope`` for a number, ``slope.pointer``, ``slope.size0``,
            ``slope.stride0`` for a tensor.
        kind: its type.
    """

    name: str
    kind: Kind


@dataclass(frozen=True)
class BufferPlan:
    """What a kernel's code rests on about a captured tensor.

    Attributes:
        storage: the tensor's dtype, as torch names it.
        unit_stride: elements along the last axis follow each other; there is one.
        narrow: 32 bits hold its sizes, strides and the offset in bytes of every element.
        aligned: a power of two: the address, and all strides but that of the last axis, are
            multiples of so many elements.
    """

    storage: str
    unit_stride: bool
    narrow: bool
    aligned: int


SLACK: Final = 1 << 12
"""Positions may be that far past the lengths: a tile's columns are, at the end."""

POSITIONS: Final = ((1 << 24) - SLACK, 1 << 30, 1 << 48)
"""Classes of lengths: positions are exact fp32 numbers; sums of a few fit 32 bits; neither."""


@dataclass(frozen=True)
class CapturePlan:
    """What a kernel's code rests on about the captures and sizes of a call.

    Attributes:
        buffers: of ``graph.buffers``.
        loads: of the graph's loads, in topological order.
        scalars: types of ``graph.scalars``: ``i32`` where the number is within `SMALL`.
        positions: positions are less than this (see `POSITIONS`).
        along: what moves from column to column of the kernel's tiles.
        positive: names of the numbers that something is divided by and that are at least 1: what
            is not negative is then divided without signs, and nothing is wider for it.
    """

    buffers: tuple[BufferPlan, ...] = ()
    loads: tuple[LoadPlan, ...] = ()
    scalars: tuple[Kind, ...] = ()
    positions: int = POSITIONS[0]
    along: Along = "kv"
    positive: tuple[str, ...] = ()


SMALL: Final = 1 << 29
"""Numbers and sizes below this are 32-bit parameters: a few of them add up within 32 bits."""

STORAGE: Final = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    )
}  # fmt: skip
"""The dtypes that kernels read."""

_LARGEST: Final = torch.finfo(torch.float32).max
_WIDEST: Final = 16  # bytes of the widest load
_Layout = tuple[torch.dtype, tuple[int, ...], int]  # dtype, strides, address modulo `_WIDEST`


def capture_plan(
    bound: BoundGraph, sizes: Sizes, along: Along = "kv", *, any_length: bool = False
) -> CapturePlan:
    """Return what a kernel may rest on in a call, which has `along` from column to column.

    Args:
        bound: the graph and its captures.
        sizes: of the call.
        along: see `CapturePlan`.
        any_length: see `flexfa4.frontend.analysis.bounds.Premises`.

    Raises:
        KernelLimitError: a captured tensor has a dtype that kernels do not read.
    """
    layouts = tuple([(t.dtype, t.stride(), t.data_ptr() % _WIDEST) for t in bound.tensors])
    return _plan(premises(bound, sizes, any_length=any_length), layouts, along)


def captures_signature(graph: Graph, plan: CapturePlan) -> tuple[Parameter, ...]:
    """Return the parameters of a graph's captures: its numbers first, then each of its tensors.

    A tensor has its pointer, its sizes and its strides, axis by axis; of these only what the code
    needs: a stride of 1 of the last axis is none.
    """
    made = [Parameter(s.name, kind) for s, kind in zip(graph.scalars, plan.scalars, strict=True)]
    for buffer, known in zip(graph.buffers, plan.buffers, strict=True):
        whole: Kind = "i32" if known.narrow else "i64"
        made.append(Parameter(f"{buffer.name}.pointer", "pointer"))
        made += [Parameter(f"{buffer.name}.size{d}", whole) for d in _sizes(graph, plan)[buffer]]
        made += [Parameter(f"{buffer.name}.stride{d}", whole) for d in strides(buffer, known)]
    return tuple(made)


def capture_values(bound: BoundGraph, plan: CapturePlan, readable: int) -> list[int | float]:
    """Return a call's values of the parameters of `captures_signature`.

    Args:
        bound: the graph and its captures.
        plan: of this call.
        readable: an address of 16 bytes on the device, which stands for tensors without elements:
            lanes that are masked may read anywhere that is valid.
    """
    values = number_values(bound.scalars, plan.scalars)
    needed = _sizes(bound.graph, plan)
    for buffer, known, t in zip(bound.graph.buffers, plan.buffers, bound.tensors, strict=True):
        empty = not t.numel()
        values.append(readable if empty else t.data_ptr())
        shape, stride = t.shape, t.stride()
        values += [shape[d] for d in needed[buffer]]
        values += [0 if empty else stride[d] for d in strides(buffer, known)]
    return values


def number_values(numbers: tuple[int | float, ...], kinds: tuple[Kind, ...]) -> list[int | float]:
    """Return captured numbers as they are packed: infinite where fp32 ends, as in torch."""
    return [
        (math.inf if n > 0 else -math.inf) if kind == "f32" and abs(n) > _LARGEST else n
        for n, kind in zip(numbers, kinds, strict=True)
    ]


def strides(buffer: Buffer, plan: BufferPlan) -> range:
    """Return the axes of a tensor whose strides are parameters."""
    return range(len(buffer.shape) - plan.unit_stride)


@functools.lru_cache(maxsize=1024)
def loads_of(graph: Graph) -> tuple[Node, ...]:
    """Return the loads of a graph in the order of `CapturePlan.loads`."""
    return tuple(node for node in topological(graph.root) if node.op == "load")


@functools.lru_cache(maxsize=1024)
def divisors(graph: Graph) -> tuple[int, ...]:
    """Return the places, among the numbers of a graph, of the integers that divide something."""
    divided = [node.args[1] for node in topological(graph.root) if node.op in DIVISIONS]
    found = {node.attr for node in divided if node.op == "scalar" and node.dtype is I32}
    return tuple([i for i, scalar in enumerate(graph.scalars) if scalar in found])


@functools.lru_cache(maxsize=1024)
def _sizes(graph: Graph, plan: CapturePlan) -> dict[Buffer, tuple[int, ...]]:
    """Return the axes of each tensor whose sizes the code needs.

    That is where the graph asks for it, and where an index has to be looked at before it is used.
    """
    needed: dict[Buffer, set[int]] = {buffer: set() for buffer in graph.buffers}
    for node in topological(graph.root):
        if node.op == "size":
            buffer, axis = node.attr
            needed[buffer].add(axis)
    for load, known in zip(loads_of(graph), plan.loads, strict=True):
        made = access(load, known, plan.along)
        needed[load.attr].update(d for d in range(len(load.args)) if made.needs_size(d))
    return {buffer: tuple(sorted(axes)) for buffer, axes in needed.items()}


# ---- the plan ------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _plan(given: Premises, layouts: tuple[_Layout, ...], along: Along) -> CapturePlan:
    graph, sizes = given.graph, given.sizes
    longest = max(sizes.q_len, sizes.kv_len)
    return CapturePlan(
        tuple(
            _buffer_plan(buffer, shape, layout)
            for buffer, shape, layout in zip(graph.buffers, given.shapes, layouts, strict=True)
        ),
        tuple(_load_plans(given)),
        tuple(
            "f32" if s.dtype is F32 else "i32" if abs(value) < SMALL else "i64"
            for s, value in zip(graph.scalars, given.scalars, strict=True)
        ),
        next(limit for limit in POSITIONS if longest <= limit),
        along,
        tuple([graph.scalars[i].name for i in divisors(graph) if given.scalars[i] > 0]),
    )


def _buffer_plan(buffer: Buffer, shape: tuple[int, ...], layout: _Layout) -> BufferPlan:
    dtype, stride, misplaced = layout
    if dtype not in STORAGE:
        raise KernelLimitError(
            found=f"the captured tensor `{buffer.name}` is {STORAGE.get(dtype, dtype)}",
            allowed="tensors of " + ", ".join(STORAGE.values()),
            rewrite=f"convert it before the call, such as {buffer.name}.float()",
        )
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    unit = bool(shape) and stride[-1] == 1 and 0 not in shape  # nothing is read at distance 0
    # axes of one element are read at index 0 only, whatever their stride is
    steps = [s for n, s in zip(shape, stride, strict=True) if n > 1]
    counted = steps[:-1] if unit and shape[-1] > 1 else steps
    elements = _WIDEST // dtype.itemsize
    aligned = math.gcd(elements, misplaced // dtype.itemsize, *counted)
    narrow = max(*shape, *stride, 0, 0) < SMALL and (last + 1) * dtype.itemsize < 1 << 31
    return BufferPlan(
        STORAGE[dtype], unit, narrow, aligned if misplaced % dtype.itemsize == 0 else 1
    )


def _load_plans(given: Premises) -> list[LoadPlan]:
    """Return what is proved about each load, with the sizes and numbers of a call."""
    if not loads_of(given.graph):
        return []
    shapes = dict(zip(given.graph.buffers, given.shapes, strict=True))
    found = bounds(given.graph.root, given.domain().leaf)
    return [
        load_plan([found[i] for i in load.args], shapes[load.attr])
        for load in loads_of(given.graph)
    ]


def load_plan(indices: Sequence[Interval], shape: tuple[int, ...]) -> LoadPlan:
    """Return what is proved about a load.

    Args:
        indices: bounds of its indices.
        shape: of the tensor that it reads.
    """
    return LoadPlan(
        all(index.within(-n, n - 1) for index, n in zip(indices, shape, strict=True)),
        tuple([bool(index.lo >= 0) for index in indices]),
    )
