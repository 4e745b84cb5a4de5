"""How a score mod is split around the matrix product.

Every score mod is written as ::

    outer * core(inner * score) + bias

with `outer`, `inner` free of score and keys (one factor for each row: folded into q, or applied to
a row) and `bias` free of score.  An affine mod has ``core(x) = x`` and then no element-wise work
but the bias is left.  A bias that is a product is added by one fused multiply-add, so that a slope
for each head times a distance costs one pass, and the distance is computed once for all heads.  (A
bias linear in the key index could be added as a row vector and a shift instead.  It is not:
measured at width 512 the fused product costs the same, and distances stay exact.)

Signs do not matter, since the row maximum is taken after the bias here.  Factors that move across
the product must be finite (``q * inf`` is NaN where ``score * inf`` is not): `factors_to_check`
names them, and a call for which they are not proved finite uses the unfolded form.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from flexfa4.frontend import ops
from flexfa4.frontend.analysis.peeling import fold_inner, peeled, product
from flexfa4.frontend.ir import F32, Node, const, input_
from flexfa4.frontend.rewriting.rules import simplify

_SCORE = input_("score")
_ONE, _ZERO = const(1.0, F32), const(0.0, F32)


@dataclass(frozen=True)
class ScoreForm:
    """``outer * core(inner * score) + bias``; None where a part is absent.

    Attributes:
        inner: factor of the score before `core`, free of score and kv.
        core: function of ``inner * score`` (an f32 node that reads the input score); None is the
            identity.
        outer: factor of the core, free of score and kv.
        bias: free of score.
        factors: two nodes whose product is the bias, where it is one that varies with kv.
    """

    inner: Node | None = None
    core: Node | None = None
    outer: Node | None = None
    bias: Node | None = None
    factors: tuple[Node, Node] | None = None

    @property
    def ignores_score(self) -> bool:
        """Whether the mod does not use the score at all."""
        return self.outer is _ZERO

    def factors_to_check(self) -> tuple[Node, ...]:
        """Return the factors that must be finite for this form to hold."""
        present = (self.inner, None if self.ignores_score else self.outer)
        return tuple(n for n in present if n is not None and n.op != "const")

    @property
    def bias_depends(self) -> frozenset[str]:
        """Which inputs the bias varies with."""
        return self.bias.depends if self.bias is not None else frozenset()


def score_form(root: Node, *, fold: bool = True) -> ScoreForm:
    """Split a score mod.

    Args:
        root: the mod's result.
        fold: False moves nothing: the score stays as it comes from the product, for derivatives
            that read it, and for factors that may be infinite.
    """
    if not fold:
        return ScoreForm(core=None if root is _SCORE else root)
    core, outer, terms = peeled(root)
    inner = None
    if "score" not in core.depends:  # the mod ignores the score
        terms = (*terms, product(outer, core))
        core, outer = _SCORE, _ZERO
    elif core is not _SCORE:
        inner, core = fold_inner(core)
    bias = simplify(functools.reduce(_sum, terms, _ZERO))
    return ScoreForm(
        inner=inner,
        core=None if core is _SCORE else core,
        outer=_unless(simplify(outer), _ONE),
        bias=_unless(bias, _ZERO),
        factors=_factors(bias),
    )


def _unless(node: Node, neutral: Node) -> Node | None:
    return None if node is neutral else node


def _sum(a: Node, b: Node) -> Node:
    return b if a is _ZERO else a if b is _ZERO else ops.apply("add", a, b)


def _factors(bias: Node) -> tuple[Node, Node] | None:
    if bias.op != "mul" or "kv" not in bias.depends:
        return None
    return bias.args[0], bias.args[1]
