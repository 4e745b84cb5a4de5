"""How a captured tensor is read: what a load's indices do from column to column and row to row.

Plain Python: the host needs it for the order of parameters, the code for addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexfa4.frontend.analysis.linear import slope
from flexfa4.frontend.analysis.shifts import shift_invariant
from flexfa4.frontend.ir import Node, input_
from flexfa4.frontend.ops import apply
from flexfa4.frontend.rewriting.rules import simplify
from flexfa4.kernels.emit.places import LINES, Along


@dataclass(frozen=True)
class LoadPlan:
    """What is proved about the indices of a load, for every score of a call.

    Attributes:
        in_range: they are within ``-n ... n - 1``.
        from_start: they are not negative, axis by axis.
    """

    in_range: bool
    from_start: tuple[bool, ...]


@dataclass(frozen=True)
class Access:
    """How one load is made.

    Attributes:
        load: the node.
        known: what is proved about its indices.
        steps: for a *steady* load, by how much each index that varies with the column grows from
            column to column: constants, and nothing has to be done to an index before it is used.
            None for others.
        distance: of a load of adjacent elements: its last index is ``kv + distance``, or ``q +
            distance`` along queries. None for others.
        diagonal: it gives the same wherever ``q - kv`` is the same, and is not steady. Kernels
            share it between rows, and then read it at places of that distance that do not exist:
            its indices are clamped.
        along: what moves from column to column.
    """

    load: Node
    known: LoadPlan
    steps: dict[int, int] | None
    distance: int | None
    diagonal: bool
    along: Along = "kv"

    def needs_size(self, axis: int) -> bool:
        """Return whether the code needs the tensor's size along an axis."""
        sure = self.known.in_range and self.known.from_start[axis]
        return not sure or (self.diagonal and self.along in self.load.args[axis].depends)


def access(load: Node, known: LoadPlan, along: Along = "kv") -> Access:
    """Return how a load is made where `along` moves from column to column."""
    moving = [axis for axis, index in enumerate(load.args) if along in index.depends]
    found = {axis: constant_slope(load.args[axis], along) for axis in moving}
    steps: dict[int, int] | None = {axis: s for axis, s in found.items() if s is not None}
    sure = known.in_range and all(known.from_start[axis] for axis in moving)
    if steps is None or len(steps) < len(moving) or not sure:
        steps = None
    distance = None
    if steps is not None and moving == [len(load.args) - 1] and load.length is None:
        rest = simplify(apply("sub", load.args[-1], input_(along)))
        distance = int(rest.attr) if rest.op == "const" else None
    both = bool(moving) and LINES[along] in load.depends
    diagonal = steps is None and both and shift_invariant(load)
    return Access(load, known, steps, distance, diagonal, along)


def constant_slope(index: Node, along: Along = "kv") -> int | None:
    """Return by how much an integer grows from column to column, None where it is no constant."""
    node = linear_slope(index, along)
    return int(node.attr) if node is not None and node.op == "const" else None


def linear_slope(node: Node, along: Along = "kv") -> Node | None:
    """Return the coefficient of a position in a number that is linear in it; None where it is not.

    It is None, too, for what does not vary with the position.
    """
    found = slope(node, along)
    return None if found is None or found.node is None else simplify(found.node)
