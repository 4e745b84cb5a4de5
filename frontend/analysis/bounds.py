"""Bounds of a whole graph: what values its root can take, and whether its loads stay in range.

`bound` walks a graph once with the interval rules of the ops table, for one box or for many; what
is known about leaves and loads comes from the caller.  `Domain` holds what one call knows (sizes,
captured numbers, shapes), and `prove_loads` uses it to find the loads that need no check at run
time.

Each operand is bounded by itself: ``q - q`` is not known to be 0 (though ``q * q`` is known to be a
square), and a load that is guarded by a condition (``where(q >= 1, t[q - 1], 0)``) is not proved.
`rules` takes care of the first; the second costs a check at run time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from flexfa4.frontend.analysis.ends import (
    I64_HI,
    I64_LO,
    End,
    as_bool,
    as_float,
    by_kind,
    choose,
)
from flexfa4.frontend.analysis.intervals import (
    ANY_BOOL,
    ANY_F32,
    ANY_I32,
    Interval,
    max_,
    min_,
    point,
    square,
)
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import (
    BOOL,
    F32,
    I32,
    Buffer,
    DType,
    Graph,
    Node,
    Scalar,
    size,
    topological,
)
from flexfa4.frontend.ops import OPS
from flexfa4.frontend.sizes import Sizes

Leaf = Callable[[Node], "Interval | None"]
Load = Callable[[Node, "list[Interval]"], "Interval | None"]

ANY: dict[DType, Interval] = {F32: ANY_F32, I32: ANY_I32, BOOL: ANY_BOOL}
_LEAVES = frozenset({"input", "symbol", "scalar", "load", "size"})


def unknown(_: Node) -> None:
    """Know nothing about any leaf."""


def bound(root: Node, leaf: Leaf = unknown, load: Load | None = None) -> Interval:
    """Return an interval that holds every value of `root` (of every element, for a vector).

    Args:
        root: the node to bound.
        leaf: what is known about an input, symbol, scalar, size or load; None for nothing.  Ends of
            any number type are accepted: they are made fit for the node's dtype.  Ends that are
            tensors, one number for each of many boxes, give a result for each box.
        load: what is known about a load from the intervals of its indices, in place of `leaf`.

    Intervals of operands are dropped after their last use, so many boxes take little memory.
    """
    order = list(topological(root))
    last = {arg: node for node in order for arg in node.args}
    found: dict[Node, Interval] = {}
    for node in order:
        found[node] = _bound(node, found, leaf, load)
        for arg in node.args:
            if last[arg] is node:
                found.pop(arg, None)
    return found[root]


def bounds(root: Node, leaf: Leaf = unknown, load: Load | None = None) -> dict[Node, Interval]:
    """Return the interval of every node below `root`, see `bound`."""
    found: dict[Node, Interval] = {}
    for node in topological(root):
        found[node] = _bound(node, found, leaf, load)
    return found


def _bound(node: Node, found: Mapping[Node, Interval], leaf: Leaf, load: Load | None) -> Interval:
    """Return the interval of a node from those of its operands."""
    op, args = node.op, node.args
    if op in _LEAVES:
        if op == "load" and load is not None:
            known = load(node, [found[a] for a in args])
        else:
            known = leaf(node)
        return ANY[node.dtype] if known is None else _typed(known, node.dtype)
    if op == "const":
        return point(node.attr)
    if op == "iota":
        return Interval(0, max(node.attr - 1, 0))
    if op == "search":
        known = leaf(size(node.attr.buffer, node.attr.axis))
        return Interval(0, ANY_I32.hi if known is None else known.hi)
    row = OPS[op]
    if row.reduces:
        return row.interval(found[args[0]], args[0].length)
    if op == "mul" and args[0] is args[1]:
        return square(found[args[0]])
    if op == "where":
        test, a, b = args
        if test.op in _EXTREMES and test.args == (b, a) and a.op == "const" and a.attr == a.attr:
            return _EXTREMES[test.op](found[b], found[a])
    return row.interval(*[found[a] for a in args])


# what ``where(x < c, c, x)`` is for a number c, and NaN where x is
_EXTREMES = {"lt": max_, "le": max_, "gt": min_, "ge": min_}


def _typed(a: Interval, dtype: DType) -> Interval:
    """Return `a` with ends of the dtype's type, which the rules tell dtypes by."""
    if dtype is BOOL:
        return Interval(as_bool(a.lo), as_bool(a.hi))
    if dtype is F32:
        return Interval(as_float(a.lo), as_float(a.hi), a.nan)
    if type(a.lo) is int and type(a.hi) is int:
        return a
    return Interval(_FLOORED(a.lo), _CEILED(a.hi))


def _to_whole(step: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], End]:
    def whole(x: torch.Tensor) -> End:
        if not x.is_floating_point():
            return x.long()
        stepped = step(x.double())
        # 2^63 - 1024 is the greatest float64 inside 64 bits
        inside = stepped.clamp(-(2.0**63), 2.0**63 - 1024).long()
        return choose(stepped >= 2.0**63, I64_HI, inside)

    return whole


# where a float is outside 64 bits, all that is known is that the integer is inside
_FLOORED = by_kind(lambda x: I64_LO if x < I64_LO else math.floor(x), _to_whole(torch.floor))
_CEILED = by_kind(lambda x: I64_HI if x > I64_HI else math.ceil(x), _to_whole(torch.ceil))


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
        any_length: the symbols of lengths may be any numbers from 1 to those.
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
    any_length: bool = False

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
            if self.any_length and node.attr in ("q_len", "kv_len"):
                return Interval(1, max(value, 1))
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
        any_length: lengths are those, or less (`Domain.any_length`): of sequences of a batch.
    """

    graph: Graph
    scalars: tuple[int | float, ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: Sizes
    any_length: bool = False

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
            any_length=self.any_length,
        )


def premises(bound: BoundGraph, sizes: Sizes, *, any_length: bool = False) -> Premises:
    """Return what proofs about a call rest on; see `Premises`."""
    shapes = tuple([tuple(t.shape) for t in bound.tensors])
    return Premises(bound.graph, bound.scalars, shapes, sizes, any_length)


@functools.lru_cache(maxsize=1024)
def unproved_loads(given: Premises) -> frozenset[Node]:
    """Return the loads whose indices are not proved to be in range."""
    if not given.graph.buffers:
        return frozenset()
    proved = prove_loads(given.graph.root, given.domain())
    return frozenset(load for load, holds in proved.items() if not holds)
