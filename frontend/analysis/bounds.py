"""Bounds of a whole graph: what values its root can take, and whether its loads stay in range.

`bound` walks a graph once with the interval rules of the ops table; what is known about the leaves
comes from the caller.  `Domain` holds what one call knows (sizes, captured numbers, shapes), and
`prove_loads` uses it to find the loads that need no check at run time.

Each operand is bounded by itself: ``q - q`` is not known to be 0, and a load that is guarded by a
condition (``where(q >= 1, t[q - 1], 0)``) is not proved.  `rules` takes care of the first; the
second costs a check at run time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flexfa4.frontend.analysis.intervals import (
    ANY_BOOL,
    ANY_F32,
    ANY_I32,
    FALSE,
    TRUE,
    Interval,
    point,
)
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import BOOL, F32, I32, Buffer, DType, Graph, Node, Scalar, topological
from flexfa4.frontend.ops import OPS
from flexfa4.frontend.sizes import Sizes

Leaf = Callable[[Node], "Interval | None"]

ANY: dict[DType, Interval] = {F32: ANY_F32, I32: ANY_I32, BOOL: ANY_BOOL}
_LEAVES = frozenset({"input", "symbol", "scalar", "load", "size"})


def unknown(_: Node) -> None:
    """Know nothing about any leaf."""


def bound(root: Node, leaf: Leaf = unknown) -> Interval:
    """Return an interval that holds every value of `root` (of every element, for a vector).

    Args:
        root: the node to bound.
        leaf: what is known about an input, symbol, scalar, size or load; None for nothing.  Ends of
            any number type are accepted: they are made fit for the node's dtype.
    """
    return bounds(root, leaf)[root]


def bounds(root: Node, leaf: Leaf = unknown) -> dict[Node, Interval]:
    """Return the interval of every node below `root`, see `bound`."""
    found: dict[Node, Interval] = {}
    for node in topological(root):
        op = node.op
        if op in _LEAVES:
            known = leaf(node)
            found[node] = ANY[node.dtype] if known is None else _typed(known, node.dtype)
        elif op == "const":
            found[node] = point(node.attr)
        elif op == "iota":
            found[node] = Interval(0, max(node.attr - 1, 0))
        else:
            row = OPS[op]
            if row.reduces:
                found[node] = row.interval(found[node.args[0]], node.args[0].length)
            else:
                found[node] = row.interval(*[found[a] for a in node.args])
    return found


def _typed(a: Interval, dtype: DType) -> Interval:
    """Return `a` with ends of the dtype's Python type, which the rules tell dtypes by."""
    if dtype is BOOL:
        return TRUE if a.lo else ANY_BOOL if a.hi else FALSE
    if dtype is F32:
        return Interval(float(a.lo), float(a.hi), a.nan)
    if type(a.lo) is int and type(a.hi) is int:
        return a
    lo = ANY_I32.lo if a.lo == -math.inf else math.floor(a.lo)
    hi = ANY_I32.hi if a.hi == math.inf else math.ceil(a.hi)
    return Interval(lo, hi)


@dataclass(frozen=True)
class Domain:
    """The sizes and values of one call.

    Attributes:
        b: batch size.
        h: number of query heads that `h` runs over.
        q_len: number of queries; the symbol of that name, and what `q` runs over.
        kv_len: number of keys, likewise.
        num_heads: the symbol of that name.
        num_kv_heads: the symbol of that name.
        scalars: the value of each captured number.
        shapes: the shape of each captured tensor.
        q: least and greatest `q`, by default 0 and ``q_len - 1``.
        kv: least and greatest `kv`, likewise.
    """

    b: int
    h: int
    q_len: int
    kv_len: int
    num_heads: int
    num_kv_heads: int
    scalars: Mapping[Scalar, int | float] = field(default_factory=dict)
    shapes: Mapping[Buffer, tuple[int, ...]] = field(default_factory=dict)
    q: tuple[int, int] | None = None
    kv: tuple[int, int] | None = None

    def leaf(self, node: Node) -> Interval | None:
        """Return what this call knows about a leaf (as the argument of `bound`)."""
        if node.op == "input":
            if node.attr == "score":
                return None
            ends = {"q": self.q, "kv": self.kv}.get(node.attr)
            if ends is None:
                count = {"b": self.b, "h": self.h, "q": self.q_len, "kv": self.kv_len}[node.attr]
                ends = (0, max(count - 1, 0))
            return Interval(*ends)
        if node.op == "symbol":
            value: int = getattr(self, node.attr)
            return Interval(value, value)
        if node.op == "scalar":
            number = self.scalars.get(node.attr)
            if number is None:
                return None
            return point(float(number) if node.dtype is F32 else number)
        if node.op == "size":
            buffer, axis = node.attr
            shape = self.shapes.get(buffer)
            return Interval(0, ANY_I32.hi) if shape is None else Interval(shape[axis], shape[axis])
        return None


def prove_loads(root: Node, domain: Domain) -> dict[Node, bool]:
    """Return, for each load below `root`, whether all its indices are proved to be in range.

    An index is in range from ``-n`` to ``n - 1``, as in torch.  A load of a buffer whose shape
    `domain` does not know is not proved.
    """
    found = bounds(root, domain.leaf)
    return {
        node: node.attr in domain.shapes
        and all(
            found[index].within(-size, size - 1)
            for index, size in zip(node.args, domain.shapes[node.attr], strict=True)
        )
        for node in found
        if node.op == "load"
    }


@dataclass(frozen=True)
class Premises:
    """What proofs about a call rest on: a graph, its captured numbers, and sizes; hashable.

    Attributes:
        graph: the graph.
        scalars: values of its captured numbers.
        shapes: shapes of its captured tensors.
        sizes: sizes of the call.
    """

    graph: Graph
    scalars: tuple[int | float, ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: Sizes

    def domain(self) -> Domain:
        """Return the same for interval analysis."""
        sizes = self.sizes
        return Domain(
            b=sizes.batch,
            h=sizes.heads,
            q_len=sizes.q_len,
            kv_len=sizes.kv_len,
            num_heads=sizes.heads,
            num_kv_heads=sizes.kv_heads,
            scalars=dict(zip(self.graph.scalars, self.scalars, strict=True)),
            shapes=dict(zip(self.graph.buffers, self.shapes, strict=True)),
        )


def premises(bound: BoundGraph, sizes: Sizes) -> Premises:
    """Return what proofs about a call rest on."""
    shapes = tuple([tuple(t.shape) for t in bound.tensors])
    return Premises(bound.graph, bound.scalars, shapes, sizes)


@functools.lru_cache(maxsize=1024)
def unproved_loads(given: Premises) -> frozenset[Node]:
    """Return the loads whose indices are not proved to be in range."""
    proved = prove_loads(given.graph.root, given.domain())
    return frozenset(load for load, holds in proved.items() if not holds)
