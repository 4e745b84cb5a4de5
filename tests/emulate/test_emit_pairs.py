"""Score mods on pairs of neighbouring columns: the same scores, by fewer instructions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.captures import capture_plan
from flexfa4.kernels.emit.program import LOG2E
from flexfa4.testing import Case, agrees
from tests.emulate.emit_kernels import Work
from tests.emulate.evaluation import evaluated, floats
from tests.emulate.test_emit_cases import SCALE, lanes, mod_of, mod_on, parameters
from tests.emulate.test_emit_cases import SIZES as CASE_SIZES
from tests.emulate.test_emit_sites import grids, holds, score_program, shape_of
from tests.emulate.whole_row_kernels import RowWork
from tests.emulate.whole_rows import ptx_of

COLUMNS = 128  # of a tile
SIZES = Sizes(1, 2, 1, 21, 2 * COLUMNS + 21)


def scores_of(bound: Any, sizes: Sizes, products: torch.Tensor, scale: float) -> torch.Tensor:
    """Return what a kernel makes of products, in natural units."""
    program, plan = score_program(bound, sizes, scale), capture_plan(bound, sizes)
    work = Work(bound.graph, plan, score=program, columns=COLUMNS, pairs=True, fast=True)
    return floats(evaluated(work, bound, sizes, products, scale))[0] / LOG2E


SLOPES = torch.rand(2) + 0.1
BIAS = torch.rand(2, SIZES.kv_len)
MODS: dict[str, Callable[..., Any]] = {
    "linear": lambda score, b, h, q, kv: score + SLOPES[h] * (kv - q),
    "linear, of a row": lambda score, b, h, q, kv: score * 2 + (q + 1) * 0.01 * kv,
    "linear, without the score": lambda score, b, h, q, kv: SLOPES[h] * kv,
    "linear, with a core": lambda score, b, h, q, kv: torch.tanh(score) + SLOPES[h] * (kv - q),
    "magnitude": lambda score, b, h, q, kv: score - SLOPES[h] * (q - kv).abs(),
    "two terms": lambda score, b, h, q, kv: score + 0.1 * kv + BIAS[h, kv] * 3,
    "factor of zero": lambda score, b, h, q, kv: score * (h.float() - 1) + 0.1 * kv,
    "softcap": lambda score, b, h, q, kv: 3.0 * torch.tanh(score / 3.0),
    "polynomial": lambda score, b, h, q, kv: (score * score + 1) * (score - BIAS[h, kv]) / 3,
    "quotient": lambda score, b, h, q, kv: score / (1 + BIAS[h, kv]) + (-score) * score,
    "functions": lambda score, b, h, q, kv: torch.exp(score) + torch.sigmoid(score * 2) * score,
    "selection": lambda score, b, h, q, kv: torch.where(kv > q, score * 2, score - 1) + score,
    "bounds": lambda score, b, h, q, kv: torch.relu(score) * score.clamp(-0.5, 1.5) + score,
    "magnitude of scores": lambda score, b, h, q, kv: score.abs() * score + score.abs(),
}


@pytest.mark.parametrize("name", MODS)
def test_scores_on_pairs_are_those_of_the_mod(name: str) -> None:
    bound = resolve(MODS[name], "score")
    products = torch.randn(shape_of(SIZES), generator=torch.Generator().manual_seed(0))
    assert holds(scores_of(bound, SIZES, products, 1.0), MODS[name], products, grids(SIZES))


def counted(work: RowWork, bound: Any) -> Counter[str]:
    """Return how many instructions of each kind compute a row's softmax."""
    text = ptx_of(work, bound)
    kinds = {
        "pairs": r"(?:add|sub|mul|fma)[.\w]*\.f32x2",
        "floats": r"(?:add|sub|mul|fma)[.\w]*\.f32\s",
        "functions": r"(?:tanh|ex2|rcp|lg2)\.approx",
        "selections": r"selp\.f32",
    }
    return Counter({kind: len(re.findall(pattern, text)) for kind, pattern in kinds.items()})


# Of a row with KEYS keys: instructions on pairs, on single floats, functions; beside the softmax's.
KEYS = 64
ADDED = {
    "linear": (KEYS // 2, 0, 0),
    "magnitude": (KEYS // 2 - 1, KEYS, 0),  # the first pair's distances take none
    "softcap": (KEYS // 2, 0, KEYS),
    "two terms": (KEYS, 0, 0),
    "polynomial": (5 * KEYS // 2, 0, 0),  # before products and sums are fused
    "functions": (7 * KEYS // 2, 0, 3 * KEYS),
    "bounds": (3 * KEYS // 2, 0, 0),  # extremes, no selections
}


@pytest.mark.parametrize("name", ADDED)
def test_a_mod_takes_one_instruction_for_two_scores(name: str) -> None:
    bound = resolve(MODS[name], "score")
    program, plan = score_program(bound, SIZES, 0.125), capture_plan(bound, SIZES)
    softmax = counted(RowWork(keys=KEYS), None)
    found = counted(RowWork(program, bound.graph, plan, keys=KEYS), bound)
    found.subtract(softmax)
    per_row = 8  # of the row and the tile, not of scores
    kinds = ("pairs", "floats", "functions", "selections")
    for kind, expected in zip(kinds, (*ADDED[name], 0), strict=True):
        assert abs(found[kind] - expected) <= per_row, kind


@pytest.mark.parametrize("case", parameters("score"))
def test_cases_on_pairs_give_what_torch_does(case: Case) -> None:
    bound = mod_of(case, "score")
    products = torch.randn(lanes().shape, generator=torch.Generator().manual_seed(1)) * 10
    found = scores_of(bound, CASE_SIZES, products, SCALE)
    exact, eager = (mod_on(bound, products * SCALE, d) for d in (torch.float64, torch.float32))
    seen = exact != -torch.inf
    assert torch.equal(found != -torch.inf, seen)
    assert agrees(found[seen], exact[seen], eager[seen], terms=16)
