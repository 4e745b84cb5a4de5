"""What the CPU backend makes of a mod, in words, for `flexfa4.explain`.

Every path slower than the best is named here; none is taken silently.
"""

from __future__ import annotations

from typing import Final

from flexfa4.frontend.analysis.facts import expression
from flexfa4.frontend.ir import Graph
from flexfa4.kernels.cpu.score_form import ScoreForm, score_form

Row = tuple[str, str]

_FOLDING: Final = (
    "where the factors are proved finite; unfolded otherwise, and for gradients of captures that"
    " read the score: one more pass per score"
)
_MAXIMUM: Final = (
    "of each row, kept tile by tile; left out where the norms of q and k and this mod prove every"
    " score small"
)
_CHECKS: Final = (
    "sliced or gathered without checks where the sizes of the call prove the index in range;"
    " checked tile by tile otherwise"
)


def describe_score(graph: Graph) -> list[Row]:
    """Return rows about a score mod."""
    form = score_form(graph.root)
    rows = [("form", _form(form))]
    rows += [
        (label, expression(node))
        for label, node in (
            ("inner (folded into q)", form.inner),
            ("core (per score)", form.core),
            (_outer_label(form), form.outer),
            (_bias_label(form), form.bias),
        )
        if node is not None
    ]
    if form.factors_to_check():
        rows.append(("folding", _FOLDING))
    rows.append(("maximum", _MAXIMUM))
    if graph.buffers:
        rows.append(("captured tensors", _CHECKS))
    return rows


def _form(form: ScoreForm) -> str:
    if form.ignores_score:
        return "bias alone: no product of q and k"
    core = "score" if form.inner is None else "inner * score"
    if form.core is not None:
        core = f"core({core})"
    outer = "" if form.outer is None else "outer * "
    return outer + core + ("" if form.bias is None else " + bias")


def _outer_label(form: ScoreForm) -> str:
    return "outer (folded into q)" if form.core is None else "outer (per score)"


def _bias_label(form: ScoreForm) -> str:
    if "kv" not in form.bias_depends:
        return "bias (per row)"
    return "bias (fused multiply-add)" if form.factors else "bias (per score)"


def describe_mask(graph: Graph) -> list[Row]:
    """Return rows about a mask."""
    rows = [
        (
            "blocks",
            "found by evaluating the mask block row by block row; full blocks do no mask work",
        )
    ]
    if "h" in graph.root.depends:
        rows.append(("heads", "one at a time: the mask reads h, so their blocks may differ"))
    if "b" in graph.root.depends:
        rows.append(("batches", "one at a time: the mask reads b, so their blocks may differ"))
    return rows
