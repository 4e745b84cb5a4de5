"""Mods of packed sequences: the graph for one sequence becomes the graph for many in one row.

Sequences lie one behind the other along the queries, and along the keys.  A mod is written for one
of them; packed, it means::

    b                    sequence[q]
    q                    q - q_begin[q]
    kv                   kv - kv_begin[q]
    q_len                q_end[q] - q_begin[q]         (kv_len likewise)
    mask                 kv_begin[q] <= kv < kv_end[q], and the mask

with tables of one int for each query.  Shifts are not written where they cancel: sums carry them
along, and what compares two numbers drops what both are shifted by.  So ``q >= kv`` of sequences
that are as long in queries as in keys (`shared`) stays ``q >= kv``, and a bias of ``kv - q`` stays
what it is: closed forms and facts find what they find for a single sequence.

A mask reads captured tensors for every score, so a key of another sequence is clamped to this one
where it is part of an index.  Knows neither where tables come from nor who asks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch

from flexfa4.errors import Where
from flexfa4.frontend import ir
from flexfa4.frontend.analysis.bounds import bound
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import I32, Buffer, Graph, Node, Scalar, const
from flexfa4.frontend.ops import apply
from flexfa4.frontend.pipeline import any_call, optimise
from flexfa4.frontend.places import NOWHERE, Places

Kind: TypeAlias = Literal["score", "mask"]

Table: TypeAlias = Literal[
    "sequence",
    "q_begin",
    "q_end",
    "q_position",
    "q_length",
    "kv_begin",
    "kv_end",
    "kv_length",
]
"""What is known of a query's sequence, a table with an entry for each query:

``sequence``: its number; ``q_begin``, ``q_end``, ``q_length``: where its queries begin and end, and
how many they are; ``kv_begin``, ``kv_end``, ``kv_length``: likewise of its keys; ``q_position``:
the query's place in it.
"""

_SHARED: Final[dict[Table, Table]] = {
    "kv_begin": "q_begin",
    "kv_end": "q_end",
    "kv_length": "q_length",
}

# Values within this and up to so many shifts, each at most `sizes.LONGEST`, are far from overflow.
_FAR: Final = 1 << 60
_MOST_SHIFTS: Final = 64


@dataclass(frozen=True)
class PackedGraph:
    """The graph of a mod for packed sequences.

    Attributes:
        graph: the graph; what the mod captures has the names that it had.
        tables: which of its buffers are tables.
        loads: loads of the mod, each with the one that it became, before the passes.
    """

    graph: Graph
    tables: Mapping[Buffer, Table]
    loads: tuple[tuple[Node, Node], ...]


def bound_packed(
    kind: Kind, alone: BoundGraph | None, shared: bool, table: Callable[[Table], torch.Tensor]
) -> BoundGraph:
    """Return a mod of one sequence as a mod of packed sequences.

    Args:
        kind: of the mod.
        alone: its graph with the captures; None for a mask that is True.
        shared: queries and keys begin and end at the same places.
        table: gives a table, an integer for each query.
    """
    made = packed(kind, None if alone is None else alone.graph, shared)
    tensors: dict[Buffer, torch.Tensor] = {}
    scalars: dict[Scalar, int | float] = {}
    places = NOWHERE
    if alone is not None:
        if made.graph == alone.graph:
            return alone
        tensors = dict(zip(alone.graph.buffers, alone.tensors, strict=True))
        scalars = dict(zip(alone.graph.scalars, alone.scalars, strict=True))
        places = _PackedPlaces(alone.places, made.loads) if made.loads else places
    tables = made.tables
    return BoundGraph(
        made.graph,
        tuple([table(tables[b]) if b in tables else tensors[b] for b in made.graph.buffers]),
        tuple([scalars[s] for s in made.graph.scalars]),
        places,
    )


@functools.lru_cache(maxsize=256)
def packed(kind: Kind, graph: Graph | None, shared: bool) -> PackedGraph:
    """Return the graph of a mod for packed sequences, see the module.

    Args:
        kind: of the mod.
        graph: of one sequence; None for a mask that is True.
        shared: queries and keys begin and end at the same places.
    """
    alone = ir.make_graph(kind, const(True)) if graph is None else graph
    packing = _Packing(alone, shared)
    root = packing.written(packing.shifted(alone.root))
    if kind == "mask":
        kv = ir.input_("kv")
        begin, end = packing.load("kv_begin"), packing.load("kv_end")
        inside = apply("and", apply("ge", kv, begin), apply("lt", kv, end))
        root = inside if graph is None else apply("and", inside, root)
    made = optimise(ir.make_graph(kind, root))
    tables = {b: packing.tables[b] for b in made.buffers if b in packing.tables}
    return PackedGraph(made, tables, tuple(packing.loads.items()))


@dataclass(frozen=True)
class _Shifted:
    """A value ``node + sum of times * table[q]``; `by` has each table once and no 0."""

    node: Node
    by: frozenset[tuple[Table, int]] = frozenset()

    def plus(self, other: _Shifted, times: int = 1) -> _Shifted:
        """Return ``self + times * other``; `times` is 1 or -1."""
        node = apply("add" if times > 0 else "sub", self.node, other.node)
        return _Shifted(_without_zero(node), _sum(self.by, other.by, times))

    @property
    def few(self) -> bool:
        """Whether the shifts are few enough for `_FAR`."""
        return sum(abs(times) for _, times in self.by) <= _MOST_SHIFTS


def _without_zero(node: Node) -> Node:
    """Return a sum or difference without a 0 in it, which stands for what is a shift only."""
    a, b = node.args
    if b is _ZERO:
        return a
    return b if a is _ZERO and node.op == "add" else node


def _sum(
    by: frozenset[tuple[Table, int]], other: frozenset[tuple[Table, int]], times: int
) -> frozenset[tuple[Table, int]]:
    found: dict[Table, int] = dict(by)
    for table, k in other:
        found[table] = found.get(table, 0) + times * k
    return frozenset((table, k) for table, k in found.items() if k)


_ZERO: Final = const(0)
_COMPARED: Final = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_CHOSEN: Final = frozenset(("min", "max", "where"))
_LENGTHS: Final[dict[str, tuple[Table, Table, Table]]] = {
    "q_len": ("q_begin", "q_end", "q_length"),
    "kv_len": ("kv_begin", "kv_end", "kv_length"),
}


class _Packing:
    """Rewrites one graph.

    Attributes:
        tables: the table that each buffer made here is.
        loads: see `PackedGraph`.
    """

    def __init__(self, graph: Graph, shared: bool) -> None:
        self._graph = graph
        self._shared = shared
        self._clamps = graph.kind == "mask"
        self.tables: dict[Buffer, Table] = {}
        self.loads: dict[Node, Node] = {}
        self._inputs = {
            ir.input_("b"): _Shifted(self.load("sequence")),
            ir.input_("q"): _Shifted(ir.input_("q"), self._by(q_begin=-1)),
            ir.input_("kv"): _Shifted(ir.input_("kv"), self._by(kv_begin=-1)),
        }
        for name, (begin, end, _) in _LENGTHS.items():
            by = self._by(**{begin: -1, end: 1})
            self._inputs[ir.symbol(name)] = _Shifted(_ZERO, by)

    def load(self, table: Table) -> Node:
        """Return what a table says of the query."""
        name = _SHARED.get(table, table) if self._shared else table
        buffer = Buffer(ir.unused_name(name, self._graph), I32, (None,))
        self.tables[buffer] = name
        return ir.load(buffer, (ir.input_("q"),))

    def _by(self, **times: int) -> frozenset[tuple[Table, int]]:
        found: frozenset[tuple[Table, int]] = frozenset()
        for table, k in times.items():
            name: Table = table  # type: ignore[assignment]
            name = _SHARED.get(name, name) if self._shared else name
            found = _sum(found, frozenset(((name, k),)), 1)
        return found

    # ---- one value -------------------------------------------------------------------------------

    def shifted(self, root: Node) -> _Shifted:
        """Return what a value of a mod is in terms of packed positions."""
        done: dict[Node, _Shifted] = {}
        for node in ir.topological(root):
            done[node] = self._made(node, [done[arg] for arg in node.args])
        return done[root]

    def _made(self, node: Node, args: list[_Shifted]) -> _Shifted:
        if node in self._inputs:
            return self._inputs[node]
        if node.op == "load":
            return self._load_of_mod(node, args)
        if all(not arg.by for arg in args):
            return self._opaque(node, args)
        rule = _RULES.get(node.op) if args[-1].node.dtype is I32 else None
        made = None if rule is None else rule(self, node, args)
        return self._opaque(node, args) if made is None or not made.few else made

    def _opaque(self, node: Node, args: list[_Shifted]) -> _Shifted:
        return _Shifted(ir.with_args(node, tuple([self.written(arg) for arg in args])))

    def written(self, value: _Shifted) -> Node:
        """Return a value with its shifts written out."""
        for begin, end, length in _LENGTHS.values():
            if value.node is _ZERO and value.by == self._by(**{begin: -1, end: 1}):
                return self.load(length)
        total = value.node
        for table, k in sorted(value.by, key=lambda shift: (shift[1] < 0, shift[0])):
            term = self.load(table)
            if abs(k) != 1:
                term = apply("mul", term, const(abs(k)))
            total = apply("add" if k > 0 else "sub", total, term)
        return total

    # ---- loads -----------------------------------------------------------------------------------

    def _load_of_mod(self, node: Node, args: list[_Shifted]) -> _Shifted:
        if self._clamps:
            made = ir.substitute(node, self._in_index)
        else:
            made = ir.with_args(node, tuple([self.written(arg) for arg in args]))
        self.loads[node] = made
        return _Shifted(made)

    def _in_index(self, node: Node, args: tuple[Node, ...]) -> Node:
        """Return what stands for a node in an index of a mask: it has a value for every key."""
        if node is ir.input_("kv"):
            place = apply("sub", node, self.load("kv_begin"))
            last = apply("sub", self.load("kv_length"), const(1))
            return apply("max", apply("min", place, last), _ZERO)
        if node is ir.input_("q"):
            return self.load("q_position")
        if node in self._inputs:
            return self.written(self._inputs[node])
        return ir.with_args(node, args)

    # ---- rules for shifts ------------------------------------------------------------------------

    def _add(self, node: Node, args: list[_Shifted]) -> _Shifted:
        return args[0].plus(args[1], 1 if node.op == "add" else -1)

    def _neg(self, node: Node, args: list[_Shifted]) -> _Shifted:
        return _Shifted(apply("neg", args[0].node), _sum(frozenset(), args[0].by, -1))

    def _mul(self, node: Node, args: list[_Shifted]) -> _Shifted | None:
        for value, factor in (args, args[::-1]):
            if factor.node.op == "const" and not factor.by:
                times: int = factor.node.attr
                by = frozenset((table, k * times) for table, k in value.by if times)
                return _Shifted(apply("mul", value.node, factor.node), by)
        return None

    def _compared(self, node: Node, args: list[_Shifted]) -> _Shifted | None:
        """Drop what both sides are shifted by: no side may overflow, with or without it."""
        kept = self._less_common(args)
        if kept is None:
            return None
        values, _ = kept
        return _Shifted(apply(node.op, *[self.written(value) for value in values]))

    def _chosen(self, node: Node, args: list[_Shifted]) -> _Shifted | None:
        """Choose before the shift that both have, rather than after it."""
        kept = self._less_common(args[-2:], any_size=node.op == "where")
        if kept is None:
            return None
        values, common = kept
        condition = [self.written(arg) for arg in args[:-2]]
        made = apply(node.op, *condition, *[self.written(value) for value in values])
        return _Shifted(made, common)

    def _less_common(
        self, args: list[_Shifted], *, any_size: bool = False
    ) -> tuple[list[_Shifted], frozenset[tuple[Table, int]]] | None:
        """Return two values without the shifts that both have, and those; None if there are none.

        Args:
            args: the values.
            any_size: they may overflow.
        """
        common = args[0].by & args[1].by
        near = any_size or all(
            arg.few and bound(arg.node, any_call).within(-_FAR, _FAR) for arg in args
        )
        if not common or not near:
            return None
        return [_Shifted(arg.node, arg.by - common) for arg in args], common


_Rule: TypeAlias = Callable[[_Packing, Node, "list[_Shifted]"], "_Shifted | None"]
_RULES: Final[dict[str, _Rule]] = {
    "add": _Packing._add,
    "sub": _Packing._add,
    "neg": _Packing._neg,
    "mul": _Packing._mul,
    **dict.fromkeys(_COMPARED, _Packing._compared),
    **dict.fromkeys(_CHOSEN, _Packing._chosen),
}


class _PackedPlaces(Places):
    """The places of a mod's loads, for the loads that they became."""

    def __init__(self, places: Places, loads: tuple[tuple[Node, Node], ...]) -> None:
        self._places = places
        self._moved = loads

    def where(self, load: Node) -> Where | None:
        """See `Places.where`."""
        made = {new: functools.partial(self._places.where, old) for old, new in self._moved}
        return Places(made).where(load)
