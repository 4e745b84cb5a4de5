"""A score mod split around the matrix product, so that as little as possible is left per score.

The kernel has the products ``acc = q . k`` and needs ``x = log2(e) * mod(scale * acc)`` for its
exponentials ``exp2(x - max)``.  Every mod becomes ::

    x = factor * y + shift + constant

where `y` is what is computed for each score, `factor` is positive and the same along a row, as is
`constant`, and `shift` is the same along the part of a row in a tile.  The row's maximum is that of
`y`, and the exponent one fused multiply-add: ``exp2(factor * y + (shift - max))``.  The constant
matters to the logarithm of the sum, and to a sink, alone.  With t = acc, or the core of a mod that
is not affine, y is one of ::

    y = t                                          factor = outer * log2(e)
    y = t + c1/outer * g1 + ...                    factor = outer * log2(e)
    y = (outer * t + g0) + c1 * g1 + ...           factor = log2(e)

with one fused multiply-add for each term of the bias.  Terms that are linear in kv have ``g = kv -
origin``, a number known when the kernel is compiled, and leave their value at the thread's first
column of the tile to `shift`: no operand is larger than the mod's own.

Instructions for each score, beside the maximum and the row's sum::

    mod                               before the maximum         exponent
    none, a * score + c[q]                                       FFMA, MUFU
    score + slope[h] * (kv - q)       FFMA                       FFMA, MUFU
    score + bias[h, kv]               FFMA, 1/4 LDG.64           FFMA, MUFU
    score + bias[h, q, kv]            FFMA, 1/2 LDG.64           FFMA, MUFU
    score + table[h, q - kv + n]      FFMA, LDG                  FFMA, MUFU
    score - slope[h] * abs(q - kv)    FFMA, FADD                 FFMA, MUFU
    cap * tanh(score / cap)           FMUL, MUFU                 FFMA, MUFU

The first two forms rest on `ScorePromises`, which the host checks for each call: without them the
third is taken.  Plain Python, no CuTe-DSL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from flexfa4.frontend.analysis.bounds import Domain, Leaf, bound
from flexfa4.frontend.analysis.linear import slope
from flexfa4.frontend.analysis.peeling import fold_inner, peeled
from flexfa4.frontend.ir import (
    BOOL,
    F32,
    Graph,
    Node,
    const,
    input_,
    substitute,
    topological,
    with_args,
)
from flexfa4.frontend.ops import OPS, apply
from flexfa4.frontend.pipeline import any_call
from flexfa4.frontend.rewriting.rules import simplify
from flexfa4.kernels.emit.access import constant_slope
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.emit.places import Along

LOG2E: Final = math.log2(math.e)
MODERATE: Final = (2.0**-60, 2.0**60)
"""Factors in this range are divided by without a thought: their quotients are normal numbers."""


@dataclass(frozen=True)
class ScorePromises:
    """What holds in every call of a plan; checked on the host.

    Attributes:
        scale: the softmax scale is positive and `MODERATE`.
        outer: so is the factor of the mod's core (`ScoreProgram.outer`).
    """

    scale: bool = True
    outer: bool = False


@dataclass(frozen=True)
class Term:
    """A term of the bias that varies along a row: ``coefficient * part``.

    Attributes:
        coefficient: f32, free of kv; None is 1.
        part: f32; None is the distance of the column from the tile's origin.
        origin: for a linear term, the term itself: its value at the tile's origin is part of the
            shift.
    """

    coefficient: Node | None
    part: Node | None
    origin: Node | None = None


@dataclass(frozen=True)
class ScoreProgram:
    """A score mod as the kernels compute it, see above.

    Attributes:
        graph: the mod, None for none.
        inner: factor of the score before `core`, None for 1; free of score and kv.
        core: function of the scaled score; None is the identity.
        outer: factor of the core, None for 1; free of score and kv.
        constant: what is added to the whole row, None for nothing.
        terms: what is added besides.
        defers: the factor is applied in the exponent and is known to be positive: the first or
            second form.
        ignores_score: the products are not used at all.
    """

    graph: Graph | None = None
    inner: Node | None = None
    core: Node | None = None
    outer: Node | None = None
    constant: Node | None = None
    terms: tuple[Term, ...] = ()
    defers: bool = False
    ignores_score: bool = False

    @property
    def max_of_products(self) -> bool:
        """Whether `y` is the product itself: nothing is computed for a score before the maximum."""
        return self.core is None and self.defers and not self.terms

    @property
    def shifts(self) -> bool:
        """Whether there is a shift."""
        return any(term.origin is not None for term in self.terms)

    def nodes(self) -> tuple[Node, ...]:
        """Return every node that is evaluated for a tile."""
        found = [self.inner, self.core, self.outer, self.constant]
        for term in self.terms:
            found += [term.coefficient, term.part, term.origin]
        return tuple(node for node in found if node is not None)


@dataclass(frozen=True)
class MaskProgram:
    """A mask as the kernels compute it: one bool for each score of a partial tile.

    Attributes:
        graph: the mask.
        root: its root, as it is computed.
    """

    graph: Graph
    root: Node


_SCORE: Final = input_("score")
_ONE, _ZERO = const(1.0, F32), const(0.0, F32)


def prepare_score(graph: Graph | None, promises: ScorePromises) -> ScoreProgram:
    """Split a score mod.

    Args:
        graph: an optimised score graph; None for no mod.
        promises: what the host has found to hold.

    Raises:
        KernelLimitError: see `check_limits`.
    """
    if graph is None:
        return ScoreProgram(defers=promises.scale)
    check_limits(graph)
    core, outer, summands = _split(float_early(graph.root))
    constant, terms = _terms(summands)
    if core is None:
        return ScoreProgram(graph, constant=constant, terms=terms, ignores_score=True)
    inner: Node | None = None
    if core is not _SCORE:
        inner, core = fold_inner(core)
    positive = is_proved_moderate(outer, any_call) or promises.outer
    positive = positive and (promises.scale or core is not _SCORE)
    return ScoreProgram(
        graph,
        inner,
        None if core is _SCORE else core,
        None if outer is _ONE else outer,
        constant,
        terms,
        defers=positive and all(term.coefficient is not None for term in terms),
    )


def _split(root: Node) -> tuple[Node | None, Node, tuple[Node, ...]]:
    """Return the core, None where the mod ignores the score, its factor, and what is added."""
    core, outer, summands = peeled(root)
    if "score" in core.depends:
        return core, simplify(outer), summands
    return None, _ONE, (*summands, apply("mul", outer, core))


def score_promises(graph: Graph | None, domain: Domain, scale: float) -> ScorePromises:
    """Return what holds for a score mod in a call.

    Args:
        graph: as for `prepare_score`.
        domain: sizes and captured numbers of the call.
        scale: the softmax scale.
    """
    outer = _ONE if graph is None else outer_factor(graph)
    return ScorePromises(is_moderate(scale), is_proved_moderate(outer, domain.leaf))


def outer_factor(graph: Graph) -> Node:
    """Return the factor of a score mod's core: f32, free of score and kv."""
    return _split(float_early(graph.root))[1]


def prepare_mask(graph: Graph, along: Along = "kv") -> MaskProgram:
    """Return how a mask is computed where `along` moves from column to column.

    Raises:
        KernelLimitError: see `check_limits`.
    """
    assert graph.kind == "mask" and graph.root.dtype is BOOL
    check_limits(graph)
    return MaskProgram(graph, float_early(graph.root, along))


def is_moderate(factor: float) -> bool:
    """Return whether a factor is positive and `MODERATE`."""
    return MODERATE[0] <= factor <= MODERATE[1]


def is_proved_moderate(node: Node, leaf: Leaf) -> bool:
    """Return whether a node is so, with what is known about leaves."""
    return bool(bound(node, leaf).within(*MODERATE))


# ---- conversions ---------------------------------------------------------------------------------

_KEEP_ORDER: Final = frozenset({"abs", "neg", "min", "max"})


def float_early(root: Node, along: Along = "kv") -> Node:
    """Return an equal node that converts positions to floats before their extremes are taken.

    ``f32(abs(q - kv))`` --> ``abs(f32(q - kv))``: rounding keeps order and sign, so both are equal,
    and what is linear in kv (or q, where that moves `along`) needs no conversion at each score.
    """
    return substitute(root, lambda node, args: _early(with_args(node, args), along))


def _early(node: Node, along: Along) -> Node:
    if node.op != "to_f32" or along not in node.depends or not _linear_inside(node.args[0], along):
        return node
    inside = node.args[0]
    if inside.op not in _KEEP_ORDER:
        return node
    return apply(inside.op, *[_early(apply("to_f32", a), along) for a in inside.args])


def _linear_inside(node: Node, along: Along) -> bool:
    """Whether an integer consists of extremes of what is linear in a position."""
    if along not in node.depends:
        return True
    if node.op in _KEEP_ORDER and node.op != "neg":
        return all(_linear_inside(a, along) for a in node.args)
    return node.length is None and constant_slope(node, along) is not None


# ---- terms of the bias ---------------------------------------------------------------------------


def _terms(summands: Iterable[Node]) -> tuple[Node | None, tuple[Term, ...]]:
    """Sort what is added: the same along the row; linear in kv, as one term; other terms.

    A summand stays whole: of ``a[q] - a[kv]`` the parts may be much larger than the difference.
    """
    constant: Node | None = None
    linear: Node | None = None
    terms: list[Term] = []
    for node in map(simplify, summands):
        if "kv" not in node.depends:
            constant = _plus(constant, node)
        elif _slope(node) is not None:
            linear = _plus(linear, node)
        else:
            terms.append(_product(node))
    if linear is not None:
        terms.insert(0, Term(_slope(linear), None, simplify(linear)))
    known = None if constant is None else simplify(constant)
    return (None if known is _ZERO else known), tuple(terms)


def _plus(total: Node | None, node: Node) -> Node:
    return node if total is None else apply("add", total, node)


def _slope(node: Node) -> Node | None:
    """Return the coefficient of kv in a node that is linear in it, as an f32."""
    found = slope(node, "kv") if node.dtype is F32 else None
    return None if found is None or found.node is None else simplify(found.node)


def _product(node: Node) -> Term:
    """Return a summand as a coefficient that is the same along the row and a part that is not."""
    if node.op == "neg":
        inside = _product(node.args[0])
        factor = _ONE if inside.coefficient is None else inside.coefficient
        return Term(simplify(apply("neg", factor)), inside.part)
    if node.op == "mul":
        for coefficient, part in (node.args, node.args[::-1]):
            if "kv" not in coefficient.depends:
                return Term(coefficient, part)
    return Term(None, node)


# ---- limits --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Lanes:
    """How many elements of vectors may be held or computed, and for what."""

    place: str
    most: int
    varies: Callable[[frozenset[str]], bool]


_LANES: Final = (
    _Lanes(
        "score", 64, lambda names: bool(names & {"q", "score"}) and bool(names & {"kv", "score"})
    ),
    _Lanes("key", 8, lambda names: "kv" in names),
    _Lanes("query", 64, lambda names: True),
)
"""Vectors are unrolled: a thread has some 32 keys and 64 scores of a tile, and 240 registers."""


def check_limits(graph: Graph) -> None:
    """Refuse what kernels have no code for.

    Raises:
        KernelLimitError: vectors are too long, or a search is left in the graph.
    """
    counts = dict.fromkeys((lanes.place for lanes in _LANES), 0)
    for node in topological(graph.root):
        if node.op == "search":
            raise KernelLimitError(
                found=f"a search in the captured tensor `{node.attr.buffer.name}`",
                allowed="lists of blocks",
                rewrite="block_mask=flexfa4.create_block_mask(...)",
            )
        length = node.args[0].length if node.op in OPS and OPS[node.op].reduces else node.length
        if length is not None and node.op != "iota":
            place = next(lanes.place for lanes in _LANES if lanes.varies(node.depends))
            counts[place] += length
    for lanes in _LANES:
        if counts[lanes.place] > lanes.most:
            raise KernelLimitError(
                found=f"vectors with {counts[lanes.place]} elements in all for each {lanes.place}",
                allowed=f"up to {lanes.most}",
                rewrite="shorter vectors",
            )
