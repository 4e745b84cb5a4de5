"""Vectors taken apart: a mask that asks for any element of a vector asks for each by itself.

``(selected[q // 64] == kv // 64).any()`` bounded as a whole is as loose as the range of all tiles
that are selected; taken apart, each element has bounds of its own, and can be solved by itself.
The rewritten mask equals the given one on every lane; it is made for proofs and never evaluated.
"""

from __future__ import annotations

import functools
from typing import Final

from flexfa4.frontend.ir import Node, const, load, substitute, topological, with_args
from flexfa4.frontend.ops import apply

# What joins the elements of a vector to what its reduction is; sums are rounded in another order.
_JOINS: Final = {"any": "or", "all": "and", "amax": "max", "amin": "min"}
# Nodes that a mask may grow to, which takes a few milliseconds for each slice of boxes.
_MOST: Final = 2000


def unrolled(root: Node) -> Node:
    """Return an equal mask without vectors, but for sums and where it would grow too large."""
    growth = sum(
        node.args[0].length * sum(part.length is not None for part in topological(node.args[0]))
        for node in topological(root)
        if node.op in _JOINS and node.args[0].length is not None
    )
    if not 0 < growth <= _MOST:
        return root
    return substitute(root, _joined)


def _joined(node: Node, args: tuple[Node, ...]) -> Node:
    """Return a node with new operands, a reduction as its elements joined."""
    if node.op not in _JOINS or not args[0].length:
        return with_args(node, args)
    join = functools.partial(apply, _JOINS[node.op])
    return functools.reduce(join, [element(args[0], i) for i in range(args[0].length)])


def element(vector: Node, place: int) -> Node:
    """Return one element of a vector."""
    done: dict[Node, Node] = {}
    for node in topological(vector):
        args = tuple(done[a] for a in node.args)
        if node.length is None:
            done[node] = node
        elif node.op == "iota":
            done[node] = const(place)
        elif node.op == "load":
            done[node] = load(node.attr, args)
        else:
            done[node] = apply(node.op, *args)
    return done[vector]
