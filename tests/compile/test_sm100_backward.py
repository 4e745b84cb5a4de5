"""Kernels of the Blackwell backward as they are compiled: do registers suffice."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.backward.call import PlannedBackward, Wishes, plan_backward, summed_in_kernel
from flexfa4.kernels.backward.compiled import compile_plan
from flexfa4.kernels.backward.fragment import LANES
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.request import Inputs, Request
from flexfa4.kernels.sm100.backward.architecture import BLACKWELL_BACKWARD
from flexfa4.kernels.sm100.backward.plan import BackwardPlan
from flexfa4.kernels.sm100.backward.storage import Registers
from flexfa4.kernels.sm100.forward.storage import SHARED_MEMORY

ARCHITECTURES = ("sm_100a", "sm_103a")
HEAD_DIMS = ((64, 64), (64, 128), (96, 96), (128, 128), (192, 128))
LENGTH = 600
DOCUMENT, SLOPES = torch.arange(LENGTH) // 70, torch.rand(4)
BIAS = torch.randn(4, LENGTH)
TABLE, PAIRS = torch.randn(4, 32), torch.randn(4, LENGTH, LENGTH)

# One of each way in which scores are computed and masks are applied: (score mod, mask).
VARIANTS: dict[str, tuple[Any, Any]] = {
    "plain": (None, None),
    "causal": (None, "q >= kv"),
    "window": (None, "(q >= kv) & (q - kv < 100)"),
    "linear bias": (lambda s, b, h, q, kv: s + SLOPES[h] * (kv - q), "q >= kv"),
    "capped": ("30 * tanh(score / 30)", "(q >= kv) & (q - kv < 100)"),
    "documents": (None, lambda b, h, q, kv: DOCUMENT[q] == DOCUMENT[kv]),
    "by remainder": (None, lambda b, h, q, kv: DOCUMENT[q] % 3 == DOCUMENT[kv] % 3),
    "bias of keys": (lambda s, b, h, q, kv: s + BIAS[h, kv], None),
    "bias of distances": (lambda s, b, h, q, kv: s + TABLE[h, (q - kv).clamp(0, 31)], "q >= kv"),
    "bias of pairs": (lambda s, b, h, q, kv: s + PAIRS[h, q, kv], None),
    "factor of heads": (lambda s, b, h, q, kv: s * SLOPES[h], "q >= kv"),
    "factor of keys": (lambda s, b, h, q, kv: s * BIAS[h, kv], "q >= kv"),
    "factor of distances": (lambda s, b, h, q, kv: s * TABLE[h, (q - kv).clamp(0, 31)], "q >= kv"),
    "factor of pairs": (lambda s, b, h, q, kv: s * PAIRS[h, q, kv], None),
    "gate of queries": (lambda s, b, h, q, kv: s * torch.sigmoid(BIAS[h, q]), "q >= kv"),
    "learned cap": (lambda s, b, h, q, kv: SLOPES[h] * torch.tanh(s / SLOPES[h]), "q >= kv"),
}
ALIKE = ("bias of pairs", "factor of heads", "factor of keys", "factor of pairs")  # to others


def planned(
    variant: str, head_dims: tuple[int, int], deterministic: bool = False
) -> PlannedBackward:
    """Return the plans of a call with a group of two query heads, and gradients of captures."""
    score_mod, block_mask = VARIANTS[variant]
    dim, value_dim = head_dims
    q, k, v = (
        torch.empty(1, heads, LENGTH, columns, dtype=torch.bfloat16)
        for heads, columns in ((4, dim), (2, dim), (2, value_dim))
    )
    blocks = None
    if block_mask is not None:
        mask = flexfa4.create_block_mask(block_mask, q_len=LENGTH, kv_len=LENGTH)
        blocks = mask.blocks_on(q.device)
    score, captures = None, frozenset[Any]()
    if score_mod is not None:
        score = resolve(score_mod, "score")
        captures = summed_in_kernel(score.graph, frozenset(score.graph.buffers), deterministic)
    request = Request(score, blocks, 1.0, captures, False)
    wishes = Wishes(captures, True, deterministic)
    plan = plan_backward(BLACKWELL_BACKWARD, Inputs(q, k, v, None), request, wishes)
    assert plan is not None
    return plan


def compiled(plan: Any, arch: str = "sm_100a") -> CompiledKernel:
    return compile_plan(BLACKWELL_BACKWARD, arch, plan)


def uses_local_memory(kernel: CompiledKernel) -> bool:
    return kernel.resources.spills > 0 or kernel.resources.stack_frame > 0


CASES = [
    pytest.param(
        *case,
        marks=()
        if case[1:] == ((128, 128), "sm_100a") and case[0] not in ALIKE
        else pytest.mark.full,
    )
    for case in itertools.product(VARIANTS, HEAD_DIMS, ARCHITECTURES)
]


@pytest.mark.parametrize(("variant", "head_dims", "arch"), CASES, ids=str)
def test_no_variant_uses_local_memory(variant: str, head_dims: tuple[int, int], arch: str) -> None:
    plan = planned(variant, head_dims).main
    kernel = compiled(plan, arch)
    assert not uses_local_memory(kernel)
    assert kernel.smem_bytes == plan.storage.bytes <= SHARED_MEMORY
    assert f".target {arch}" in kernel.ptx


IN_PARTS = ("bias of pairs", "factor of heads", "factor of keys", "factor of distances",
            "factor of pairs", "gate of queries", "learned cap")  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_tile_is_computed_in_parts_where_captures_need_more_than_probabilities(
    variant: str,
) -> None:
    plan = planned(variant, (64, 64)).main
    assert isinstance(plan, BackwardPlan)
    assert plan.in_parts == (variant in IN_PARTS)
    assert plan.fragment.summed == (LANES if plan.in_parts else plan.fragment.columns)


@pytest.mark.parametrize("variant", ["causal", "capped"])
@pytest.mark.parametrize("head_dims", [(64, 64), (128, 128), (192, 128)], ids=str)
def test_turns_do_not_use_local_memory_either(variant: str, head_dims: tuple[int, int]) -> None:
    plan = planned(variant, head_dims, deterministic=True).main
    assert plan.ordered and not uses_local_memory(compiled(plan))


@pytest.mark.parametrize("head_dims", HEAD_DIMS, ids=str)
def test_the_kernels_around_the_main_one_use_none(head_dims: tuple[int, int]) -> None:
    plans = planned("plain", head_dims)
    for plan in (plans.preprocess, replace(plans.preprocess, sink=True), plans.postprocess):
        assert not uses_local_memory(compiled(plan))


def test_registers_that_do_not_suffice_are_noticed() -> None:
    plan = planned("plain", (128, 128)).main
    assert isinstance(plan, BackwardPlan)
    few = replace(plan.tiling, registers=Registers(compute=80))
    assert uses_local_memory(compiled(replace(plan, tiling=few)))
