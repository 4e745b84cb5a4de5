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
from flexfa4.kernels.emit.places import LINES, Along
from flexfa4.kernels.emit.widths import Ranges

_COMPARISONS: Final = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_EXACT: Final = 1 << 24  # integers up to this are fp32 numbers
_SMALL: Final = 1 << 62  # differences of integers up to this do not wrap around
_NO_WORK: Final = frozenset({"const", "input", "iota"})

PACKED: Final = frozenset(
    {"add", "sub", "mul", "neg", "div", "exp", "log", "log1p", "sigmoid", "sum"}
)
"""Ops of which a part at least is done for two columns by one instruction, see `table`."""
_MODIFIERS: Final = frozenset({"abs"})
"""Ops that are part of the instruction that uses their result, unless that is one on pairs."""


@dataclass(frozen=True)
class Shortcut:
    """A node that follows from another one's value at the thread's first column, the origin.

    A number is ``of + slope * (kv - origin)`` (with q along queries), with `of` the node itself; a
    comparison is that of such a number with 0.

    Attributes:
        of: what is evaluated at the origin.
        slope: free of that position; for a comparison, a constant.
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
        along: what moves from column to column.
    """

    def __init__(
        self,
        ranges: Ranges,
        accesses: Mapping[Node, Access],
        row_inputs: frozenset[str],
        exact: bool,
        along: Along = "kv",
    ) -> None:
        self._ranges, self._accesses = ranges, accesses
        self._row_inputs, self._exact, self._along = row_inputs, exact, along
        self._axes: dict[Node, frozenset[str]] = {}
        self._orders: dict[tuple[Node, bool, bool], list[Node]] = {}
        self._shortcuts: dict[Node, Shortcut | None] = {}
        self._diagonals: dict[Node, bool] = {}
        self._packs: dict[Node, bool] = {}

    def axes(self, node: Node) -> frozenset[str]:
        """Return which of ``row`` and ``column`` a value varies with."""
        found = self._axes.get(node)
        if found is None:
            names = node.depends
            rows = {"row"} if names & self._row_inputs or "score" in names else set()
            columns = {"column"} if names & {self._along, "score"} else set()
            found = self._axes[node] = frozenset(rows | columns)
        return found

    def diagonal(self, node: Node) -> bool:
        """Return whether a value is the same wherever ``q - kv`` is, so that rows may share it.

        What reads by steady loads is not shared: each of these is one instruction, and to share
        them their indices would have to be clamped.
        """
        found = self._diagonals.get(node)
        if found is None:
            rows = node.depends & self._row_inputs
            moves = rows == {LINES[self._along]} and self._along in node.depends
            found = moves and "score" not in node.depends and shift_invariant(node)
            if found:
                below = [
                    n for n in topological(node) if n.op == "load" and self._along in n.depends
                ]
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

    def packs(self, node: Node) -> bool:
        """Return whether a value is computed for two columns by instructions on pairs.

        Not if that is more instructions: magnitudes are free for instructions on single numbers
        only, and a product that is not on pairs is fused with the sum that uses it.  Of what
        follows from a value at the origin, only what does so exactly, by a constant step: from one
        column to the next, and from there to all pairs.
        """
        found = self._packs.get(node)
        if found is None:
            found = self._packs[node] = self._found_on_pairs(node)
        return found

    def _found_on_pairs(self, node: Node) -> bool:
        if node.dtype is not F32 or "column" not in self.axes(node):
            return False
        shortcut = self.shortcut(node)
        if shortcut is not None:
            return shortcut.slope.op == "const" and self._exactly_linear(node)
        if node.op not in PACKED or any(a.dtype is not F32 for a in node.args):
            return False
        return not any(self.modifies(a) or self._joins(node, a) for a in node.args)

    def modifies(self, node: Node) -> bool:
        """Return whether a value costs nothing as an operand of instructions on single numbers."""
        return node.op in _MODIFIERS and node.dtype is F32 and "column" in self.axes(node)

    def _joins(self, user: Node, operand: Node) -> bool:
        """Whether an operand on single numbers is fused with its user, if that is one as well."""
        fused = user.op in ("add", "sub") and operand.op == "mul"
        return fused and "column" in self.axes(operand) and not self.packs(operand)

    def shortcut(self, node: Node) -> Shortcut | None:
        """Return how a node follows from a value at the origin, None where it does not."""
        if node not in self._shortcuts:
            self._shortcuts[node] = self._found_shortcut(node)
        return self._shortcuts[node]

    def _found_shortcut(self, node: Node) -> Shortcut | None:
        if self._along not in node.depends or "score" in node.depends or node.length is not None:
            return None
        if node.op in _COMPARISONS and node.args[0].dtype is I32:
            return self._compared(node)
        if node.dtype is BOOL or node.op == "load":
            return None
        if node.dtype is F32 and self._exact and not self._exactly_linear(node):
            return None
        step = linear_slope(node, self._along)
        return None if step is None else Shortcut(node, step)

    def _compared(self, node: Node) -> Shortcut | None:
        """Return a comparison of integers as one of their difference with 0."""
        if not all(self._ranges.interval(a).within(-_SMALL, _SMALL) for a in node.args):
            return None
        difference = simplify(apply("sub", *node.args))
        step = linear_slope(difference, self._along)
        return Shortcut(difference, step) if step is not None and step.op == "const" else None

    def _exactly_linear(self, node: Node) -> bool:
        """Whether a float is an integer that fp32 has, so that its steps are exact."""
        interval = self._ranges.interval(node)
        return node.op == "to_f32" and bool(interval.within(-_EXACT, _EXACT))
