"""What the CPU backend makes of a mod, in words, for `flexfa4.explain`.

Every path slower than the best is named here; none is taken silently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flexfa4.frontend.analysis import facts
from flexfa4.frontend.analysis.facts import Rewrite
from flexfa4.frontend.analysis.in_words import expression
from flexfa4.frontend.analysis.shifts import shift_invariant
from flexfa4.frontend.evaluate import operands
from flexfa4.frontend.ir import Graph, topological
from flexfa4.frontend.masks.solving.solve import NotClosed, closed_form
from flexfa4.kernels.cpu.products import longest_vector, regroup
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

_BANDS: Final = (
    "if it is a narrow band, low tiles are multiplied many at once in the forward pass, unless the"
    " score mod changes along the diagonal"
)


# Rewrite -> whether this form of a mod uses it, and what is done or else done instead.
_USES: Final[dict[str, tuple[Callable[[ScoreForm], bool], str, str]]] = {
    facts.DROP_ROW_CONSTANT: (
        lambda form: False,
        "",
        "it is added to each row, since lse needs it",
    ),
    facts.FOLD_AFFINE: (
        lambda form: form.core is None,
        "the scale joins q",
        "the mod is computed on each score",
    ),
    facts.ROW_MAX_FIRST: (
        lambda form: False,
        "",
        "the maximum is that of the finished scores",
    ),
    facts.FOLD_INNER_SCALE: (
        lambda form: form.inner is not None or form.core is None,
        "the scale joins q",
        "the mod is computed on each score",
    ),
    facts.STEP_ALONG_ROW: (
        lambda form: False,
        "",
        "a fused multiply-add costs no more, and keeps distances exact",
    ),
    facts.REUSE_DERIVATIVE: (
        lambda form: form.core is None,
        "the backward pass computes nothing for the mod",
        "the backward pass computes the mod again",
    ),
}


def describe_use(rewrite: Rewrite, graph: Graph) -> str:
    """Return what this backend makes of a rewrite that the facts of a score mod list."""
    uses, done, instead = _USES[rewrite.name]
    if rewrite.state != "refused" and uses(score_form(graph.root)):
        return f"used: {done}"
    return f"not used: {instead}"


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
    rows += _sums(graph)
    rows.append(("maximum", _MAXIMUM))
    if graph.buffers:
        rows.append(("captured tensors", _CHECKS))
    return rows


def _sums(graph: Graph) -> list[Row]:
    """Return rows about sums over vectors, and about vectors that are formed for each score."""
    root = regroup(graph.root)
    products = sum(operands(n, products=True) != n.args for n in topological(root))
    rows = [("sums over vectors", f"{products} as matrix products")] if products else []
    shared, separate = longest_vector([root])
    if separate:
        rows.append(("vectors", f"of {separate} elements formed for each score"))
    elif shared:
        rows.append(("vectors", f"of {shared} elements formed for each query and key, once"))
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
    rows = [("blocks", "empty ones are skipped; only partial ones do mask work")]
    for name, what in (("b", "batches"), ("h", "heads")):
        if name in graph.root.depends:
            rows.append((what, "those for which the mask is the same are worked on together"))
    if shift_invariant(graph.root) and not isinstance(closed_form(graph, "kv"), NotClosed):
        rows.append(("along the diagonal", _BANDS))
    return rows
