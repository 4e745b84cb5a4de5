"""Whether a mask looks the same all along the diagonal.

A mask is *shift invariant* if it does not change when query and key index both grow by one: causal
masks, windows, dilations.  Then all its rectangles at the same distance from the diagonal are
equal, and a backend evaluates one of them for all.

Found by following how much each integer grows under such a step.  A captured tensor indexed by a
position is not invariant, whatever it holds.
"""

from __future__ import annotations

from typing import Final

from flexfa4.frontend.ir import I32, Node, topological


def shift_invariant(root: Node) -> bool:
    """Return whether `root` is proved to keep its value when q and kv both grow by one.

    Provided that 64 bits hold all positions that it compares; see `shift_premises`.
    """
    return shift_premises(root) is not None


def shift_premises(root: Node) -> tuple[Node, ...] | None:
    """Return what must stay clear of the ends of 64 bits for `root` to be shift invariant.

    Sums that wrap around still grow by one modulo 2^64; but which of two is larger may change.

    Returns:
        The integers that grow along the diagonal and are compared by order; None where `root` is
        not shift invariant.
    """
    steps: dict[Node, int | None] = {}
    for node in topological(root):
        steps[node] = _step(node, steps)
    if steps[root] != 0:
        return None
    compared = (a for node in steps if node.op in _ORDERS for a in node.args if steps[a])
    return tuple(dict.fromkeys(compared))


_ORDERS: Final = frozenset({"lt", "le", "gt", "ge"})


def _step(node: Node, steps: dict[Node, int | None]) -> int | None:
    """Return by how much a node grows when q and kv grow by one; None where that is not known."""
    if node.op == "input":
        return 1 if node.attr in ("q", "kv") else 0
    of = [steps[a] for a in node.args]
    if all(step == 0 for step in of):
        return 0
    if any(step is None for step in of) or node.args[0].dtype is not I32:
        return None
    first, *rest = (step for step in of if step is not None)
    other = rest[0] if rest else 0
    if node.op == "add":
        return first + other
    if node.op == "sub":
        return first - other
    if node.op == "neg":
        return -first
    if node.op in _ORDERS or node.op in ("eq", "ne"):
        return 0 if first == other else None
    if node.op == "mul":
        a, b = node.args
        for factor, step in ((a, other), (b, first)):
            if factor.op == "const":
                return int(factor.attr) * step
    return None
