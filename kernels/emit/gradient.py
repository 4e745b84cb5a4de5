"""A score mod and its derivatives, as kernels of backward passes compute them.

A backward kernel has the products ``acc = q . k`` and the log-sum-exp of each query.  Columns of
its fragments are queries and rows are keys, since it computes scores transposed.  It needs ::

    p  = exp2(x)            x = log2(e) * mod(scale * acc) - lse
    dm = p * (dp - delta)   the gradient of the modified score
    ds = dm * D             that of the scaled product, D = d mod / d score

and, for each captured element that needs a gradient, sums of ``dm * d mod / d element``.

The mod is taken apart like that of a forward pass (`program`), but there is no maximum to wait for:
what is added is the same along a row, or along a column and then part of its lse, or both ::

    x = factor * t + (of the row - (lse - of the column)) + c1 * g1 + ...

so a bias that is linear in q and kv costs one addition.  D is a number of each query, which joins
the subtraction of delta in one fused multiply-add, times what varies with the score, if anything
does: `p` is multiplied by that as soon as it is known, so no more is held in registers than without
a mod.

Plain Python, no CuTe-DSL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from flexfa4.frontend.analysis.linear import slope
from flexfa4.frontend.analysis.peeling import fold_inner, peeled
from flexfa4.frontend.analysis.shifts import shift_invariant
from flexfa4.frontend.derivative import derivatives
from flexfa4.frontend.ir import F32, Buffer, Graph, Node, const, input_, make_graph
from flexfa4.frontend.ops import apply
from flexfa4.frontend.rewriting.rules import simplify
from flexfa4.kernels.emit.program import Term, check_limits, float_early

Over = Literal["pair", "key", "query", "distance", "element"]
"""What a sum of a captured element's gradient is made for: a batch and head, and there for all, for
each key, for each query, or for each distance from a key to a query; or only for the element."""


@dataclass(frozen=True)
class Share:
    """The gradient of what one load reads.

    Attributes:
        load: the load.
        derivative: d mod / d element, f32.
        over: what is summed up in the kernel; what is left is added to the buffer afterwards.
    """

    load: Node
    derivative: Node
    over: Over


@dataclass(frozen=True)
class Linear:
    """A summand that is linear in q, with a coefficient that is free of kv.

    Attributes:
        whole: the summand, of which a row has the value at the tile's first column.
        coefficient: what is added with each query from there.
    """

    whole: Node
    coefficient: Node


@dataclass(frozen=True)
class GradientProgram:
    """A score mod and its derivatives, see above; None where a part is absent.

    Attributes:
        graph: the mod, None for none.
        inner: factor of the score before `core`, free of score and kv.
        core: function of the scaled score; None is the identity.
        outer: factor of the core, free of score and kv.
        of_rows: what is added for each key, free of q.
        of_columns: what is added for each query, free of kv.
        linear: what is added for both.
        terms: what is added besides; a coefficient is free of q or of kv.
        factor: the factor of D that is free of score and kv.
        derivative: the rest of D.
        ignores_score: there is no D: gradients of q and k are 0.
        shares: the captured elements whose gradients are summed up.
    """

    graph: Graph | None = None
    inner: Node | None = None
    core: Node | None = None
    outer: Node | None = None
    of_rows: tuple[Node, ...] = ()
    of_columns: tuple[Node, ...] = ()
    linear: tuple[Linear, ...] = ()
    terms: tuple[Term, ...] = ()
    factor: Node | None = None
    derivative: Node | None = None
    ignores_score: bool = False
    shares: tuple[Share, ...] = ()

    @property
    def reads_score(self) -> bool:
        """Whether the scaled score itself is needed, and not only its product with a factor."""
        return self.core is not None or any(
            "score" in share.derivative.depends for share in self.shares
        )

    @property
    def keeps_probabilities(self) -> bool:
        """Whether what is kept of a probability for the gradient is the probability itself."""
        return self.derivative is None or bool(self.shares)

    def nodes(self) -> tuple[Node, ...]:
        """Return every node that is evaluated for a tile."""
        found = [self.inner, self.core, self.outer, *self.of_rows, *self.of_columns]
        for part in self.linear:
            found += [part.whole, part.coefficient]
        for term in self.terms:
            found += [term.coefficient, term.part]
        found += [self.factor, self.derivative, *(share.derivative for share in self.shares)]
        return tuple(node for node in found if node is not None)


_SCORE: Final = input_("score")
_ONE: Final = const(1.0, F32)


def prepare_gradient(
    graph: Graph | None, needs_grad: frozenset[Buffer] = frozenset()
) -> GradientProgram:
    """Split a score mod, and take its derivatives.

    Args:
        graph: an optimised score graph; None for no mod.
        needs_grad: the captured tensors whose gradients are summed up; each of their loads is one
            that `over` knows.

    Raises:
        KernelLimitError: see `check_limits`.
    """
    if graph is None:
        return GradientProgram()
    check_limits(graph)
    shares = tuple(
        Share(load, derivative, kind)
        for load, derivative in derivatives(graph).loads
        if load.attr in needs_grad and (kind := over(load)) is not None
    )
    root = float_early(graph.root, "q")
    core, outer, summands = peeled(root)
    if "score" not in core.depends:
        parts = _sorted((*summands, apply("mul", outer, core)))
        return GradientProgram(graph, **parts, ignores_score=True, shares=shares)
    inner: Node | None = None
    if core is not _SCORE and not any("score" in s.derivative.depends for s in shares):
        inner, core = fold_inner(core)  # those that read the score read it as it was
    derivative = derivatives(make_graph("score", core)).score
    factor = outer if inner is None else apply("mul", outer, inner)
    if not derivative.depends & {"score", "kv"}:
        factor, derivative = apply("mul", factor, derivative), _ONE
    return GradientProgram(
        graph,
        inner,
        _unless(core, _SCORE),
        _unless(simplify(outer), _ONE),
        **_sorted(summands),
        factor=_unless(simplify(factor), _ONE),
        derivative=_unless(derivative, _ONE),
        shares=shares,
    )


def over(load: Node) -> Over | None:
    """Return what the gradient of what a load reads is summed up for; None where kernels do not.

    They do for what is no vector.
    """
    names = frozenset().union(*(index.depends for index in load.args))
    if load.length is not None or "score" in names:
        return None
    if {"q", "kv"} <= names:
        return "distance" if shift_invariant(load) else "element"
    return "key" if "kv" in names else "query" if "q" in names else "pair"


def _unless(node: Node, absent: Node) -> Node | None:
    return None if node is absent else node


def _sorted(summands: Iterable[Node]) -> dict[str, Any]:
    """Sort what is added, see `GradientProgram`; a summand stays whole, as in `program`."""
    found: dict[str, list[Any]] = {"of_rows": [], "of_columns": [], "linear": [], "terms": []}
    for node in map(simplify, summands):
        if "kv" not in node.depends:
            found["of_columns"].append(node)
        elif "q" not in node.depends:
            found["of_rows"].append(node)
        else:
            step = slope(node, "q") if node.dtype is F32 else None
            coefficient = None if step is None or step.node is None else simplify(step.node)
            if coefficient is not None and "kv" not in coefficient.depends:
                found["linear"].append(Linear(node, coefficient))
            else:
                found["terms"].append(_product(node))
    return {name: tuple(parts) for name, parts in found.items()}


def _product(node: Node) -> Term:
    """Return a summand as a coefficient of a row or a column and a part that is of both."""
    if node.op == "neg":
        inside = _product(node.args[0])
        factor = _ONE if inside.coefficient is None else inside.coefficient
        return Term(simplify(apply("neg", factor)), inside.part)
    if node.op == "mul":
        for coefficient, part in (node.args, node.args[::-1]):
            if not {"q", "kv"} <= coefficient.depends:
                return Term(coefficient, part)
    return Term(None, node)
