"""For how many of a thread's columns mods are evaluated together.

ptxas begins what many scores need at once, reads of memory first, and spills registers for it.  It
does not move anything into another branch, though: so mods that read or compute much are evaluated
for some columns after the others, in branches that are always taken.  Reads of a part wait for
memory once, so parts are as large as registers allow.

Says only how many; `scores` makes the branches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from flexfa4.frontend.ir import Node, topological
from flexfa4.kernels.emit.cost import cost_of_mask, cost_of_score
from flexfa4.kernels.emit.places import Columns
from flexfa4.kernels.sm90.forward.plan import ForwardPlan
from flexfa4.kernels.sm90.model import fragment_of

# All numbers here were found by compiling the case table for all head dims: with others, some
# variant of it spills.

_MUCH: Final = 4.0
"""Instructions of a score mod for each score from which on it is evaluated in parts."""

_SCORES: Final = 16
"""Columns of a part; of a score mod that reads more, or is costly, fewer."""

_LIGHT: Final = 1.5
"""Instructions of a score mod that reads, up to which it is evaluated for all columns together;
packed heads have no registers for it."""

_SCORES_OF_READS: Final = 4
_SCORES_OF_COSTLY: Final = 2
_COSTLY_SCORE: Final = 20.0

_MASK: Final = {1: 16, 2: 16, 3: 4}
"""Most columns of a part of a mask, by consumer warpgroups."""

_INSTRUCTIONS_OF_MASK: Final = {1: 320, 2: 320, 3: 160}
"""Most instructions of one row of such a part, likewise."""

_AHEAD: Final = {1: None, 2: None, 3: 8}
"""Columns of reads ahead of the products, by consumer warpgroups."""

_WIDE: Final = 128
"""Head dims beyond which parts are half as large."""


@dataclass(frozen=True)
class Parts:
    """How many of a thread's columns are taken together.

    Attributes:
        scores: by the score mod.
        mask: by the mask.
        ahead: for how many columns, what the score mod reads for all rows is read before the
            products are there; None for all.
    """

    scores: int
    mask: int
    ahead: int | None


def parts_of(plan: ForwardPlan) -> Parts:
    """Return the parts in which the mods of a plan are evaluated."""
    columns = plan.tiling.keys // 4
    scores = min(columns, _of_scores(plan) or columns)
    ahead = _AHEAD[plan.tiling.warpgroups] if scores == columns else 0
    return Parts(scores, _of_mask(plan), ahead)


def columns_of(plan: ForwardPlan, ahead: int | None) -> Columns:
    """Return the columns of a thread in a tile; for `ahead` see `Columns`."""
    return replace(fragment_of(plan).columns, ahead=ahead)


def _of_mask(plan: ForwardPlan) -> int:
    warpgroups = plan.tiling.warpgroups
    part = _MASK[warpgroups]
    if plan.mask is not None:
        cost = cost_of_mask(plan.mask, plan.mask_captures, fragment_of(plan)).all
        while part > 1 and part * cost > _INSTRUCTIONS_OF_MASK[warpgroups]:
            part //= 2
    return _narrowed(plan, part)


def _of_scores(plan: ForwardPlan) -> int | None:
    """Return for how many columns a score mod is evaluated together; None for all.

    A function of the score is not much, however many instructions it takes: it cannot begin before
    the product is there.
    """
    fragment, score = fragment_of(plan), plan.score
    loads = [node for root in score.nodes() for node in topological(root) if _of_key(node)]
    of_rows = [load for load in loads if fragment.row_inputs & load.depends]
    vectors = any(load.length is not None for load in loads)
    adds = score.core is None and any(term.part is not None for term in score.terms)
    if not (of_rows or vectors or adds):
        return None
    cost = cost_of_score(score, plan.score_captures, fragment, plan.fast)
    if not (of_rows or vectors) and cost.all < _MUCH:
        return None
    if plan.group == 1 and cost.all <= _LIGHT:
        return None
    if vectors or cost.all >= _COSTLY_SCORE:
        return _narrowed(plan, _SCORES_OF_COSTLY)
    # rows with heads of their own read along the keys, each at addresses of its own
    along = any("q" not in load.depends for load in of_rows)
    return _narrowed(plan, _SCORES_OF_READS if along or cost.load >= 2 else _SCORES)


def _of_key(node: Node) -> bool:
    """Whether a node reads a captured tensor for each key."""
    return node.op == "load" and "kv" in node.depends


def _narrowed(plan: ForwardPlan, columns: int) -> int:
    return columns if max(plan.head_dims) <= _WIDE else max(columns // 2, 1)
