"""Mods are evaluated for few columns at once where many would take too many registers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.ahead_of_time import Call, plan_of
from flexfa4.kernels.sm90.forward.parts import Parts, parts_of
from flexfa4.kernels.sm90.forward.plan import ForwardPlan

LENGTH = 96
TABLE, BIAS = torch.randn(32, 4), torch.randn(4, LENGTH)
VECTORS, GROUP = torch.randn(LENGTH, 8), torch.arange(LENGTH) % 3


def parts(score_mod: Any = None, mask: Any = "q >= kv", head_dim: int = 128, **call: Any) -> Parts:
    made = Call((head_dim, head_dim), heads=4, q_len=LENGTH, kv_len=LENGTH, **call)
    plan = plan_of(score_mod, mask, made, "sm_90a")
    assert isinstance(plan, ForwardPlan)
    return parts_of(plan)


def by_key(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return s + BIAS[h, kv]


def by_distance(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return s + TABLE[(q - kv).clamp(0, 31), h]


def of_vectors(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return s + (VECTORS[q] * VECTORS[kv]).sum(-1)


def many(terms: int) -> str:
    return "score + " + " + ".join(f"sin(kv * {i}.0) * cos(q * {i}.0)" for i in range(1, 1 + terms))


ALL = 32  # columns of a thread of a tile of 128 keys


@pytest.mark.parametrize(
    "few",
    [None, "score * 2", "score + abs(q - kv)", by_key],
    ids=["none", "factor", "distance", "by key"],
)
def test_mods_that_take_little_are_evaluated_for_all_columns_together(few: Any) -> None:
    assert parts(few) == Parts(scores=ALL, mask=16, ahead=None)


def test_functions_of_the_score_are_not_much_however_many_instructions_they_take() -> None:
    assert parts(f"30 * tanh(({many(9)}) / 30)").scores == ALL


@pytest.mark.parametrize(
    ("score_mod", "columns"),
    [(by_distance, 16), (many(2), 16), (of_vectors, 2), (many(9), 2)],
    ids=["reads", "much", "vectors", "costly"],
)
def test_mods_that_read_or_compute_for_each_score_are_evaluated_in_parts(
    score_mod: Any, columns: int
) -> None:
    assert parts(score_mod) == Parts(scores=columns, mask=16, ahead=0)
    # wide heads leave half as many registers
    assert parts(score_mod, head_dim=256) == Parts(scores=columns // 2, mask=8, ahead=0)


def test_what_packed_heads_read_for_a_key_differs_from_row_to_row() -> None:
    assert parts(by_key, kv_heads=4).scores == ALL
    assert parts(by_key, kv_heads=2) == Parts(scores=4, mask=16, ahead=0)


def test_a_costly_mask_is_evaluated_in_smaller_parts() -> None:
    def same_group(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return GROUP[q] == GROUP[kv]

    def costly(b: Any, h: Any, q: Any, kv: Any) -> Any:
        shown = GROUP[q] == GROUP[kv]
        for i in range(3, 12):
            shown = shown | ((q // i + kv) % i == 0)
        return shown

    assert (parts(mask=same_group).mask, parts(mask=costly).mask) == (16, 2)


def test_three_warpgroups_have_registers_for_less() -> None:
    assert parts(head_dim=64) == Parts(scores=24, mask=4, ahead=8)
