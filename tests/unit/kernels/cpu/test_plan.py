"""Plans depend on graphs alone, are made once, and hold no more programs than the mods need."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.ir import Buffer
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.cpu.plan import CpuPlan, plan_for
from flexfa4.testing import Mods, Sizes, attend, make_inputs
from flexfa4.variants import SlidingWindow

SLOPE = torch.linspace(-1.0, 1.0, 4)
PROGRAMS = ("row", "core", "bias", "mask", "backward")


def plan_of(mod: Any, mask: Any = None, learned: tuple[str, ...] = ()) -> CpuPlan:
    score = None if mod is None else resolve(mod, "score").graph
    buffers: frozenset[Buffer] = frozenset()
    if score is not None:
        buffers = frozenset(b for b in score.buffers if b.name in learned)
    return plan_for(score, None if mask is None else resolve(mask, "mask").graph, buffers)


@pytest.mark.parametrize(
    ("mod", "mask", "learned", "programs"),
    [
        (None, None, (), ""),
        (None, lambda b, h, q, kv: q >= kv, (), "mask"),
        (lambda s, b, h, q, kv: s + SLOPE[h] * (kv - q), None, (), "bias"),
        (lambda s, b, h, q, kv: s + SLOPE[h] * (kv - q), None, ("SLOPE",), "bias backward"),
        (lambda s, b, h, q, kv: s * SLOPE[h], None, (), "row"),
        (lambda s, b, h, q, kv: s * SLOPE[h], None, ("SLOPE",), "core backward"),
        (lambda s, b, h, q, kv: torch.tanh(s), None, (), "core backward"),
        (lambda s, b, h, q, kv: SLOPE[h] * kv, None, (), "row bias"),
    ],
)
def test_a_plan_has_a_program_only_where_there_is_something_to_evaluate(
    mod: Any, mask: Any, learned: tuple[str, ...], programs: str
) -> None:
    plan = plan_of(mod, mask, learned)
    assert [n for n in PROGRAMS if getattr(plan, n) is not None] == programs.split()
    assert len(plan.loads) == len(learned)


def test_a_core_is_left_exactly_where_the_mod_is_not_affine() -> None:
    assert plan_of(lambda s, b, h, q, kv: 2.0 * s + kv).form.core is None
    assert plan_of(lambda s, b, h, q, kv: s * s).form.core is not None


def test_each_load_of_a_learned_tensor_gets_a_gradient() -> None:
    plan = plan_of(lambda s, b, h, q, kv: s + SLOPE[h] * SLOPE[q % 4], None, ("SLOPE",))
    assert len(plan.loads) == 2
    assert len({item.terms for item in plan.loads}) == 2


def test_neither_values_sizes_nor_dtypes_make_a_plan_anew() -> None:
    def run(s: Sizes, factor: float, window: int, dtype: torch.dtype) -> None:
        inputs = make_inputs(s, torch.Generator(), dtype=dtype)
        out, _ = attend(inputs, Mods(scaled_by(factor), SlidingWindow(window)))
        out.sum().backward()

    run(Sizes(), 0.5, 9, torch.float32)
    before = flexfa4.stats()
    run(Sizes(), 0.25, 9, torch.float32)
    run(Sizes(batch=3), 0.5, 17, torch.float32)
    run(Sizes(q_len=200, kv_len=300, heads=6, kv_heads=3), -0.5, 9, torch.bfloat16)
    after = flexfa4.stats() - before
    assert (after.plans, after.traces, after.calls) == (0, 0, 3)


def scaled_by(factor: float) -> Any:
    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.tanh(score * factor) - kv_idx

    return mod
