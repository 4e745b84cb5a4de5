"""The passes from a traced graph to the graph that is analysed and run, in one table.

Each pass keeps the root's value on every score that exists.  With ``FLEXFA4_VERIFY=1`` the graph is
verified on the way in and after every pass.  Facts and derivatives are computed from the result,
they are no passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flexfa4 import config
from flexfa4.frontend.analysis.bounds import bounds
from flexfa4.frontend.analysis.intervals import TRUE, Interval, ge, le
from flexfa4.frontend.ir import F32, Graph, Node, const, make_graph, topological, with_args
from flexfa4.frontend.ops import OPS, apply
from flexfa4.frontend.rewriting.rules import simplify
from flexfa4.frontend.sizes import LONGEST
from flexfa4.frontend.verify import verify


@dataclass(frozen=True)
class Pass:
    """A named step; `run` maps a root to an equal one."""

    name: str
    run: Callable[[Node], Node]
    meaning: str


def optimise(graph: Graph) -> Graph:
    """Return an equal graph after all passes."""
    checked = config.VERIFY.flag()
    if checked:
        verify(graph)
    for step in PASSES:
        graph = make_graph(graph.kind, step.run(graph.root))
        if checked:
            verify(graph)
    return graph


# ---- what holds for all calls ------------------------------------------------------------------

_POSITIONS: Final = Interval(0, LONGEST)
_COUNTS: Final = Interval(1, LONGEST)


def any_call(node: Node) -> Interval | None:
    """Return what is known about a leaf whatever the call (as the argument of `bound`)."""
    if node.op == "input":
        return None if node.attr == "score" else _POSITIONS
    if node.op == "symbol":
        return _COUNTS if node.attr in ("num_heads", "num_kv_heads") else _POSITIONS
    return _POSITIONS if node.op == "size" else None


def decide(root: Node) -> Node:
    """Replace what indices and sizes decide by themselves: ``q >= 0``, ``abs(kv)``, ``max(q, 0)``.

    Only integers and bools: for floats a bound would have to exclude NaN, and no input does.
    """
    found = bounds(root, any_call)
    done: dict[Node, Node] = {}
    for node in topological(root):
        value = found[node]
        made: Node | None = None
        if node.dtype is not F32 and node.args:
            if value.decided and node.length is None:
                made = const(value.lo, node.dtype)
            else:
                kept = _operand(node, found)
                made = None if kept is None else done[kept]
        done[node] = _rebuilt(node, tuple([done[a] for a in node.args])) if made is None else made
    return done[root]


def _rebuilt(node: Node, args: tuple[Node, ...]) -> Node:
    """Return the node with other operands; the conversion of a constant becomes one."""
    return apply(node.op, *args) if node.op in OPS else with_args(node, args)


_BEFORE: Final = {"min": le, "max": ge}


def _operand(node: Node, found: dict[Node, Interval]) -> Node | None:
    """Return the operand that an integer op is known to return."""
    a, b = node.args[0], node.args[-1]
    if node.op == "abs":
        chosen = a if found[a].lo >= 0 else None
    elif node.op in _BEFORE:
        before = _BEFORE[node.op]
        if before(found[a], found[b]) == TRUE:
            chosen = a
        else:
            chosen = b if before(found[b], found[a]) == TRUE else None
    else:
        return None
    return chosen if chosen is not None and chosen.length == node.length else None


PASSES: Final = (
    Pass("simplify", simplify, "fold constants and apply the rewrite rules"),
    Pass("decide", decide, "replace comparisons and extremes that the range of indices decides"),
    Pass("clean", simplify, "simplify what that made constant"),
)
