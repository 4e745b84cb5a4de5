"""What the CPU backend decides from the graphs alone: programs and folds, made once and cached.

A `CpuPlan` depends on the score graph, the mask graph and on which captured tensors need gradients;
not on sizes, values, dtype or device.  Sizes enter in `schedule`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from flexfa4.counters import count
from flexfa4.frontend.analysis.shifts import shift_invariant
from flexfa4.frontend.derivative import derivatives
from flexfa4.frontend.evaluate import Program
from flexfa4.frontend.ir import Buffer, Graph, Node, input_, make_graph
from flexfa4.kernels.cpu.lowering import CORES, LOWERINGS, Core
from flexfa4.kernels.cpu.score_form import ScoreForm, score_form


@dataclass(frozen=True)
class LoadGradient:
    """A captured element that needs a gradient.

    Attributes:
        load: where it is read.
        indices: program giving its indices.
        position: which result of `CpuPlan.backward` is d score / d element.
    """

    load: Node
    indices: Program
    position: int


@dataclass(frozen=True)
class CpuPlan:
    """Programs of one (score mod, mask) pair.

    Attributes:
        form: how the score mod is split around the product.
        row: gives (inner, outer) for the rows of a tile; None where both are absent.
        core: gives ``core(inner * score)``.
        fast_core: gives ``outer * core(inner * score)`` in the forward pass, where it may be used.
        bias: gives the bias, or its two factors.
        mask: gives the mask.
        mask_follows_diagonal: the mask is shift invariant.
        backward: gives core, d core / d score and the derivatives that `loads` name; None where the
            derivative is one and no captured tensor needs a gradient.
        loads: the captured elements that need gradients.
    """

    form: ScoreForm
    row: Program | None
    core: Program | None
    fast_core: Core | None
    bias: Program | None
    mask: Program | None
    mask_follows_diagonal: bool
    backward: Program | None
    loads: tuple[LoadGradient, ...]


def _program(*roots: Node | None, owns_score: bool = False) -> Program | None:
    present = [r for r in roots if r is not None]
    if not present:
        return None
    return Program(present, owns_score=owns_score, lowerings=LOWERINGS)


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
    roots = [r for r in (form.core, core_derivative) if r is not None]
    loads = tuple(
        LoadGradient(load, Program(load.args), len(roots) + i)
        for i, (load, _) in enumerate(gradients)
    )
    return CpuPlan(
        form=form,
        row=_program(form.inner, form.outer),
        core=_program(form.core, owns_score=True),
        fast_core=None if form.core is None else CORES.get(form.core),
        bias=_program(*(form.factors or (form.bias,))),
        mask=_program(mask.root if mask is not None else None),
        mask_follows_diagonal=mask is not None and shift_invariant(mask.root),
        backward=_program(*roots, *(g for _, g in gradients), owns_score=True),
        loads=loads,
    )
