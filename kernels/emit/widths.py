"""Which integers of a graph fit 32 bits.

GPUs compute with 32 bits; 64-bit sums take two instructions, products four, quotients a hundred.
Interval analysis bounds every integer from what a plan knows: positions by the class of the
lengths, numbers by theirs, elements of captured tensors by their dtype.  What is not proved to fit
is 64 bits wide, so nothing wraps around that does not in the reference.
"""

from __future__ import annotations

from typing import Final

from flexfa4.frontend.analysis.bounds import bounds
from flexfa4.frontend.analysis.intervals import Interval
from flexfa4.frontend.ir import I32, Graph, Node
from flexfa4.kernels.emit.captures import SLACK, SMALL, CapturePlan

HEADS: Final = 1 << 24  # batches and heads of a call, each

_CONTENTS: Final = {
    "bool": Interval(0, 1),
    "uint8": Interval(0, 2**8 - 1),
    "int8": Interval(-(2**7), 2**7 - 1),
    "int16": Interval(-(2**15), 2**15 - 1),
    "int32": Interval(-(2**31), 2**31 - 1),
}


class Ranges:
    """Bounds of integers in all calls of a plan, at positions past the lengths too.

    Args:
        graph: whose captures the plan describes.
        plan: what is known.
    """

    def __init__(self, graph: Graph, plan: CapturePlan) -> None:
        self._positions = plan.positions
        self._buffers = dict(zip(graph.buffers, plan.buffers, strict=True))
        self._scalars = dict(zip(graph.scalars, plan.scalars, strict=True))
        self._positive = plan.positive
        self._found: dict[Node, Interval] = {}

    def interval(self, node: Node) -> Interval:
        """Return bounds of a node."""
        if node not in self._found:
            self._found.update(bounds(node, self._leaf))
        return self._found[node]

    def width(self, node: Node) -> int:
        """Return the bits that an integer is computed in: 32 or 64."""
        return 32 if self.interval(node).within(-(2**31), 2**31 - 1) else 64

    def wraps(self, division: Node) -> bool:
        """Return whether an integer's quotient by another one may be none of 32 bits though both
        are: the least one's by -1."""
        a, b = map(self.interval, division.args)
        return bool(a.lo <= -(2**31)) and -1 in b

    def _leaf(self, node: Node) -> Interval | None:
        match node.op:
            case "input" if node.attr in ("q", "kv"):
                return Interval(0, self._positions + SLACK)
            case "input" if node.attr in ("b", "h"):
                return Interval(0, HEADS)
            case "symbol":
                return Interval(0, self._positions if node.attr.endswith("_len") else HEADS)
            case "scalar" if self._scalars[node.attr] == "i32":
                return Interval(1 if node.attr.name in self._positive else -SMALL, SMALL)
            case "size" if self._buffers[node.attr[0]].narrow:
                return Interval(0, SMALL)
            case "load" if node.dtype is I32:
                return _CONTENTS.get(self._buffers[node.attr].storage)
        return None
