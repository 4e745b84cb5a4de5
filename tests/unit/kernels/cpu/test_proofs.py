"""The bound of the scores: never claimed wrongly, claimed where it pays, and used correctly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.analysis.bounds import Premises, premises
from flexfa4.frontend.sizes import Sizes as CallSizes
from flexfa4.kernels.cpu.plan import plan_for
from flexfa4.kernels.cpu.proofs import (
    fast_core,
    follows_diagonal,
    largest_score,
    scores_bounded,
)
from flexfa4.primitives.online_softmax import BOUNDED_SCORE, LN2, BoundedSoftmax
from flexfa4.testing import Case, Mods, Sizes, Trial, excess
from flexfa4.variants import Alibi, Softcap, causal

LARGE = Sizes(1, 2, 1, 1024, 1024, 16, 16)
SHAPE = (1, 1, 1024, 16)
TABLE, FAR = torch.linspace(0.0, 1.0, 10), torch.tensor([2**62])


def given(mod: Any) -> Premises:
    """Return what is known about a score mod at 1024 x 1024."""
    return premises(flexfa4.trace(mod, "score").bind(), CallSizes(1, 1, 1, 1024, 1024))


def with_norm(norm: float) -> torch.Tensor:
    """Return ``SHAPE`` rows whose largest norm is `norm`."""
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    return x * (norm / float(x.norm(dim=-1).max()))


@pytest.mark.parametrize(("norm", "expected"), [(7.0, True), (7.6, False), (math.nan, False)])
def test_the_bound_is_the_product_of_the_norms(norm: float, expected: bool) -> None:
    x = with_norm(norm)  # 7^2 < 80 ln 2 / 1.05 < 7.6^2
    assert scores_bounded(None, largest_score(x, x, 1.0)) is expected
    assert scores_bounded(None, largest_score(x, x, -1.0)) is expected
    assert scores_bounded(None, largest_score(x, x * 1e6, 1e-6)) is expected


def test_an_infinite_input_proves_nothing() -> None:
    x = with_norm(1.0)
    y = x.clone()
    y[0, 0, 5, 3] = math.inf
    assert not scores_bounded(None, largest_score(x, y, 1.0)) and not scores_bounded(
        None, largest_score(y, x, 0.0)
    )


def test_a_small_call_does_not_look_for_a_bound() -> None:
    x = with_norm(1.0)[:, :, :512]
    assert not scores_bounded(None, largest_score(x, x, 1.0))


@pytest.mark.parametrize(
    ("mod", "expected"),
    [
        (Softcap(60.0), True),
        (lambda score, b, h, q, kv: score * 0.5, True),
        (lambda score, b, h, q, kv: score * 1e4, False),
        (lambda score, b, h, q, kv: torch.where(q < kv, -math.inf, score), False),
        (Alibi(1), True),  # 2^-8 * 1023: small enough
        (Alibi(8), False),
    ],
    ids=["softcap", "halved", "enlarged", "minus infinity", "flat alibi", "steep alibi"],
)
def test_a_mod_is_bounded_by_its_interval(mod: Any, expected: bool) -> None:
    x = with_norm(3.0)
    assert scores_bounded(given(mod), largest_score(x, x, 1.0)) is expected


def test_a_bounding_mod_needs_no_bound_of_its_inputs() -> None:
    x = with_norm(1e20)
    assert not scores_bounded(None, largest_score(x, x, 1.0))
    assert scores_bounded(given(Softcap(50.0)), largest_score(x, x, 1.0))
    assert not scores_bounded(given(Softcap(60.0)), largest_score(x, x, 1.0))  # 60 / ln 2 > 80


def test_a_fast_core_is_used_only_within_its_reach() -> None:
    of_cap = given(Softcap(2.0))
    plan = plan_for(of_cap.graph, None, frozenset())
    assert plan.fast_cores
    for core, following in zip(plan.fast_cores, (*plan.fast_cores[1:], None), strict=True):
        reach = 2.0 * core.reach  # of the score, which is divided by the cap
        assert fast_core(of_cap, plan, 0.99 * reach) is core
        assert fast_core(of_cap, plan, 1.01 * reach) is following
    assert fast_core(of_cap, plan, math.inf) is None
    halved = given(lambda score, b, h, q, kv: score * 0.5)
    assert fast_core(halved, plan_for(halved.graph, None, frozenset()), 1.0) is None
    assert fast_core(None, plan, 1.0) is None


@pytest.mark.parametrize(
    ("mod", "expected"),
    [
        (Softcap(50.0), True),
        (Alibi(8), True),
        (lambda score, b, h, q, kv: score * (h + 1) + TABLE[(q - kv).clamp(0, 9)], True),
        (lambda score, b, h, q, kv: score + TABLE[kv % 10], False),
        (lambda score, b, h, q, kv: score * (q + 1), False),
        (lambda score, b, h, q, kv: torch.where(q > 9, score, torch.tanh(score)), False),
        (lambda score, b, h, q, kv: torch.where(q + FAR[0] > kv, score, 0.0), False),
    ],
    ids=["softcap", "alibi", "table", "keys", "rows", "core", "may wrap around"],
)
def test_a_mod_follows_the_diagonal_if_no_part_of_it_changes_along_it(
    mod: Any, expected: bool
) -> None:
    premises_of = given(mod)
    form = plan_for(premises_of.graph, None, frozenset()).form
    assert follows_diagonal(premises_of, form) is expected


@pytest.mark.parametrize("inputs_norm", [1.0, 2.0, 2.8, 3.5, 40.0])  # one for each core, and none
def test_scores_in_and_beyond_the_reach_of_each_fast_core_are_within_the_budget(
    inputs_norm: float,
) -> None:
    x = with_norm(inputs_norm)
    out = flexfa4.attention(x, x, x, score_mod=Softcap(2.0), scale=1.0)
    exact = flexfa4.attention(*(x.double(),) * 3, score_mod=Softcap(2.0), scale=1.0)
    plain = ((x @ x.mT / 2.0).tanh() * 2.0).softmax(-1) @ x
    assert (out - exact).abs().max() <= 2 * (plain - exact).abs().max() + 1e-7 * inputs_norm


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize(
    "mods",
    [
        Mods(),
        Mods(None, causal),
        Mods(Softcap(20.0), causal),
        Mods(lambda score, b, h, q, kv: score * 0.5 + 1.0),
        Mods(None, lambda b, h, q, kv: (q > 300) & (q >= kv)),
    ],
    ids=["dense", "causal", "softcap", "affine", "empty rows"],
)
def test_results_without_a_maximum_are_within_the_budget(
    mods: Mods, sink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    update = BoundedSoftmax.update

    def counted(self: BoundedSoftmax, *args: Any) -> None:
        used.append(1)
        update(self, *args)

    monkeypatch.setattr(BoundedSoftmax, "update", counted)
    assert not excess(Trial(Case("large", lambda s, d: mods), LARGE, sink=sink))
    assert used


def test_scores_at_the_bound_neither_overflow_nor_vanish() -> None:
    largest = math.sqrt(BOUNDED_SCORE * LN2 / 1.06)
    q = torch.full(SHAPE, largest / 4)
    k = q.clone()
    k[:, :, 1::2] *= -1  # scores alternate between both ends of the bound
    assert scores_bounded(None, largest_score(q, k, 1.0))
    v = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    out, lse = flexfa4.attention(q, k, v, scale=1.0, return_lse=True)
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(out[0, 0, 0], v[0, 0, ::2].mean(0), rtol=1e-5, atol=1e-6)
    only_low = flexfa4.attention(q, k[:, :, 1::2].repeat(1, 1, 2, 1), v, scale=1.0)
    torch.testing.assert_close(only_low[0, 0, 0], v[0, 0].mean(0), rtol=1e-5, atol=1e-6)
    assert float(lse[0, 0, 0]) == pytest.approx(largest**2 + math.log(512), rel=1e-6)
