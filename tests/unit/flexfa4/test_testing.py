"""The reference and its budgets: right, independent, and strict enough to find what is wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexfa4 import variants
from flexfa4.testing import (
    CASES,
    Attend,
    Case,
    Deviation,
    Inputs,
    Mods,
    Sizes,
    Trial,
    attend,
    biases,
    compare,
    dense_reference,
    finite_rows,
    make_inputs,
)

BY_NAME = {case.name: case for case in CASES}
SMALL = Sizes(batch=1, heads=2, kv_heads=1, q_len=9, kv_len=11, dim=4, value_dim=6)
Results = tuple[torch.Tensor, torch.Tensor]


def test_cases_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(CASES)


def test_every_variant_has_a_case() -> None:
    built = [Trial(case, SMALL).build(torch.float32)[1] for case in CASES]
    shown = " ".join(repr(mod) for mods in built for mod in (mods.score_mod, mods.mask))
    inside_functions = {"ActivationScore"}  # which show nothing of what they call
    assert all(hasattr(biases, name) for name in inside_functions)
    classes = {n for n in variants.__all__ if isinstance(getattr(variants, n), type)}
    assert {n for n in classes if f"{n}(" not in shown} == inside_functions


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_can_be_called_on_index_tensors_and_repeats_from_its_seed(case: Case) -> None:
    trial = Trial(case, Sizes(q_len=5, kv_len=7), sink=True, seed=3)
    results = []
    for _ in range(2):
        inputs, mods = trial.build(torch.float64)
        out, lse = dense_reference(inputs, mods)
        assert out.shape == (2, 4, 5, 16) and lse.shape == (2, 4, 5) and not out.isnan().any()
        assert all(t.requires_grad for t in (*inputs.leaves(), *mods.learned))
        results.append((out, lse))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_same_values_are_built_in_every_dtype() -> None:
    trial = Trial(BY_NAME["learned_slopes"], SMALL, torch.bfloat16)
    (low, low_mods), (double, double_mods) = (
        trial.build(d) for d in (torch.float32, torch.float64)
    )
    assert low.q.dtype is torch.float32 and double.q.dtype is torch.float64
    assert torch.equal(low.q.double(), double.q) and torch.equal(low.q.bfloat16().float(), low.q)
    assert torch.equal(low_mods.learned[0].double(), double_mods.learned[0])
    other, _ = dataclasses.replace(trial, seed=1).build(torch.float64)
    assert not torch.equal(other.q, double.q)


# ---- the reference -------------------------------------------------------------------------------


def test_the_reference_is_softmax_attention() -> None:
    inputs = make_inputs(SMALL, torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.rand(9, 11) < 0.7
    mask[4] = False
    out, lse = dense_reference(inputs, Mods(mask=lambda b, h, q, kv: mask[q, kv]), scale=0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        inputs.q, inputs.k, inputs.v, mask, scale=0.3, enable_gqa=True
    )
    rows = mask.any(1)
    torch.testing.assert_close(out[:, :, rows], expected[:, :, rows])
    assert not out[:, :, ~rows].any() and (lse[:, :, ~rows] == -math.inf).all()


def test_a_sink_is_one_more_key_without_a_value() -> None:
    inputs = make_inputs(SMALL, torch.Generator().manual_seed(0), dtype=torch.float64, sink=True)
    assert inputs.sink is not None
    out, lse = dense_reference(inputs, Mods())
    scores = inputs.q @ inputs.k.expand(-1, 2, -1, -1).transpose(2, 3) * 0.5
    scores = torch.cat([scores, inputs.sink[:, None, None].expand(1, 2, 9, 1)], -1)
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    weights = scores.softmax(-1)[..., :-1]
    torch.testing.assert_close(out, weights @ inputs.v.expand(-1, 2, -1, -1))


def test_a_score_mod_sees_scaled_scores_and_absolute_indices() -> None:
    seen: dict[str, Any] = {}

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        seen.update(score=score, b=b.flatten(), h=h.flatten(), q=q_idx.flatten(), kv=kv_idx)
        return score

    inputs = make_inputs(SMALL, torch.Generator().manual_seed(0))
    dense_reference(inputs, Mods(score_mod))
    q, k = inputs.q.double(), inputs.k.double()
    torch.testing.assert_close(seen["score"], q @ k.expand(-1, 2, -1, -1).transpose(2, 3) / 2)
    sizes = [len(seen[name]) for name in ("b", "h", "q", "kv")]
    assert sizes == [1, 2, 9, 11] and torch.equal(seen["kv"], torch.arange(11))


def test_rows_without_keys_enter_a_loss_as_zero() -> None:
    assert torch.equal(finite_rows(torch.tensor([1.0, -math.inf])), torch.tensor([1.0, 0.0]))


# ---- budgets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "budget", "holds"),
    [(0.0, 0.0, True), (1.0, 2.0, True), (2.0, 1.0, False), (math.nan, 1.0, False)],
)
def test_a_deviation_holds_within_its_budget(error: float, budget: float, holds: bool) -> None:
    assert Deviation("out", error, budget).holds() is holds


def failed(trial: Trial, implementation: Attend) -> set[str]:
    return {d.name for d in compare(trial, implementation) if not d.holds()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["causal", "learned_slopes", "rows_without_keys"])
def test_attention_is_within_the_budgets(name: str, dtype: torch.dtype) -> None:
    assert not failed(Trial(BY_NAME[name], dtype=dtype, sink=name == "causal"), attend)


def shifted_mask(inputs: Inputs, mods: Mods) -> Results:
    mask = mods.mask
    return attend(inputs, dataclasses.replace(mods, mask=lambda b, h, q, kv: mask(b, h, q, kv + 1)))


def larger_output(inputs: Inputs, mods: Mods) -> Results:
    out, lse = attend(inputs, mods)
    return out * (1 + 2e-4), lse


def binary_lse(inputs: Inputs, mods: Mods) -> Results:
    out, lse = attend(inputs, mods)
    return out, lse / math.log(2)


def no_gradient_through_lse(inputs: Inputs, mods: Mods) -> Results:
    out, lse = attend(inputs, mods)
    return out, lse.detach()


def no_gradient_of_captures(inputs: Inputs, mods: Mods) -> Results:
    out, lse = attend(inputs, mods)
    frozen = sum(t.sum() for t in mods.learned)
    return out + (frozen - frozen.detach()), lse  # type: ignore[union-attr]


def finite_lse(inputs: Inputs, mods: Mods) -> Results:
    out, lse = attend(inputs, mods)
    return out, lse.clamp(min=-1e30)


def poisoned(inputs: Inputs, mods: Mods) -> Results:
    out, lse = attend(inputs, mods)
    return out.index_fill(2, torch.tensor([0]), math.nan), lse


@pytest.mark.parametrize(
    ("wrong", "case", "found"),
    [
        (shifted_mask, "causal", "out"),
        (larger_output, "causal", "out"),
        (binary_lse, "causal", "lse"),
        (no_gradient_through_lse, "causal", "grad q"),
        (no_gradient_of_captures, "learned_slopes", "grad capture 0"),
        (finite_lse, "rows_without_keys", "rows with lse = -inf"),
        (poisoned, "dense", "out"),
    ],
)
def test_a_wrong_implementation_is_found_where_it_is_wrong(
    wrong: Callable[[Inputs, Mods], Results], case: str, found: str
) -> None:
    assert found in failed(Trial(BY_NAME[case]), wrong)
