"""A score mod taken apart from its root towards the score: ``outer * core(inner * score) + terms``.

What is peeled off are factors that are the same along a row and terms without the score; what is
left, the core, has to be computed for each score.  Real numbers are meant: that factors are finite
is a premise of whoever moves them across the product of query and key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flexfa4.frontend.ir import F32, Node, const, input_, substitute, topological, with_args
from flexfa4.frontend.ops import apply
from flexfa4.frontend.rewriting.rules import simplify

_SCORE: Final = input_("score")
_ONE, _MINUS_ONE, _ZERO = const(1.0, F32), const(-1.0, F32), const(0.0, F32)


def _row_factor(node: Node) -> bool:
    """Whether a node is one number for each row."""
    return not node.depends & {"score", "kv"}


# One step from the root towards the score: `root = factor * inside + term`, or None.
_Step = tuple[Node, Node, Node]


def _peel_sum(a: Node, b: Node) -> _Step | None:
    if "score" not in b.depends:
        return _ONE, b, a
    return (_ONE, a, b) if "score" not in a.depends else None


def _peel_difference(a: Node, b: Node) -> _Step | None:
    if "score" not in b.depends:
        return _ONE, apply("neg", b), a
    return (_MINUS_ONE, a, b) if "score" not in a.depends else None


def _peel_product(a: Node, b: Node) -> _Step | None:
    if _row_factor(b):
        return b, _ZERO, a
    return (a, _ZERO, b) if _row_factor(a) else None


def _peel_quotient(a: Node, b: Node) -> _Step | None:
    return (apply("div", _ONE, b), _ZERO, a) if _row_factor(b) else None


_PEEL: Final[dict[str, Callable[..., _Step | None]]] = {
    "neg": lambda a: (_MINUS_ONE, _ZERO, a),
    "add": _peel_sum,
    "sub": _peel_difference,
    "mul": _peel_product,
    "div": _peel_quotient,
}


def peeled(root: Node) -> tuple[Node, Node, tuple[Node, ...]]:
    """Return (core, outer, terms) with ``root = outer * core + sum(terms)``.

    The terms are those that the mod adds one after the other; what it adds up first is one term.
    """
    core, outer, terms = root, _ONE, list[Node]()
    while core is not _SCORE and "score" in core.depends and core.op in _PEEL:
        step = _PEEL[core.op](*core.args)
        if step is None:
            break
        factor, term, core = step
        if term is not _ZERO:
            terms.append(product(outer, term))
        outer = product(outer, factor)
    return core, outer, tuple(terms)


def product(a: Node, b: Node) -> Node:
    """Return ``a * b``, without a factor that is 1 or 0."""
    if _ZERO in (a, b):
        return _ZERO
    return b if a is _ONE else a if b is _ONE else apply("mul", a, b)


@dataclass(frozen=True)
class InnerScale:
    """The score enters only as ``node = scale * score``, with `scale` free of kv and the score."""

    node: Node
    scale: Node


def inner_scale(root: Node) -> InnerScale | None:
    """Return the one product through which the score enters, see `InnerScale`."""
    users: dict[Node, set[Node]] = {}
    for node in topological(root):
        for arg in node.args:
            users.setdefault(arg, set()).add(node)
    node, scale = input_("score"), const(1.0)
    while node is not root and len(users.get(node, ())) == 1:
        (user,) = users[node]
        others = [a for a in user.args if a is not node]
        free = all(_row_factor(a) for a in others)
        divides = user.op == "div" and user.args[0] is node
        if user.op == "neg":
            scale = apply("neg", scale)
        elif (user.op == "mul" or divides) and len(others) == 1 and free:
            scale = apply(user.op, scale, others[0])
        else:
            break
        node = user
    return None if node.op == "input" else InnerScale(node, simplify(scale))


def fold_inner(core: Node) -> tuple[Node | None, Node]:
    """Take the row factor that every use of the score applies to it out of `core`."""
    found = inner_scale(core)
    if found is None:
        return None, core
    return found.scale, substitute(
        core, lambda node, args: _SCORE if node is found.node else with_args(node, args)
    )
