"""Simplification: folds constants and applies the table of rewrite rules to a fixed point.

The result has the same value for every input, infinities and NaN included, as `rule_table` defines
it.  It does not use what is known about the inputs (`pipeline` has a pass that does), and it does
not reassociate floats.

Nodes are visited bottom-up, each once; what a rule makes is visited as well before it replaces
anything, so one pass over the graph reaches the fixed point.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from typing import Final

import torch

from flexfa4.frontend.analysis.intervals import ANY_I32, Interval
from flexfa4.frontend.ir import BOOL, F32, I32, DType, Node, const, with_args
from flexfa4.frontend.ops import OPS
from flexfa4.frontend.rewriting.patterns import Operation, Rule, may_match
from flexfa4.frontend.rewriting.rule_table import RULES

hits: Final[Counter[Rule]] = Counter()

_FOLDED_AS: Final[dict[DType, torch.dtype]] = {
    F32: torch.float64,
    I32: torch.int64,
    BOOL: torch.bool,
}
_NORMAL: Final = (1.1754943508222875e-38, 3.4028234663852886e38)


def simplify(root: Node) -> Node:
    """Return an equal node of the same dtype and length, as simple as the rules make it."""
    done: dict[Node, Node] = {}
    becomes: dict[Node, Node] = {}  # a node -> what one step made of it
    stack = [root]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        step = becomes.get(node)
        if step is None:
            waiting = [a for a in node.args if a not in done]
            if waiting:
                stack.extend(waiting)
                continue
            step = becomes[node] = _step(node, tuple(done[a] for a in node.args))
        if step is node:
            done[node] = node
            stack.pop()
        elif step in done:
            done[node] = done[step]
            stack.pop()
        else:
            stack.append(step)
    return done[root]


def _step(node: Node, args: tuple[Node, ...]) -> Node:
    """Return what one step makes of a node with simplified operands: itself if nothing applies."""
    if args != node.args:
        return with_args(node, args)
    if not args:
        return _known_size(node) if node.op == "size" else node
    if node.op in ("load", "search"):
        return node
    if all(a.op == "const" for a in args):
        return fold(node)
    for rule, order in _candidates(node.op, tuple([a.op for a in args])):
        made = rule.rewrite(node, order)
        if made is not None:
            hits[rule] += 1
            return made
    return node


@functools.cache
def _candidates(name: str, operands: tuple[str, ...]) -> tuple[tuple[Rule, Operation], ...]:
    """Return the rules, in the order of the table, whose outline a node has."""
    return tuple(
        (rule, order) for rule in RULES for order in rule.orders if may_match(order, name, operands)
    )


def fold(node: Node) -> Node:
    """Return the constant that an op of constants gives; the op itself where devices would differ.

    Integers are folded where the interval rule knows their value: not through overflow, division by
    zero or shifts out of range.  Floats are folded in fp64, and only to results that fp32 has too.
    """
    row = OPS[node.op]
    if node.dtype is I32:
        ends = [Interval(a.attr, a.attr) for a in node.args]
        if row.interval(*ends) == ANY_I32 or (node.op == "pow" and node.args[1].attr < 0):
            return node
    operands = [torch.tensor(a.attr, dtype=_FOLDED_AS[a.dtype], device="cpu") for a in node.args]
    value = row.eager(*operands).item()
    if node.dtype is F32 and not _in_both_precisions(value):
        return node
    return const(value, node.dtype)


def _in_both_precisions(value: float) -> bool:
    return value == 0 or not math.isfinite(value) or _NORMAL[0] <= abs(value) <= _NORMAL[1]


def _known_size(node: Node) -> Node:
    """Return the size along an axis where the buffer's declaration fixes it."""
    buffer, axis = node.attr
    known = buffer.shape[axis]
    return node if known is None else const(known, I32)
