"""Every mod of the case table as a kernel computes it, over small tiles, against eager torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

from flexfa4.frontend.analysis.bounds import premises
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.evaluate import Program, Values, mask_tile
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.captures import capture_plan
from flexfa4.kernels.emit.program import LOG2E, prepare_mask, prepare_score, score_promises
from flexfa4.testing import CASES, Case, Draw, agrees
from flexfa4.testing.case import Sizes as CaseSizes
from tests.emulate.emit_kernels import Work
from tests.emulate.evaluation import evaluated, floats

SIZES = Sizes(2, 4, 2, 37, 67)
SCALE = 0.125

# One of each kind: linear and not; by row, key, head and pair; gathers, vectors, functions.
QUICK = {
    "alibi", "softcap", "head_gate", "pair_bias", "forgetting_gate", "fire", "t5_bias_causal",
    "masked_by_score", "rotary_part", "document", "window_by_head",
}  # fmt: skip


def parameters(kind: str) -> list[Any]:
    """Return the cases with a mod of a kind; all but a few are left to the full run."""
    sizes = CaseSizes(SIZES.batch, SIZES.heads, SIZES.kv_heads, SIZES.q_len, SIZES.kv_len)
    found = []
    for case in CASES:
        mods = case.make(sizes, Draw(torch.Generator().manual_seed(0)))
        mod = mods.score_mod if kind == "score" else mods.mask
        if mod is not None:
            marks = () if case.name in QUICK else (pytest.mark.full,)
            found.append(pytest.param(case, id=case.name, marks=marks))
    return found


def mod_of(case: Case, kind: str) -> BoundGraph:
    sizes = CaseSizes(SIZES.batch, SIZES.heads, SIZES.kv_heads, SIZES.q_len, SIZES.kv_len)
    mods = case.make(sizes, Draw(torch.Generator().manual_seed(0)))
    return resolve(mods.score_mod if kind == "score" else mods.mask, kind)  # type: ignore[arg-type]


def lanes() -> Lanes:
    return Lanes((0, SIZES.batch), (0, SIZES.heads), (0, SIZES.q_len), (0, SIZES.kv_len))


@pytest.mark.parametrize("case", parameters("score"))
def test_a_score_mod_gives_what_torch_does(case: Case) -> None:
    bound = mod_of(case, "score")
    products = torch.randn(lanes().shape, generator=torch.Generator().manual_seed(1)) * 10
    promises = score_promises(bound.graph, premises(bound, SIZES).domain(), SCALE)
    program = prepare_score(bound.graph, promises)
    work = Work(bound.graph, capture_plan(bound, SIZES), score=program)
    found = floats(evaluated(work, bound, SIZES, products, SCALE))[0] / LOG2E
    exact, eager = (mod_on(bound, products * SCALE, d) for d in (torch.float64, torch.float32))
    hidden = exact == -math.inf
    assert torch.equal(found == -math.inf, hidden)
    assert agrees(found[~hidden], exact[~hidden], eager[~hidden], terms=16)


def mod_on(bound: BoundGraph, scores: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what a mod makes of scores, computed in a dtype."""
    values = Values.of(bound, SIZES, device=torch.device("cpu"), dtype=dtype)
    with torch.no_grad():
        (found,) = Program([bound.graph.root]).run(values, lanes(), scores.to(dtype))
    return torch.as_tensor(found).expand(scores.shape)


@pytest.mark.parametrize("case", parameters("mask"))
def test_a_mask_shows_what_torch_does(case: Case) -> None:
    bound = mod_of(case, "mask")
    program = prepare_mask(bound.graph)
    work = Work(bound.graph, capture_plan(bound, SIZES), mask=program, exact=True)
    found = evaluated(work, bound, SIZES)[0]
    values = Values.of(bound, SIZES, device=torch.device("cpu"))
    wanted = mask_tile(Program([bound.graph.root]), values, lanes()).expand(lanes().shape)
    assert torch.equal(found.bool(), wanted)
