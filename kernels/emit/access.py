"""How a captured tensor is read: what a load's indices do from column to column and row to row.

Plain Python: the host needs it for the order of parameters, the code for addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexfa4.frontend.analysis.linear import slope
from flexfa4.frontend.analysis.shifts import shift_invariant
from flexfa4.frontend.ir import Node, input_
from flexfa4.frontend.ops import apply
from flexfa4.frontend.rewriting.rules import simplify

_KV: Final = input_("kv")


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
        distance: of a load of adjacent elements: its last index is ``kv + distance``. None for
            others.
        diagonal: it gives the same wherever ``q - kv`` is the same, and is not steady. Kernels
            share it between rows, and then read it at places of that distance that do not exist:
            its indices are clamped.
    """

    load: Node
    known: LoadPlan
    steps: dict[int, int] | None
    distance: int | None
    diagonal: bool

    def needs_size(self, axis: int) -> bool:
        """Return whether the code needs the tensor's size along an axis."""
        sure = self.known.in_range and self.known.from_start[axis]
        return not sure or (self.diagonal and "kv" in self.load.args[axis].depends)


def access(load: Node, known: LoadPlan) -> Access:
    """Return how a load is made."""
    moving = [axis for axis, index in enumerate(load.args) if "kv" in index.depends]
    found = {axis: constant_slope(load.args[axis]) for axis in moving}
    steps: dict[int, int] | None = {axis: s for axis, s in found.items() if s is not None}
    sure = known.in_range and all(known.from_start[axis] for axis in moving)
    if steps is None or len(steps) < len(moving) or not sure:
        steps = None
    distance = None
    if steps is not None and moving == [len(load.args) - 1] and load.length is None:
        rest = simplify(apply("sub", load.args[-1], _KV))
        distance = int(rest.attr) if rest.op == "const" else None
    diagonal = steps is None and bool(moving) and "q" in load.depends and shift_invariant(load)
    return Access(load, known, steps, distance, diagonal)


def constant_slope(index: Node) -> int | None:
    """Return by how much an integer grows from key to key, None where that is no constant."""
    node = linear_slope(index)
    return int(node.attr) if node is not None and node.op == "const" else None


def linear_slope(node: Node) -> Node | None:
    """Return the coefficient of kv in a number that is linear in it, None where it is not.

    It is None, too, for what does not vary with kv.
    """
    found = slope(node, "kv")
    return None if found is None or found.node is None else simplify(found.node)
