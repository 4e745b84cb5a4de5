"""Sums over vectors as matrix products: how a graph must be written for it.

In ``sum(a * b * c)`` along the vector axis the factors that vary with the queries go to one side,
those that vary with the keys to the other, so that the sum is a product of a (rows, vector) and a
(keys, vector) matrix; `Program` computes such a sum without ``a * b``.  A factor that varies with
both (a hidden layer of a small network over the distance) makes one side, and what each head has
the other.  The gradient of what a load reads is such a sum as well, of the gradients of the scores
and of the factors beside the load: `Term` says which of these meet in a product.

*Exact* regrouping only changes the order of multiplications and additions: infinities and NaN stay
what they are, bar overflow in between.  Gradients are regrouped more freely, by what holds for
finite numbers: the caller checks the result, since no sum and no product in which infinity or NaN
takes part is finite, and computes it as it was written where that fails.

A scalar factor that varies with both queries and keys stays within the sum, and makes a vector for
each score of it: taken out, it would turn some NaN to infinity.  Write it outside of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flexfa4.frontend.evaluate import operands
from flexfa4.frontend.ir import F32, Node, const, substitute, topological, with_args
from flexfa4.frontend.lanes import AXES
from flexfa4.frontend.ops import apply
from flexfa4.kernels.load_gradients import load_axes, varies

_ZERO, _ONE, _MINUS_ONE = const(0.0, F32), const(1.0, F32), const(-1.0, F32)
_PAIR: Final = frozenset({"q", "kv"})
_MOST_FACTORS: Final = 16  # more are left in one piece


def longest_vector(roots: Sequence[Node]) -> tuple[int, int]:
    """Return the lengths of the longest vectors for each pair of positions that are evaluated.

    Returns:
        The length of those that are the same for all batches and heads, and of the others; 0 for
        none.
    """
    needed = set(roots)
    shared = separate = 0
    for node in reversed(list(topological(*roots))):
        if node not in needed:
            continue
        needed.update(operands(node, products=True))
        if node.length is None or not varies(node) >= _PAIR:
            continue
        if varies(node) == _PAIR:
            shared = max(shared, node.length)
        else:
            separate = max(separate, node.length)
    return shared, separate


# ---- sums within a graph -------------------------------------------------------------------------


def regroup(root: Node, *, exact: bool = True) -> Node:
    """Write the sums over vectors in a graph as sums of products of two factors, where they are.

    ``sum(q[i] * w * k[j])`` --> ``sum((w * q[i]) * k[j])``

    Args:
        root: any node.
        exact: as in the module's docstring.
    """
    return substitute(root, lambda node, args: _regrouped(with_args(node, args), exact))


def _regrouped(node: Node, exact: bool) -> Node:
    if node.op != "sum" or node.dtype is not F32:
        return node
    return _sum(node.args[0], exact) or node


def _sum(vector: Node, exact: bool) -> Node | None:
    """Return the sum of a vector, where a product of two sides is in it."""
    if vector.op in ("add", "sub") and all(a.length is not None for a in vector.args):
        parts = [_sum(a, exact) for a in vector.args]
        if not any(parts):
            return None
        return apply(
            vector.op,
            *(p or apply("sum", a) for p, a in zip(parts, vector.args, strict=True)),
        )
    factors = _factors(vector, exact)
    taken_out = [] if exact else [f for f in factors if f.length is None and varies(f) >= _PAIR]
    # what varies with both joins the keys' side
    of_keys = [f for f in factors if "kv" in varies(f) and f not in taken_out]
    of_queries = [f for f in factors if "kv" not in varies(f)]
    if not _has_vector(of_queries) or not _has_vector(of_keys):
        return None
    product = apply("sum", apply("mul", _product(of_queries), _product(of_keys)))
    return _product([*taken_out, product])


def _has_vector(factors: list[Node]) -> bool:
    return any(f.length is not None for f in factors)


def _product(factors: list[Node]) -> Node:
    """Return the product of factors, that of the scalars before the vectors join."""
    product = _ONE
    for factor in sorted(factors, key=lambda f: f.length is not None):
        product = factor if product is _ONE else apply("mul", product, factor)
    return product


def _factors(node: Node, exact: bool) -> list[Node]:
    """Return nodes whose product is `node`; none for one.

    A product is taken apart only where its factors differ in what they vary with, so that what is
    shared with the rest of a graph stays shared.
    """
    if node is _ONE:
        return []
    factors = [node]
    if node.op == "mul":
        a, b = node.args
        left = _factors(a, exact)
        factors = [*left, *(left if a is b else _factors(b, exact))]
    elif node.op == "neg":
        factors = [_MINUS_ONE, *_factors(node.args[0], exact)]
    elif node.op == "div":
        factors = _factors_of_quotient(node, exact)
    elif node.op == "where" and not exact:
        factors = _factors_of_choice(*node.args)
    apart = any(_kind(f) != _kind(node) for f in factors)
    return factors if apart and len(factors) <= _MOST_FACTORS else [node]


def _kind(node: Node) -> tuple[frozenset[str], bool]:
    """Return what decides the side of a product that a factor goes to."""
    return varies(node) & _PAIR, node.length is not None


def _factors_of_quotient(node: Node, exact: bool) -> list[Node]:
    over, under = node.args
    if under.length is not None:
        return [node]
    if under.op == "const":
        normal = 1e-30 < abs(under.attr) < 1e30
        return [*_factors(over, exact), const(1.0 / under.attr, F32)] if normal else [node]
    return [node] if exact else [*_factors(over, exact), apply("div", _ONE, under)]


def _factors_of_choice(condition: Node, yes: Node, no: Node) -> list[Node]:
    """Take out of a choice what both sides share and what varies less; zero shares everything.

    ``where(hidden[i, j] > 0, w[h] * x, 0)`` --> ``w[h] * where(hidden[i, j] > 0, x, 0)``
    """
    sides = [_factors(side, exact=False) for side in (yes, no)]
    nonzero = [f for side, f in zip((yes, no), sides, strict=True) if side is not _ZERO]
    common = [
        factor
        for factor in dict.fromkeys(nonzero[0])
        if all(factor in left for left in nonzero)
        and (factor.length is None or not varies(factor) >= varies(condition))
    ]
    for left in nonzero:
        for factor in common:
            left.remove(factor)
    yes, no = (_product(left) for left in sides)
    if yes is no:
        return common if yes is _ONE else [*common, yes]
    if (yes, no) in ((_ONE, _ZERO), (_ZERO, _ONE)):
        chosen = condition if yes is _ONE else apply("not", condition)
        return [*common, apply("to_f32", chosen)]
    return [*common, apply("where", condition, yes, no)]


# ---- gradients of loads --------------------------------------------------------------------------


@dataclass(frozen=True)
class Term:
    """A part of d score / d load as ``per_score * inner * outer``; None is one.

    The gradients of the scores are multiplied by `per_score`, then summed in a product with
    `inner`, and the result, which is small, in one with `outer`.

    Attributes:
        per_score: one number for each score.
        inner: varies with queries or keys, among them such as the load does not vary with.
        outer: does not vary with queries and keys, bar those that the load varies with; or with
            queries alone, where `inner` is of the keys alone.
    """

    per_score: Node | None = None
    inner: Node | None = None
    outer: Node | None = None

    @property
    def parts(self) -> tuple[Node | None, Node | None, Node | None]:
        """The three factors."""
        return self.per_score, self.inner, self.outer


def terms(load: Node, derivative: Node) -> tuple[Term, ...]:
    """Return terms whose sum is the derivative with respect to a load, for finite numbers.

    Args:
        load: the load.
        derivative: a scalar, or a vector of its length.
    """
    parts = _summands(regroup(derivative, exact=False))
    return tuple(_term(load, part) for part in parts if part is not _ZERO)


def _summands(node: Node) -> list[Node]:
    """Return what is added, where adding would need a vector for each pair of positions."""
    if node.length is None or not varies(node) >= _PAIR:
        return [node]
    if node.op in ("add", "sub"):
        a, b = node.args
        return [*_summands(a), *_summands(b if node.op == "add" else apply("neg", b))]
    return [node]


def _term(load: Node, derivative: Node) -> Term:
    kept = {name for name, axis in AXES.items() if axis in load_axes(load)}
    factors = _factors(derivative, exact=False)
    outer = [f for f in factors if varies(f) & _PAIR <= kept]
    others = [f for f in factors if f not in outer]
    of_keys = [f for f in others if "kv" in varies(f)]
    if _has_vector(of_keys) and not any("q" in varies(f) for f in of_keys if f.length is not None):
        outer += [f for f in others if f not in of_keys]
        others = of_keys
    # beside a vector, scalars join the gradients of the scores; by themselves they are `inner`
    vectors = [f for f in others if f.length is not None]
    scalars = [f for f in others if f.length is None]
    per_score, inner = (scalars, vectors) if vectors else ([], scalars)
    return Term(*(_product(part) if part else None for part in (per_score, inner, outer)))
