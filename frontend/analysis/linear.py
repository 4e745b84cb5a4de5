"""Decompositions of an expression: affine in the score, linear in an index, a sum of terms.

All three follow the structure of the expression; they do not expand products of sums and do not
compare different ways to write a value.  What they return is not simplified.  A coefficient is None
where it is known to be zero, so that no ``0 * x`` is ever built.

Equality is that of real numbers: results differ by rounding from the expression they came from, and
`Affine.finite_only` tells where they differ for an infinite score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flexfa4.frontend.ir import F32, I32, DType, Node, const, topological
from flexfa4.frontend.ops import apply


@dataclass(frozen=True)
class Affine:
    """``scale * score + bias``, both free of the score; None stands for zero.

    Attributes:
        scale: f32 or None.
        bias: f32 or None.
        finite_only: a selection gave one branch the scale 0 that did not read the score there, so
            an infinite or NaN score would now reach a value that ignored it.
    """

    scale: Node | None
    bias: Node | None
    finite_only: bool = False


_ZERO: Final = Affine(None, None)


def affine(root: Node) -> Affine | None:
    """Return an f32 scalar as an affine function of the score, or None if it is not seen to be."""
    found: dict[Node, Affine | None] = {}
    for node in topological(root):
        if node.dtype is not F32 or node.length is not None:
            continue
        if "score" not in node.depends:
            found[node] = Affine(None, node)
        elif node.op == "input":
            found[node] = Affine(const(1.0), None)
        else:
            rule = _AFFINE.get(node.op)
            # an operand that is no f32 scalar has no part; only a condition may be such
            parts = [p for a in node.args if (p := found.get(a, _ZERO)) is not None]
            whole = len(parts) == len(node.args)
            found[node] = rule(node, parts) if rule is not None and whole else None
    return found[root]


def _plus(a: Node | None, b: Node | None) -> Node | None:
    return b if a is None else a if b is None else apply("add", a, b)


def _minus(a: Node | None, b: Node | None) -> Node | None:
    if b is None:
        return a
    return apply("neg", b) if a is None else apply("sub", a, b)


def _scaled(name: str, a: Node | None, factor: Node) -> Node | None:
    return None if a is None else apply(name, a, factor)


def _chosen(condition: Node, a: Node | None, b: Node | None, dtype: DType = F32) -> Node | None:
    if a is b:
        return a
    zero = const(0, dtype)
    return apply("where", condition, zero if a is None else a, zero if b is None else b)


def _affine_sum(
    combine: Callable[[Node | None, Node | None], Node | None],
) -> Callable[[Node, list[Affine]], Affine | None]:
    def rule(node: Node, parts: list[Affine]) -> Affine | None:
        a, b = parts
        return Affine(
            combine(a.scale, b.scale), combine(a.bias, b.bias), a.finite_only or b.finite_only
        )

    return rule


def _affine_neg(node: Node, parts: list[Affine]) -> Affine | None:
    (a,) = parts
    return Affine(_minus(None, a.scale), _minus(None, a.bias), a.finite_only)


def _affine_mul(node: Node, parts: list[Affine]) -> Affine | None:
    for part, factor in zip(parts, reversed(node.args), strict=True):
        if "score" not in factor.depends:
            scale, bias = _scaled("mul", part.scale, factor), _scaled("mul", part.bias, factor)
            return Affine(scale, bias, part.finite_only)
    return None


def _affine_div(node: Node, parts: list[Affine]) -> Affine | None:
    part, divisor = parts[0], node.args[1]
    if "score" in divisor.depends:
        return None
    scale, bias = _scaled("div", part.scale, divisor), _scaled("div", part.bias, divisor)
    return Affine(scale, bias, part.finite_only)


def _affine_where(node: Node, parts: list[Affine]) -> Affine | None:
    condition = node.args[0]
    if "score" in condition.depends:
        return None
    _, a, b = parts
    ignored = (a.scale is None) != (b.scale is None)
    return Affine(
        _chosen(condition, a.scale, b.scale),
        _chosen(condition, a.bias, b.bias),
        a.finite_only or b.finite_only or ignored,
    )


_AFFINE: Final[dict[str, Callable[[Node, list[Affine]], Affine | None]]] = {
    "add": _affine_sum(_plus),
    "sub": _affine_sum(_minus),
    "neg": _affine_neg,
    "mul": _affine_mul,
    "div": _affine_div,
    "where": _affine_where,
}


# ---- linear in an index --------------------------------------------------------------------------


@dataclass(frozen=True)
class Slope:
    """The coefficient of an index: a node of the expression's dtype, or None for zero."""

    node: Node | None


def slope(root: Node, index: str) -> Slope | None:
    """Return the coefficient of the input `index`; None if `root` is not seen to be linear in it.

    The coefficient depends on neither that index nor the score.  Integers become floats after they
    were combined (``f32(kv - q)``), so the coefficient of a conversion is the converted one.
    """
    found: dict[Node, Slope | None] = {}
    for node in topological(root):
        if index not in node.depends:
            found[node] = Slope(None)
        elif node.length is not None:
            found[node] = None
        elif node.op == "input":
            found[node] = Slope(const(1))
        else:
            rule = _SLOPE.get(node.op)
            parts = [p for a in node.args if (p := found[a]) is not None]
            whole = len(parts) == len(node.args)
            found[node] = rule(node, parts, index) if rule is not None and whole else None
    return None if "score" in root.depends else found[root]


_Parts = list["Slope"]


def _slope_mul(node: Node, parts: _Parts, index: str) -> Slope | None:
    for part, factor in zip(parts, reversed(node.args), strict=True):
        if index not in factor.depends:
            return Slope(_scaled("mul", part.node, factor))
    return None


def _slope_div(node: Node, parts: _Parts, index: str) -> Slope | None:
    if index in node.args[1].depends:
        return None
    return Slope(_scaled("div", parts[0].node, node.args[1]))


def _slope_where(node: Node, parts: _Parts, index: str) -> Slope | None:
    if index in node.args[0].depends or node.dtype not in (F32, I32):
        return None
    return Slope(_chosen(node.args[0], parts[1].node, parts[2].node, node.dtype))


def _slope_cast(node: Node, parts: _Parts, index: str) -> Slope | None:
    if node.args[0].dtype is not I32:
        return None
    part = parts[0].node
    return Slope(None if part is None else apply("to_f32", part))


_SLOPE: Final[dict[str, Callable[[Node, _Parts, str], Slope | None]]] = {
    "add": lambda n, parts, _: Slope(_plus(parts[0].node, parts[1].node)),
    "sub": lambda n, parts, _: Slope(_minus(parts[0].node, parts[1].node)),
    "neg": lambda n, parts, _: Slope(_minus(None, parts[0].node)),
    "mul": _slope_mul,
    "div": _slope_div,
    "where": _slope_where,
    "to_f32": _slope_cast,
}


# ---- sums ----------------------------------------------------------------------------------------


def split_sum(root: Node, belongs: Callable[[Node], bool]) -> tuple[Node | None, Node | None]:
    """Return ``(a, b)`` with ``root = a + b``: `a` gathers the terms that belong, `b` the others.

    Terms are what sums, differences and negations of `root` are made of.
    """
    inside: Node | None = None
    outside: Node | None = None
    stack = [(root, False)]
    while stack:
        node, negative = stack.pop()
        if belongs(node):
            inside = _minus(inside, node) if negative else _plus(inside, node)
        elif node.op in ("add", "sub"):
            a, b = node.args
            stack += [(b, negative ^ (node.op == "sub")), (a, negative)]
        elif node.op == "neg":
            stack.append((node.args[0], not negative))
        else:
            outside = _minus(outside, node) if negative else _plus(outside, node)
    return inside, outside
