"""A closed form of one interval of keys, as a graph that a kernel can evaluate.

The ends of a closed form may look for values in captured tensors (``first(doc[:] == doc[q])``) or
compare floats, which a kernel cannot do cheaply, or not to the last bit as mask analysis did.  Such
an end is evaluated here once for all queries, and the kernel reads it from a table of 4 bytes for
each.  Other ends are small integer expressions and stay what they are.

The result is again a mask, ``begin <= kv and kv < end``, equal to the one that was solved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.evaluate import Program
from flexfa4.frontend.ir import (
    F32,
    I32,
    Buffer,
    Graph,
    Node,
    const,
    input_,
    load,
    make_graph,
    topological,
)
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.masks.solving.solved import Solved
from flexfa4.frontend.masks.solving.spans import Span
from flexfa4.frontend.ops import apply

_AXES: Final = ("b", "h", "q")
_LONGEST: Final = (1 << 31) - 1


@dataclass(frozen=True)
class Interval:
    """The keys ``begin <= kv < end`` of each query, as a mask of these ends.

    Attributes:
        graph: the mask.
        tables: which of its buffers are tables of ends, made here.
    """

    graph: Graph
    tables: tuple[Buffer, ...] = ()

    @property
    def begin(self) -> Node:
        """The first key, i32; not clamped to the keys that there are."""
        return self.graph.root.args[0].args[1]

    @property
    def end(self) -> Node:
        """One past the last key, i32; not clamped; no more than `begin` for no keys."""
        return self.graph.root.args[1].args[1]


def interval_of(solved: Solved) -> Interval | None:
    """Return the interval of a closed form of keys; None where there are several."""
    spans = solved.form.spans
    if solved.form.index != "kv" or len(spans) > 1 or solved.size.kv_len > _LONGEST:
        return None
    names = {buffer.name for buffer in solved.values.tensors}
    (span,) = spans or (Span(const(0), const(0)),)
    ends, tables = [], []
    for node, name in ((span.start, "begin_of_row"), (span.stop, "end_of_row")):
        if _needs_table(node):
            while name in names:
                name += "_"
            axes = [axis for axis in _AXES if axis in node.depends]
            table = Buffer(name, I32, (None,) * len(axes))
            tables.append(table)
            node = load(table, tuple(input_(axis) for axis in axes))
        ends.append(node)
    kv = input_("kv")
    root = apply("and", apply("ge", kv, ends[0]), apply("lt", kv, ends[1]))
    return Interval(make_graph("mask", root), tuple(tables))


def _needs_table(node: Node) -> bool:
    """Whether an end cannot be left to a kernel."""
    return any(n.op == "search" or n.dtype is F32 for n in topological(node))


def bound_interval(interval: Interval, solved: Solved, device: torch.device) -> BoundGraph:
    """Return the interval with the values that its graph captures, tables included.

    Args:
        interval: that of `solved`.
        solved: the form, for the values of a call.
        device: where tables are put.
    """
    made = _tables(interval, solved)
    values, graph = solved.values, interval.graph
    tensors = [made[b].to(device) if b in made else values.tensors[b] for b in graph.buffers]
    return BoundGraph(graph, tuple(tensors), tuple([values.scalars[s] for s in graph.scalars]))


def _tables(interval: Interval, solved: Solved) -> Mapping[Buffer, torch.Tensor]:
    """Return the tables of ends, int32, one axis for each of b, h, q that an end varies with."""
    if not interval.tables:
        return {}
    (span,) = solved.form.spans
    found: dict[Buffer, torch.Tensor] = {}
    for node, own in ((interval.begin, span.start), (interval.end, span.stop)):
        if node.op == "load" and node.attr in interval.tables:
            found[node.attr] = _evaluated(own, solved)
    return found


def _evaluated(end: Node, solved: Solved) -> torch.Tensor:
    """Return an end for every batch, head and query that it varies with, clamped."""
    counts = (solved.size.b, solved.size.h, solved.size.q_len)
    sizes = [n if axis in end.depends else 1 for axis, n in zip(_AXES, counts, strict=True)]
    lanes = Lanes((0, sizes[0]), (0, sizes[1]), (0, sizes[2]), (0, 1))
    (value,) = Program((end,)).run(solved.values, lanes)
    table = torch.as_tensor(value).expand(*sizes, 1).clamp(0, solved.length).to(torch.int32)
    return table.reshape([n for axis, n in zip(_AXES, sizes, strict=True) if axis in end.depends])
