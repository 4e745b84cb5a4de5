"""The verifier: every invariant of a graph, checked node by node.

A violation is a mistake of ours, not of a user, so it raises `GraphError` and is not in the error
catalogue.  One mechanism covers the dtype and length rules of all ops: made again with the public
constructors, a node must come out as itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, get_args

from flexfa4.errors import OperandError
from flexfa4.frontend import ir
from flexfa4.frontend.ir import (
    BOOL,
    F32,
    I32,
    Buffer,
    DType,
    Graph,
    Node,
    Scalar,
    Side,
    topological,
)
from flexfa4.frontend.ops import OPS, apply


class GraphError(AssertionError):
    """A graph that breaks the rules of the IR: a bug in this package."""


_ROOT_DTYPE: Final[dict[str, DType]] = {"score": F32, "mask": BOOL}
_CONSTANT: Final[dict[DType, type]] = {F32: float, I32: int, BOOL: bool}

_REMAKE: Final[dict[str, Callable[[Node], Node]]] = {
    "const": lambda n: ir.const(n.attr, n.dtype),
    "input": lambda n: ir.input_(n.attr),
    "symbol": lambda n: ir.symbol(n.attr),
    "scalar": lambda n: ir.scalar(n.attr),
    "load": lambda n: ir.load(n.attr, n.args),
    "size": lambda n: ir.size(*n.attr),
    "iota": lambda n: ir.iota(n.attr),
    "search": lambda n: ir.search(n.attr, n.args[:-1], n.args[-1]),
}


def verify(graph: Graph) -> None:
    """Check a graph.

    Raises:
        GraphError: with the first node that is wrong, and why.
    """
    root = graph.root
    _require(root.dtype is _ROOT_DTYPE[graph.kind], root, f"a {graph.kind} graph's root")
    _require(root.length is None, root, "a vector as the root")
    for node in topological(root):
        _verify_node(node)
        reads_score = node.op == "input" and node.attr == "score"
        _require(not (reads_score and graph.kind == "mask"), node, "a mask that reads the score")
    made = ir.make_graph(graph.kind, root)
    _require(graph.buffers == made.buffers, root, f"buffers {graph.buffers} != {made.buffers}")
    _require(graph.scalars == made.scalars, root, f"scalars {graph.scalars} != {made.scalars}")
    names = [b.name for b in graph.buffers] + [s.name for s in graph.scalars]
    _require(len(set(names)) == len(names), root, f"names of captures are not unique: {names}")


def _verify_node(node: Node) -> None:
    _require(node.op in _REMAKE or node.op in OPS, node, "no such op")
    reads = node.op in ("load", "search")
    _require(reads or node.op in OPS or not node.args, node, "a leaf with operands")
    _require(node.op not in OPS or node.attr is None, node, "an op with an attribute")
    if node.op == "const":
        _require(type(node.attr) is _CONSTANT[node.dtype], node, "a constant of the wrong type")
        if node.dtype is I32:
            _require(-(2**63) <= node.attr < 2**63, node, "an integer beyond 64 bits")
    try:
        remake = _REMAKE.get(node.op)
        made = apply(node.op, *node.args) if remake is None else remake(node)
    except (AssertionError, OperandError, KeyError, TypeError, AttributeError) as error:
        raise GraphError(f"{node!r}: cannot be made again: {error}") from error
    if made is not node:  # the text of a deep node is long, so it is written only now
        raise GraphError(
            f"{node!r}: {node.dtype!r}, length {node.length}: made again it is {made!r}"
        )
    if node.op in ("load", "size"):
        buffer = node.attr if node.op == "load" else node.attr[0]
        _require(isinstance(buffer, Buffer), node, "not a buffer")
        _require(node.op == "load" or 0 <= node.attr[1] < len(buffer.shape), node, "no such axis")
    if node.op == "search":
        _require(0 <= node.attr.axis < len(node.attr.buffer.shape), node, "no such axis")
        _require(node.attr.side in get_args(Side), node, "no such side")
    if node.op == "scalar":
        _require(isinstance(node.attr, Scalar), node, "not a scalar")


def _require(holds: bool, node: Node, problem: str) -> None:
    if not holds:
        raise GraphError(f"{node!r}: {problem}")
