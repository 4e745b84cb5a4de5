"""A closed form of one interval, as a graph that a kernel can evaluate.

The ends of a closed form may look for values in captured tensors (``first(doc[:] == doc[q])``) or
compare floats, which a kernel cannot do cheaply, or not to the last bit as mask analysis did.  Such
an end is evaluated here once for all queries, and the kernel reads it from a table of 4 bytes for
each.  Other ends are small integer expressions and stay what they are.

The result is again a mask, ``begin <= kv and kv < end``, equal to the one that was solved.  So it
is with queries in place of keys and keys in place of queries: a form that was solved for ``q``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from flexfa4.frontend.masks.solving.solve import Index
from flexfa4.frontend.masks.solving.solved import Solved
from flexfa4.frontend.masks.solving.spans import Span
from flexfa4.frontend.ops import apply
from flexfa4.frontend.rewriting.rules import simplify

_LONGEST: Final = (1 << 31) - 1
LINES: Final[dict[Index, Index]] = {"kv": "q", "q": "kv"}
"""What the ends of intervals of an index depend on."""


@dataclass(frozen=True)
class Interval:
    """The keys ``begin <= kv < end`` of each query, or the queries of each key, as a mask.

    Attributes:
        graph: the mask.
        tables: which of its buffers are tables of ends, made here.
    """

    graph: Graph
    tables: tuple[Buffer, ...] = ()

    @property
    def index(self) -> Index:
        """What the interval is one of: ``kv`` or ``q``."""
        found: Index = self.graph.root.args[0].args[0].attr
        return found

    @property
    def line(self) -> Index:
        """What the ends depend on: the other of the two."""
        return LINES[self.index]

    @property
    def from_first(self) -> bool:
        """Whether it begins with the first key, or query, whatever the values of a call are."""
        begin = self.begin
        return begin.op == "const" and begin.attr <= 0

    @property
    def begin(self) -> Node:
        """The first key, i32; not clamped to the keys that there are."""
        return self.graph.root.args[0].args[1]

    @property
    def end(self) -> Node:
        """One past the last key, i32; not clamped; no more than `begin` for no keys."""
        return self.graph.root.args[1].args[1]


def joined(solved: Solved) -> Solved:
    """Return a closed form with two intervals as one, where never both have anything.

    So are the queries that see a key: all of them where it is in a prefix, else those behind it.
    """
    spans = solved.form.spans
    if len(spans) != 2 or not all(span.stop.op == "where" for span in spans):
        return solved
    (test, stop, nothing), (other, other_stop, other_nothing) = (s.stop.args for s in spans)
    never_both = simplify(apply("not", test)) is simplify(other)
    if not never_both or not nothing is other_nothing is const(0):
        return solved
    start = simplify(apply("where", test, spans[0].start, spans[1].start))
    one = Span(start, simplify(apply("where", test, stop, other_stop)))
    return replace(solved, form=replace(solved.form, spans=(one,)))


def span_of(solved: Solved) -> Span | None:
    """Return the one interval of a closed form, as it was solved; None where there are several."""
    spans = solved.form.spans
    if len(spans) > 1 or solved.length > _LONGEST:
        return None
    return spans[0] if spans else Span(const(0), const(0))


def interval_of(solved: Solved) -> Interval | None:
    """Return the interval of a closed form; None where there are several."""
    span, names = span_of(solved), frozenset(buffer.name for buffer in solved.values.tensors)
    return None if span is None else _interval(span, solved.form.index, names)


@functools.lru_cache(maxsize=256)
def _interval(span: Span, index: Index, names: frozenset[str]) -> Interval:
    """Return an interval, with other names for tables than `names`."""
    ends, tables = [], []
    line = {"kv": "row", "q": "column"}[index]
    for node, name in ((span.start, f"begin_of_{line}"), (span.stop, f"end_of_{line}")):
        if _needs_table(node):
            while name in names:
                name += "_"
            axes = [axis for axis in ("b", "h", LINES[index]) if axis in node.depends]
            table = Buffer(name, I32, (None,) * len(axes))
            tables.append(table)
            node = load(table, tuple(input_(axis) for axis in axes))
        ends.append(node)
    along = input_(index)
    root = apply("and", apply("ge", along, ends[0]), apply("lt", along, ends[1]))
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
    """Return the tables of ends, int32, one axis for each of b, h and q that an end varies with."""
    if not interval.tables:
        return {}
    (span,) = solved.form.spans
    found: dict[Buffer, torch.Tensor] = {}
    for node, own in ((interval.begin, span.start), (interval.end, span.stop)):
        if node.op == "load" and node.attr in interval.tables:
            found[node.attr] = _evaluated(own, solved)
    return found


def _evaluated(end: Node, solved: Solved) -> torch.Tensor:
    """Return an end for every batch, head and query (or key) that it varies with, clamped."""
    size, varies = solved.size, end.depends - {solved.form.index}
    counts = {"b": size.b, "h": size.h, "q": size.q_len, "kv": size.kv_len}
    extents = [n if axis in varies else 1 for axis, n in counts.items()]
    (value,) = Program((end,)).run(solved.values, Lanes(*((0, n) for n in extents)))
    table = torch.as_tensor(value).expand(extents).clamp(0, solved.length).to(torch.int32)
    return table.reshape([n for axis, n in counts.items() if axis in varies])
