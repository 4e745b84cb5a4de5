"""What softmax and the kernels can make of a score graph, each with what it rests on.

`score_facts` states what a mod *is* (affine in the score, linear in kv along a row, a score that
enters through one product, ...) and lists the rewrites that this allows.  A rewrite is ``proved``
(holds for every call), ``guarded`` (holds if its guard, evaluated with the sizes and captured
numbers of a call, does) or ``refused``.  Deciding which of them to use is planning, done elsewhere,
and so is saying it to people (`in_words`).

Equalities are those of real numbers: a fact used differs from the mod by rounding only, and none
makes an operand larger than the mod's own.  In particular `kv_slope` is a difference: evaluate the
bias at a tile's first key kv0 and add ``kv_slope * (kv - kv0)``; ``kv_slope * kv`` alone would cost
digits at large positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from flexfa4.frontend.analysis.bounds import Domain, Leaf, bound
from flexfa4.frontend.analysis.linear import affine, slope, split_sum
from flexfa4.frontend.analysis.peeling import InnerScale, inner_scale
from flexfa4.frontend.analysis.shifts import shift_invariant
from flexfa4.frontend.derivative import Derivatives, derivatives
from flexfa4.frontend.ir import Graph, Node, const, topological
from flexfa4.frontend.ops import OPS
from flexfa4.frontend.pipeline import any_call
from flexfa4.frontend.rewriting.rules import simplify

State = Literal["proved", "guarded", "refused"]
Property = Literal["positive", "finite"]
Shape = Literal["uniform", "contiguous", "strided", "gather"]


@dataclass(frozen=True)
class Guard:
    """A property that a call's sizes and captured numbers must give to a node."""

    node: Node
    needs: Property

    def holds(self, domain: Domain) -> bool:
        """Return whether the node has the property for all indices of this call."""
        return _has(self.needs, self.node, domain.leaf)


@dataclass(frozen=True)
class Rewrite:
    """Something that may be done to the computation, and why.

    Attributes:
        name: what is done.
        state: ``"proved"``, ``"guarded"`` (needs `guard`) or ``"refused"``.
        obligation: what must hold; empty where nothing need.
        reason: why it does, or does not.
        guard: what to check on each call.
    """

    name: str
    state: State
    obligation: str
    reason: str
    guard: Guard | None = None

    def allowed(self, domain: Domain) -> bool:
        """Return whether it may be done in a call."""
        if self.guard is not None:
            return self.guard.holds(domain)
        return self.state == "proved"


@dataclass(frozen=True)
class LoadFact:
    """How a load's address moves while kv runs along a row.

    Attributes:
        load: the node.
        shape: ``uniform``: not at all; ``contiguous``: by one element of the last axis for each kv;
            ``strided``: by `step` along `axis`; ``gather``: anyhow.
        axis: the axis that kv moves along, where it is one.
        step: how far it moves.
    """

    load: Node
    shape: Shape
    axis: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class Instructions:
    """Instruction counts for each pipe of a GPU: special functions, multiply-adds, other."""

    mufu: int = 0
    fma: int = 0
    alu: int = 0


@dataclass(frozen=True)
class Pipes:
    """Instructions of a graph by how often they run: per score, per query, per head or less."""

    element: Instructions
    row: Instructions
    head: Instructions


@dataclass(frozen=True)
class ScoreFacts:
    """Everything known about a score graph.

    Attributes:
        graph: the graph.
        scale: with `bias`: the mod is ``scale * score + bias`` for finite scores, both free of the
            score; None where it is not seen to be.
        bias: see `scale`.
        kv_slope: ``bias(kv) = bias(kv0) + kv_slope * (kv - kv0)``, f32, free of kv and the score (0
            where the bias does not depend on kv); None where the bias is not seen to be linear.
        row_constant: the terms of the bias (of the root, where it is not affine) that depend on
            neither kv nor the score; None where there are none.
        row_varying: the other terms; None where there are none.
        inner_scale: see `InnerScale`; None where the score enters otherwise.
        derivatives: of the root with respect to the score and each load.
        loads: one for each load of the graph.
        pipes: instruction counts of the graph.
        rewrites: what may be done.
    """

    graph: Graph
    scale: Node | None
    bias: Node | None
    kv_slope: Node | None
    row_constant: Node | None
    row_varying: Node | None
    inner_scale: InnerScale | None
    derivatives: Derivatives
    loads: tuple[LoadFact, ...]
    pipes: Pipes
    rewrites: tuple[Rewrite, ...]

    @property
    def score_independent(self) -> bool:
        """Whether the mod ignores the score."""
        return "score" not in self.graph.root.depends

    @property
    def derivative_constant(self) -> bool:
        """Whether d root / d score does not depend on the score."""
        return "score" not in self.derivatives.score.depends

    def rewrite(self, name: str) -> Rewrite | None:
        """Return the rewrite of this name if the graph has what it is about."""
        return next((r for r in self.rewrites if r.name == name), None)


@dataclass(frozen=True)
class MaskFacts:
    """Everything known about a mask graph that needs no sizes.

    Attributes:
        graph: the graph.
        reads: which of b, h, q and kv it depends on.
        loads: one for each load of the graph.
        pipes: instruction counts of the graph.
        shift_invariant: it is the same all along the diagonal, see `shifts`.
    """

    graph: Graph
    reads: frozenset[str]
    loads: tuple[LoadFact, ...]
    pipes: Pipes
    shift_invariant: bool


DROP_ROW_CONSTANT: Final = "drop row constant"
FOLD_AFFINE: Final = "fold affine into the exponent"
ROW_MAX_FIRST: Final = "row max before scale"
FOLD_INNER_SCALE: Final = "fold inner scale into the score's scale"
STEP_ALONG_ROW: Final = "step the bias along the row"
REUSE_DERIVATIVE: Final = "derivative without the score"

_VARIES_IN_ROW: Final = frozenset({"kv", "score"})


_ZERO: Final = const(0.0)


def score_facts(graph: Graph) -> ScoreFacts:
    """Return the facts of an optimised score graph."""
    assert graph.kind == "score"
    root = graph.root
    form = affine(root)
    scale = bias = kv_slope = None
    if form is not None:
        scale, bias = _simple(form.scale), _simple(form.bias)
        linear = slope(bias, "kv")
        kv_slope = None if linear is None else _simple(linear.node)
    terms = split_sum(root if bias is None else bias, lambda n: not n.depends & _VARIES_IN_ROW)
    constant, varying = (_simple(part) for part in terms)
    facts = ScoreFacts(
        graph,
        scale,
        bias,
        kv_slope,
        None if constant is _ZERO else constant,
        None if varying is _ZERO else varying,
        inner_scale(root),
        derivatives(graph),
        _loads(root),
        _pipes(root),
        rewrites=(),
    )
    return replace(facts, rewrites=_rewrites(facts, form is not None and form.finite_only))


def mask_facts(graph: Graph) -> MaskFacts:
    """Return the facts of an optimised mask graph."""
    assert graph.kind == "mask"
    root = graph.root
    return MaskFacts(graph, root.depends, _loads(root), _pipes(root), shift_invariant(root))


def _simple(part: Node | None) -> Node:
    return _ZERO if part is None else simplify(part)


# ---- loads and instructions ----------------------------------------------------------------------


def _loads(root: Node) -> tuple[LoadFact, ...]:
    return tuple(_load_fact(node) for node in topological(root) if node.op == "load")


def _load_fact(load: Node) -> LoadFact:
    moving = [axis for axis, index in enumerate(load.args) if index.depends & _VARIES_IN_ROW]
    if not moving:
        return LoadFact(load, "uniform")
    linear = slope(load.args[moving[0]], "kv") if len(moving) == 1 else None
    step = None if linear is None or linear.node is None else simplify(linear.node)
    if step is None or step.op != "const":
        return LoadFact(load, "gather")
    last = moving[0] == len(load.args) - 1
    return LoadFact(
        load, "contiguous" if last and step.attr == 1 else "strided", moving[0], step.attr
    )


def _pipes(root: Node) -> Pipes:
    counts = {
        often: dict.fromkeys(("mufu", "fma", "alu"), 0) for often in ("element", "row", "head")
    }
    for node in topological(root):
        row = OPS.get(node.op)
        if row is None:
            continue
        often = (
            "element" if node.depends & _VARIES_IN_ROW else "row" if "q" in node.depends else "head"
        )
        length = node.args[0].length if row.reduces else node.length
        counts[often][row.pipe] += row.cost * (1 if length is None else length)
    return Pipes(**{often: Instructions(**count) for often, count in counts.items()})


# ---- rewrites ------------------------------------------------------------------------------------


def _has(needs: Property, node: Node, leaf: Leaf) -> bool:
    value = bound(node, leaf)
    return value.finite and (needs == "finite" or value.lo > 0)


def _never_has(needs: Property, node: Node) -> bool:
    """Return whether no call gives the node the property: it is too small, or made of constants."""
    fixed = all(n.op == "const" or n.args for n in topological(node))
    return fixed or (needs == "positive" and bound(node, any_call).hi <= 0)


def _conditional(name: str, needs: Property, node: Node, obligation: str) -> Rewrite:
    """Return a rewrite that rests on a property of a node: proved, guarded or refused."""
    if _has(needs, node, any_call):
        return Rewrite(name, "proved", obligation, f"it is {needs} in every call")
    loads = [n.attr.name for n in topological(node) if n.op == "load"]
    if loads:
        reason = f"the captured tensor {loads[0]} can hold any value"
        return Rewrite(name, "refused", obligation, reason)
    if _never_has(needs, node):
        return Rewrite(name, "refused", obligation, f"it is not {needs} in any call")
    guard = Guard(node, needs)
    return Rewrite(name, "guarded", obligation, "sizes and captured numbers decide", guard)


def _rewrites(facts: ScoreFacts, finite_only: bool) -> tuple[Rewrite, ...]:
    made: list[Rewrite] = []
    if facts.row_constant is not None:
        obligation = "a finite constant, and no sink"
        made.append(_conditional(DROP_ROW_CONSTANT, "finite", facts.row_constant, obligation))
    if facts.scale is not None and not facts.score_independent:
        made.append(_fold_affine(finite_only))
        made.append(_row_max_first(facts, facts.scale))
    if facts.inner_scale is not None:
        scale = facts.inner_scale.scale
        made.append(_conditional(FOLD_INNER_SCALE, "finite", scale, "a finite inner scale"))
    if facts.kv_slope is not None and facts.kv_slope is not _ZERO:
        obligation = "the bias at each tile's first key"
        made.append(Rewrite(STEP_ALONG_ROW, "proved", obligation, "the bias is linear in kv"))
    if facts.derivative_constant:
        reason = "d/d score does not depend on the score"
        made.append(Rewrite(REUSE_DERIVATIVE, "proved", "", reason))
    return tuple(made)


def _fold_affine(finite_only: bool) -> Rewrite:
    if finite_only:
        obligation = "finite scores wherever the mod ignores them"
        reason = "an infinite score times 0 is NaN"
        return Rewrite(FOLD_AFFINE, "refused", obligation, reason)
    return Rewrite(FOLD_AFFINE, "proved", "", "the mod is scale * score + bias")


def _row_max_first(facts: ScoreFacts, scale: Node) -> Rewrite:
    obligation = "a positive scale, and scale and bias the same along the row"
    if scale.depends & _VARIES_IN_ROW:
        return Rewrite(ROW_MAX_FIRST, "refused", obligation, "the scale differs along the row")
    if facts.row_varying is not None:
        return Rewrite(ROW_MAX_FIRST, "refused", obligation, "the bias differs along the row")
    return _conditional(ROW_MAX_FIRST, "positive", scale, obligation)
