"""How a score mod is split around the matrix product.

Every score mod is written as ::

    outer * core(inner * score) + bias

with `outer`, `inner` free of score and keys (one factor for each row: folded into q, or applied to a
row) and `bias` free of score.  An affine mod has ``core(x) = x`` and then no element-wise work but
the bias is left.  A bias that is linear in the key index is split once more: its value at the first
key of a run, which softmax takes as a shift of the row, and a slope times the distance from there.
No operand grows by this: distances stay relative to the run.

Which split is legal is decided from the graph alone; signs and finiteness are not needed, since the
row maximum is taken after the bias here.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexfa4.frontend import ops
from flexfa4.frontend.facts import score_facts
from flexfa4.frontend.ir import (
    F32,
    Node,
    const,
    input_,
    make_graph,
    substitute,
    topological,
    with_args,
)
from flexfa4.frontend.rules import simplify

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
        kv_slope: coefficient of kv in `bias` where that is linear in kv and depends on q too.
    """

    inner: Node | None = None
    core: Node | None = None
    outer: Node | None = None
    bias: Node | None = None
    kv_slope: Node | None = None

    @property
    def ignores_score(self) -> bool:
        """Whether the mod does not use the score at all."""
        return self.outer is _ZERO

    @property
    def bias_depends(self) -> frozenset[str]:
        """Which inputs the bias varies with."""
        return self.bias.depends if self.bias is not None else frozenset()


def score_form(root: Node, *, fold: bool = True) -> ScoreForm:
    """Split a score mod.

    Args:
        root: the mod's result.
        fold: False keeps the score itself as it comes from the product, for derivatives that read it.
    """
    if not fold:
        return ScoreForm(core=None if root is _SCORE else root)
    core, outer, bias = _peel(root)
    inner = None
    if "score" not in core.depends:  # the mod ignores the score
        bias = _sum(bias, ops.apply("mul", outer, core))
        core, outer = _SCORE, _ZERO
    elif core is not _SCORE:
        inner = _inner_scale(core)
        if inner is not None:
            core = _without_inner(core)
    bias = simplify(bias)
    return ScoreForm(
        inner=inner,
        core=None if core is _SCORE else core,
        outer=_unless(simplify(outer), _ONE),
        bias=_unless(bias, _ZERO),
        kv_slope=_kv_slope(bias),
    )


def _unless(node: Node, neutral: Node) -> Node | None:
    return None if node is neutral else node


def _sum(a: Node, b: Node) -> Node:
    return b if a is _ZERO else ops.apply("add", a, b)


def _row_factor(node: Node) -> bool:
    """Whether a node is one number for each row."""
    return not node.depends & {"score", "kv"}


def _peel(root: Node) -> tuple[Node, Node, Node]:
    """Return (core, outer, bias) with ``root = outer * core + bias``."""
    outer, bias, core = _ONE, _ZERO, root

    def scaled(term: Node) -> Node:
        return term if outer is _ONE else ops.apply("mul", outer, term)

    while core is not _SCORE and "score" in core.depends:
        a, b = (core.args + (None, None))[:2] if len(core.args) <= 2 else (None, None)
        if core.op == "neg":
            assert a is not None
            outer, core = ops.apply("neg", outer), a
        elif a is None or b is None:
            break
        elif core.op == "add" and "score" not in b.depends:
            bias, core = _sum(bias, scaled(b)), a
        elif core.op == "add" and "score" not in a.depends:
            bias, core = _sum(bias, scaled(a)), b
        elif core.op == "sub" and "score" not in b.depends:
            bias, core = _sum(bias, ops.apply("neg", scaled(b))), a
        elif core.op == "sub" and "score" not in a.depends:
            bias, outer, core = _sum(bias, scaled(a)), ops.apply("neg", outer), b
        elif core.op == "mul" and _row_factor(b):
            outer, core = scaled(b), a
        elif core.op == "mul" and _row_factor(a):
            outer, core = scaled(a), b
        elif core.op == "div" and _row_factor(b):
            outer, core = ops.apply("div", outer, b), a
        else:
            break
    return core, outer, bias


def _score_uses(core: Node) -> list[Node]:
    return [n for n in topological(core) if _SCORE in n.args]


def _factor_of(use: Node) -> Node | None:
    """Return the row factor by which one use multiplies the score."""
    if use.op == "mul" and use.args[0] is not use.args[1]:
        other = use.args[1] if use.args[0] is _SCORE else use.args[0]
        return other if _row_factor(other) else None
    if use.op == "div" and use.args[0] is _SCORE and _row_factor(use.args[1]):
        return ops.apply("div", _ONE, use.args[1])
    return None


def _inner_scale(core: Node) -> Node | None:
    """Return the one row factor that every use of the score applies to it, if there is one."""
    factors = {_factor_of(use) for use in _score_uses(core)}
    return factors.pop() if len(factors) == 1 else None


def _without_inner(core: Node) -> Node:
    uses = set(_score_uses(core))

    def replace(node: Node, args: tuple[Node, ...]) -> Node:
        if node in uses:
            return _SCORE
        return with_args(node, args)

    return substitute(core, replace)


def _kv_slope(bias: Node) -> Node | None:
    if not {"q", "kv"} <= bias.depends:
        return None
    return score_facts(make_graph("score", _sum(_SCORE, bias))).kv_slope

