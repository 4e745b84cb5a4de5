"""What the CPU backend decides from the graphs alone: programs and folds, made once and cached.

A `CpuPlan` depends on the score graph, the mask graph and on which captured tensors need gradients;
not on sizes, values, dtype or device.  Sizes enter in `schedule`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from flexfa4.counters import count
from flexfa4.frontend.derivative import derivatives
from flexfa4.frontend.evaluate import Program
from flexfa4.frontend.ir import Buffer, Graph, Node, input_, make_graph
from flexfa4.kernels.cpu.lowering import CORES, LOWERINGS, Core, lowered
from flexfa4.kernels.cpu.products import longest_vector, regroup, terms
from flexfa4.kernels.cpu.score_form import ScoreForm, score_form


@dataclass(frozen=True)
class Factor:
    """Which result of `CpuPlan.backward` a factor is, and whether it is a vector."""

    position: int
    vector: bool


@dataclass(frozen=True)
class TermPlan:
    """One term of d score / d element.

    Attributes:
        per_score, inner, outer: as in `products.Term`; None is one.
    """

    per_score: Factor | None
    inner: Factor | None
    outer: Factor | None


@dataclass(frozen=True)
class LoadGradient:
    """A captured element that needs a gradient.

    Attributes:
        load: where it is read.
        indices: program giving its indices.
        terms: d score / d element, as what is summed in products.
        derivative: d score / d element, as it follows from the mod.
    """

    load: Node
    indices: Program
    terms: tuple[TermPlan, ...]
    derivative: Node

    @property
    def one(self) -> bool:
        """Whether the derivative is one."""
        return self.terms == (TermPlan(None, None, None),)

    @property
    def written(self) -> Program:
        """The derivative's program, for where infinities take part."""
        return _written(self.derivative)


@functools.lru_cache(maxsize=512)
def _written(derivative: Node) -> Program:
    return Program((derivative,), lowerings=LOWERINGS)


@dataclass(frozen=True)
class CpuPlan:
    """Programs of one (score mod, mask) pair.

    Attributes:
        form: how the score mod is split around the product.
        row: gives (inner, outer) for the rows of a tile; None where both are absent.
        core: gives ``core(inner * score)``.
        fast_cores: each gives ``outer * core(inner * score)`` in the forward pass, where that is
            within its reach; in the order of reach.
        bias: gives the bias, or its two factors.
        mask: gives the mask.
        backward: gives core, d core / d score and what the terms of `loads` name; None where all of
            that is one.
        loads: the captured elements that need gradients.
        shared_vector, separate_vector: length of the longest vector for each pair of positions that
            is evaluated, one for all batches and heads or one for each; 0 for none.
    """

    form: ScoreForm
    row: Program | None
    core: Program | None
    fast_cores: tuple[Core, ...]
    bias: Program | None
    mask: Program | None
    backward: Program | None
    loads: tuple[LoadGradient, ...]
    shared_vector: int
    separate_vector: int


def _program(*roots: Node | None, owns_score: bool = False) -> Program | None:
    present = [r for r in roots if r is not None]
    if not present:
        return None
    return Program(present, owns_score=owns_score, lowerings=LOWERINGS, products=True)


@functools.lru_cache(maxsize=512)
def plan_for(
    score: Graph | None, mask: Graph | None, needs_grad: frozenset[Buffer], fold: bool = True
) -> CpuPlan:
    """Return the plan of a pair of graphs.

    Args:
        score: the score mod, or None.
        mask: the mask, or None.
        needs_grad: buffers of the score mod whose gradients are asked for.
        fold: row factors may move across the product (see `ScoreForm.factors_to_check`).
    """
    count("plans")
    root = score.root if score is not None else input_("score")
    gradients: list[tuple[Node, Node]] = []
    if needs_grad and score is not None:
        gradients = [(load, g) for load, g in derivatives(score).loads if load.attr in needs_grad]
    # A derivative that reads the score needs it as it came from the product, unfolded.
    fold = fold and not any("score" in g.depends for _, g in gradients)
    form = score_form(root, fold=fold)
    core_derivative: Node | None = None
    if form.core is not None:
        core_derivative = derivatives(make_graph("score", form.core)).score
    core, derived, *bias = (
        None if n is None else lowered(regroup(n))
        for n in (form.core, core_derivative, *(form.factors or (form.bias,)))
    )
    roots = [r for r in (core, derived) if r is not None]
    loads = tuple(_load_gradient(load, g, roots) for load, g in gradients)
    shared, separate = longest_vector([n for n in (*roots, *bias) if n is not None])
    return CpuPlan(
        form=form,
        row=_program(form.inner, form.outer),
        core=_program(core, owns_score=True),
        fast_cores=() if form.core is None else CORES.get(form.core, ()),
        bias=_program(*bias),
        mask=None if mask is None else Program((mask.root,), lowerings=LOWERINGS),
        backward=_program(*roots, owns_score=True),
        loads=loads,
        shared_vector=shared,
        separate_vector=separate,
    )


def _load_gradient(load: Node, derivative: Node, roots: list[Node]) -> LoadGradient:
    """Return the plan of a load's gradient, and add what it evaluates to `roots`."""
    plans = []
    for term in terms(load, derivative):
        plans.append(TermPlan(*(_factor(part, roots) for part in term.parts)))
    return LoadGradient(load, Program(load.args), tuple(plans), derivative)


def _factor(part: Node | None, roots: list[Node]) -> Factor | None:
    if part is None:
        return None
    root = lowered(part)
    if root not in roots:
        roots.append(root)
    return Factor(roots.index(root), root.length is not None)
