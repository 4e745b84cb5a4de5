"""What a kernel decides about a graph before it computes anything: what varies, and in what order.

Plain Python: the same for every place at which values are asked for (`evaluator`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flexfa4.frontend.analysis.shifts import shift_invariant
from flexfa4.frontend.ir import BOOL, F32, I32, Node, topological
from flexfa4.frontend.ops import apply
from flexfa4.frontend.rewriting.rules import simplify
from flexfa4.kernels.emit.access import Access, linear_slope
from flexfa4.kernels.emit.widths import Ranges

_COMPARISONS: Final = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_EXACT: Final = 1 << 24  # integers up to this are fp32 numbers
_SMALL: Final = 1 << 62  # differences of integers up to this do not wrap around
_NO_WORK: Final = frozenset({"const", "input", "iota"})


@dataclass(frozen=True)
class Shortcut:
    """A node that follows from another one's value at the thread's first column, the origin.

    A number is ``of + slope * (kv - origin)``, with `of` the node itself; a comparison is that of
    such a number with 0.

    Attributes:
        of: what is evaluated at the origin.
        slope: free of kv; for a comparison, a constant.
    """

    of: Node
    slope: Node


class Structure:
    """Answers about the nodes of one graph.

    Args:
        ranges: bounds of the nodes.
        accesses: how each load is made.
        row_inputs: the inputs that differ from row to row.
        exact: floats must have torch's bits.
    """

    def __init__(
        self,
        ranges: Ranges,
        accesses: Mapping[Node, Access],
        row_inputs: frozenset[str],
        exact: bool,
    ) -> None:
        self._ranges, self._accesses = ranges, accesses
        self._row_inputs, self._exact = row_inputs, exact
        self._axes: dict[Node, frozenset[str]] = {}
        self._orders: dict[tuple[Node, bool, bool], list[Node]] = {}
        self._shortcuts: dict[Node, Shortcut | None] = {}
        self._diagonals: dict[Node, bool] = {}

    def axes(self, node: Node) -> frozenset[str]:
        """Return which of ``row`` and ``column`` a value varies with."""
        found = self._axes.get(node)
        if found is None:
            names = node.depends
            rows = {"row"} if names & self._row_inputs or "score" in names else set()
            columns = {"column"} if names & {"kv", "score"} else set()
            found = self._axes[node] = frozenset(rows | columns)
        return found

    def diagonal(self, node: Node) -> bool:
        """Return whether a value is the same wherever ``q - kv`` is, so that rows may share it.

        What reads by steady loads is not shared: each of these is one instruction, and to share
        them their indices would have to be clamped.
        """
        found = self._diagonals.get(node)
        if found is None:
            moves = node.depends & self._row_inputs == {"q"} and "kv" in node.depends
            found = moves and "score" not in node.depends and shift_invariant(node)
            if found:
                below = [n for n in topological(node) if n.op == "load" and "kv" in n.depends]
                found = all(self._accesses[load].diagonal for load in below)
            self._diagonals[node] = found
        return found

    def order(self, root: Node, at_origin: bool, share: bool) -> list[Node]:
        """Return what is evaluated for a node, operands before users.

        Args:
            root: the node.
            at_origin: there are no shortcuts, since this is where they begin.
            share: what rows share is evaluated at another place than the rest.
        """
        share = share and not self.diagonal(root)  # all of it is at that place then
        found = self._orders.get((root, at_origin, share))
        if found is None:
            found = self._orders[root, at_origin, share] = self._walk(root, at_origin, share)
        return found

    def _walk(self, root: Node, at_origin: bool, share: bool) -> list[Node]:
        order: dict[Node, None] = {}
        stack = [(root, False)]
        while stack:
            node, expanded = stack.pop()
            if expanded:
                order[node] = None
            elif node not in order:
                stack.append((node, True))
                # what rows share is evaluated elsewhere, and loads evaluate their indices
                other = node.op == "load" or (share and self.diagonal(node))
                if not other and (at_origin or self.shortcut(node) is None):
                    stack += [(a, False) for a in reversed(node.args)]
        return list(order)

    def fixed_parts(self, root: Node) -> list[Node]:
        """Return the largest nodes that do not vary with the column, below what does."""
        parts: dict[Node, None] = {}
        seen: set[Node] = set()
        stack = [root]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if "column" not in self.axes(node):
                parts[node] = None
                continue
            shortcut = self.shortcut(node)
            if shortcut is not None:
                stack += [shortcut.of, shortcut.slope]
            stack += node.args
        return [part for part in parts if part.op not in _NO_WORK]

    def shortcut(self, node: Node) -> Shortcut | None:
        """Return how a node follows from a value at the origin, None where it does not."""
        if node not in self._shortcuts:
            self._shortcuts[node] = self._found_shortcut(node)
        return self._shortcuts[node]

    def _found_shortcut(self, node: Node) -> Shortcut | None:
        if "kv" not in node.depends or "score" in node.depends or node.length is not None:
            return None
        if node.op in _COMPARISONS and node.args[0].dtype is I32:
            return self._compared(node)
        if node.dtype is BOOL or node.op == "load":
            return None
        if node.dtype is F32 and self._exact and not self._exactly_linear(node):
            return None
        step = linear_slope(node)
        return None if step is None else Shortcut(node, step)

    def _compared(self, node: Node) -> Shortcut | None:
        """Return a comparison of integers as one of their difference with 0."""
        if not all(self._ranges.interval(a).within(-_SMALL, _SMALL) for a in node.args):
            return None
        difference = simplify(apply("sub", *node.args))
        step = linear_slope(difference)
        return Shortcut(difference, step) if step is not None and step.op == "const" else None

    def _exactly_linear(self, node: Node) -> bool:
        """Whether a float is an integer that fp32 has, so that its steps are exact."""
        interval = self._ranges.interval(node)
        return node.op == "to_f32" and bool(interval.within(-_EXACT, _EXACT))
