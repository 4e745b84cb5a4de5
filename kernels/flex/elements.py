"""Vectors taken apart: FlexAttention's mods compute one number for each score.

A reduction becomes its elements joined one by one, which reads and computes each of them for each
score: for short vectors only.
"""

from __future__ import annotations

import functools
from typing import Final

from flexfa4.frontend.ir import Graph, Node, make_graph, substitute, topological, with_args
from flexfa4.frontend.masks.unroll import element
from flexfa4.frontend.ops import OPS, apply
from flexfa4.kernels.emit.errors import KernelLimitError

LONGEST: Final = 16
"""Elements of a vector that is taken apart."""
_MOST: Final = 1000  # nodes that vectors may grow to

_JOINS: Final = {"sum": "add", "any": "or", "all": "and", "amax": "max", "amin": "min"}


@functools.lru_cache(maxsize=256)
def without_vectors(graph: Graph) -> Graph:
    """Return an equal graph of numbers alone.

    Its captures are those of `graph`, in an order of their own.

    Raises:
        KernelLimitError: vectors are too long, or too much is computed with them.
    """
    reductions = [n for n in topological(graph.root) if n.op in OPS and OPS[n.op].reduces]
    if not reductions:
        return graph
    lengths = [node.args[0].length or 0 for node in reductions]
    vectors = [sum(part.length is not None for part in topological(n.args[0])) for n in reductions]
    grown = sum(length * size for length, size in zip(lengths, vectors, strict=True))
    if max(lengths) > LONGEST or grown > _MOST:
        raise KernelLimitError(
            found=f"a vector of {max(lengths)} elements is reduced for each score",
            allowed=f"vectors of at most {LONGEST} elements, {_MOST} of all operations with them",
            rewrite="a table of the sums, made before the call",
        )
    return make_graph(graph.kind, substitute(graph.root, _joined))


def _joined(node: Node, args: tuple[Node, ...]) -> Node:
    """Return a node with new operands, a reduction as its elements joined."""
    if node.op not in _JOINS or not args[0].length:
        return with_args(node, args)
    join = functools.partial(apply, _JOINS[node.op])
    return functools.reduce(join, [element(args[0], i) for i in range(args[0].length)])
