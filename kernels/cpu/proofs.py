"""What this backend proves about a call before it runs, so that it may take a shorter way.

Proofs by interval analysis are kept for each `Premises`.  The bound of the scores rests on the
values of q and k too, and is made anew on every call.
"""

from __future__ import annotations

import functools
import math
from typing import Final

import torch

from flexfa4.frontend.analysis.bounds import Premises, bound, unproved_loads
from flexfa4.frontend.analysis.intervals import Interval, abs_
from flexfa4.frontend.analysis.shifts import shift_premises
from flexfa4.frontend.ir import Node, topological
from flexfa4.kernels.cpu.lowering import Core
from flexfa4.kernels.cpu.plan import CpuPlan, plan_for
from flexfa4.kernels.cpu.score_form import ScoreForm
from flexfa4.primitives.online_softmax import BOUNDED_SCORE, LN2

# Below this many scores, a bound costs more than it saves.
_WORTH_A_BOUND: Final = 1 << 20
# Norms are rounded to the inputs' dtype: 2^-8 for bf16, with some room.
_NORM_SLACK: Final = 1.05
# Integers that stay clear of the ends of 64 bits: one more does not wrap around.
_POSITIONS: Final = (-(2**62), 2**62)


@functools.lru_cache(maxsize=1024)
def factors_finite(given: Premises) -> bool:
    """Return whether the row factors of the folded form are proved finite.

    Those that read a tensor at an unproved index do not count: they are evaluated for whole rows,
    where it is not known whether any lane that reads it is visible.
    """
    leaf, unproved = given.domain().leaf, unproved_loads(given)
    form = plan_for(given.graph, None, frozenset()).form
    return all(
        bound(node, leaf).finite and unproved.isdisjoint(topological(node))
        for node in form.factors_to_check()
    )


def largest_score(q: torch.Tensor, k: torch.Tensor, scale: float) -> float:
    """Return a bound of the scaled scores' magnitude; infinity where none is worth its cost.

    It is ``|scale| * max |q| * max |k|`` (Cauchy and Schwarz).  NaN and infinite inputs prove
    nothing.
    """
    lanes = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    if lanes < _WORTH_A_BOUND or q.device.type != "cpu":  # elsewhere reading a value waits for it
        return math.inf
    norms = (float(torch.linalg.vector_norm(t.detach(), dim=-1).amax()) for t in (q, k))
    largest = math.prod(norms) * abs(scale) * _NORM_SLACK
    return math.inf if math.isnan(largest) else largest


def scores_bounded(given: Premises | None, largest: float) -> bool:
    """Return whether every score after the mod is proved to be within `BOUNDED_SCORE` in base 2.

    Args:
        given: of the score mod, or None.
        largest: a bound of the scaled scores' magnitude.
    """
    if given is not None:
        largest = _magnitude(given, given.graph.root, largest)
    return largest / LN2 <= BOUNDED_SCORE


def fast_core(given: Premises | None, plan: CpuPlan, largest: float) -> Core | None:
    """Return the cheapest of `plan.fast_cores` that is proved to be right for all scores of a call.

    Args:
        given: of the score mod, or None.
        plan: its plan.
        largest: a bound of the scaled scores' magnitude.
    """
    if given is None or not plan.fast_cores:
        return None
    inner = 1.0 if plan.form.inner is None else _magnitude(given, plan.form.inner, largest)
    return next((core for core in plan.fast_cores if inner * largest <= core.reach), None)


@functools.lru_cache(maxsize=1024)
def follows_diagonal(given: Premises, form: ScoreForm) -> bool:
    """Return whether all parts of a score mod are proved to stay where q and kv both grow by one.

    Args:
        given: of the score mod.
        form: how it is split.
    """
    leaf = given.domain().leaf
    parts = (form.inner, form.core, form.outer, *(form.factors or (form.bias,)))
    premises = [shift_premises(part) for part in parts if part is not None]
    return all(
        compared is not None and all(bound(node, leaf).within(*_POSITIONS) for node in compared)
        for compared in premises
    )


def _magnitude(given: Premises, node: Node, largest: float) -> float:
    """Return a bound of the magnitude of a node's values."""
    domain = given.domain()
    score = Interval(-largest, largest) if math.isfinite(largest) else None

    def leaf(node: Node) -> Interval | None:
        is_score = node.op == "input" and node.attr == "score"
        return score if is_score else domain.leaf(node)

    found = abs_(bound(node, leaf))
    return float(found.hi)
