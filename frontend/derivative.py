"""Derivatives of a graph's root with respect to the score and to each value read from a buffer.

Reverse mode over the derivative column of the ops table, with torch's conventions (half the
gradient to each side of a tie, 0 for ``abs`` at 0, both branches of ``where`` computed).  The
gradient of a captured number is not formed: Python numbers have none.  Adding up what each load
contributes to its buffer is the backward pass of the kernels, not done here.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexfa4.frontend.ir import F32, Graph, Node, const, input_, topological
from flexfa4.frontend.ops import OPS, apply
from flexfa4.frontend.rewriting.rules import simplify


@dataclass(frozen=True)
class Derivatives:
    """Gradients of a score graph's root.

    Attributes:
        score: d root / d score, f32.
        loads: for each f32 load of the graph, in topological order, the load and d root / d load.
            The gradient of a vector load is a vector, or a scalar that holds for each element.
    """

    score: Node
    loads: tuple[tuple[Node, Node], ...]


def derivatives(graph: Graph) -> Derivatives:
    """Return the simplified derivatives of a score graph's root, for a root gradient of 1."""
    assert graph.kind == "score", "a mask has no derivative"
    score = input_("score")
    order = list(topological(graph.root))
    loads = [n for n in order if n.op == "load" and n.dtype is F32]
    gradients = _reverse(graph.root, order, {score, *loads})
    zero = const(0.0)
    return Derivatives(
        simplify(gradients.get(score, zero)),
        tuple((load, simplify(gradients.get(load, zero))) for load in loads),
    )


def _reverse(root: Node, order: list[Node], targets: set[Node]) -> dict[Node, Node]:
    """Return the gradient of each node on a path of f32 nodes from a target to the root."""
    on_path: set[Node] = set()
    for node in order:
        if node in targets or (node.dtype is F32 and any(a in on_path for a in node.args)):
            on_path.add(node)
    gradients = {root: const(1.0)} if root in on_path else {}
    for node in reversed(order):
        if node not in gradients or node in targets:
            continue
        rule = OPS[node.op].derivative
        if rule is None:
            continue
        for arg, part in zip(node.args, rule(node, gradients[node]), strict=True):
            if part is None or arg not in on_path:
                continue
            part = _to_length(part, node, arg)
            before = gradients.get(arg)
            gradients[arg] = part if before is None else apply("add", before, part)
    return gradients


def _to_length(part: Node, node: Node, arg: Node) -> Node:
    """Return an operand's gradient summed over the elements of `node` that the operand went to."""
    if node.length is None or arg.length is not None:
        return part
    if part.length is None:  # the same for each element
        return apply("mul", part, const(float(node.length)))
    return apply("sum", part)
