"""Kernels of the Blackwell forward as they are compiled: do registers suffice, what is executed."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

from flexfa4 import testing
from flexfa4.ahead_of_time import Call, plan_of
from flexfa4.api import Options
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.forward.compiled import compile_plan
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.sm100.architecture import Blackwell
from flexfa4.kernels.sm100.forward.plan import ForwardPlan
from flexfa4.kernels.sm100.forward.storage import SHARED_MEMORY
from flexfa4.primitives.exponentials import EmulatedFraction
from flexfa4.testing import Case, Draw
from tests.forward_trials import SIZES

ARCHITECTURES = ("sm_100a", "sm_103a")
HEAD_DIMS = ((64, 64), (64, 128), (96, 96), (128, 128), (192, 128))
LENGTH = 8192
DOCUMENT, SLOPES = torch.arange(LENGTH) // 700, torch.rand(4)
TABLE, BUCKET, BIAS = torch.randn(32, 4), torch.arange(LENGTH) // 256, torch.randn(4, LENGTH)

# One of each way in which scores are computed and masks are applied: (score mod, mask).
VARIANTS: dict[str, tuple[Any, Any]] = {
    "plain": (None, None),
    "causal": (None, "q >= kv"),
    "window": (None, "(q >= kv) & (q - kv < 1000)"),
    "linear bias": (lambda s, b, h, q, kv: s + SLOPES[h] * (kv - q), "q >= kv"),
    "capped": ("30 * tanh(score / 30)", None),
    "documents": (None, lambda b, h, q, kv: DOCUMENT[q] == DOCUMENT[kv]),
    "by remainder": (None, lambda b, h, q, kv: DOCUMENT[q] % 3 == DOCUMENT[kv] % 3),
    "table": (lambda s, b, h, q, kv: s + TABLE[BUCKET[(q - kv).clamp(min=0)], h], "q >= kv"),
    "distances by remainder": (
        lambda s, b, h, q, kv: s + SLOPES[h] * (kv - q),
        lambda b, h, q, kv: DOCUMENT[q] % 3 == DOCUMENT[kv] % 3,
    ),
    "bias of keys": (lambda s, b, h, q, kv: s + BIAS[h, kv], None),
}


def planned(variant: str, head_dims: tuple[int, int], arch: str, **call: Any) -> ForwardPlan:
    score_mod, block_mask = VARIANTS[variant]
    sizes: dict[str, Any] = {"heads": 4, "q_len": LENGTH, "kv_len": LENGTH}
    made = Call(head_dims, **{**sizes, "return_lse": True, "sink": True, **call})
    plan = plan_of(score_mod, block_mask, made, arch)
    assert not isinstance(plan, Refusal) and isinstance(plan, ForwardPlan)
    return plan


def compiled(plan: ForwardPlan, arch: str = "sm_100a") -> CompiledKernel:
    return compile_plan(Blackwell(), plan, arch)


def complaints(kernel: CompiledKernel) -> list[str]:
    """Return what of registers did not suffice: local memory is used."""
    found = kernel.resources
    return [f"{found.spills} bytes spilled"] * (found.spills > 0) + [
        f"a stack of {found.stack_frame} bytes"
    ] * (found.stack_frame > 0)


CASES = [
    pytest.param(*case, marks=() if case[1:] == ((128, 128), "sm_100a") else pytest.mark.full)
    for case in itertools.product(VARIANTS, HEAD_DIMS, ARCHITECTURES)
]


@pytest.mark.parametrize(("variant", "head_dims", "arch"), CASES, ids=str)
def test_no_variant_uses_local_memory(variant: str, head_dims: tuple[int, int], arch: str) -> None:
    plan = planned(variant, head_dims, arch)
    kernel = compiled(plan, arch)
    assert not complaints(kernel)
    assert kernel.smem_bytes == plan.storage.bytes <= SHARED_MEMORY
    assert f".target {arch}" in kernel.ptx


@pytest.mark.full
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("head_dims", HEAD_DIMS, ids=str)
@pytest.mark.parametrize("case", testing.CASES, ids=lambda case: case.name)
def test_no_variant_of_the_case_table_uses_local_memory(
    case: Case, head_dims: tuple[int, int], arch: str
) -> None:
    sizes = replace(SIZES["packed"], dim=head_dims[0], value_dim=head_dims[1])
    mods = case.make(sizes, Draw(torch.Generator().manual_seed(0)))
    made = Call(
        head_dims, heads=sizes.heads, kv_heads=sizes.kv_heads, batch=sizes.batch,
        q_len=sizes.q_len, kv_len=sizes.kv_len, return_lse=True,
    )  # fmt: skip
    plan = plan_of(mods.score_mod, mods.mask, made, arch)
    assert isinstance(plan, ForwardPlan)
    assert not complaints(compiled(plan, arch))


@pytest.mark.full
@pytest.mark.parametrize("head_dims", [(16, 16), (48, 112), (240, 96), (80, 48)], ids=str)
def test_other_head_dims_use_no_local_memory_either(head_dims: tuple[int, int]) -> None:
    assert not complaints(compiled(planned("linear bias", head_dims, "sm_100a")))


def test_packed_heads_in_fp16_without_lse_use_no_local_memory() -> None:
    call: dict[str, Any] = {"kv_heads": 1, "dtype": torch.float16, "return_lse": False}
    plan = planned("linear bias", (64, 64), "sm_103a", **call)
    assert plan.group == 4 and not complaints(compiled(plan, "sm_103a"))


def test_registers_that_do_not_suffice_are_noticed() -> None:
    plan = planned("plain", (128, 128), "sm_100a")
    few = replace(plan.tiling.registers, softmax=104)
    assert complaints(compiled(replace(plan, tiling=replace(plan.tiling, registers=few))))


def opcodes(kernel: CompiledKernel, name: str) -> int:
    """Return how often an opcode is written in a kernel's text."""
    return len(re.findall(rf"^\s*(?:@!?%?\w+\s+)?{re.escape(name)}", kernel.ptx, re.MULTILINE))


def test_a_tile_takes_as_many_products_as_its_depth_and_no_product_of_another_kind() -> None:
    kernel = compiled(planned("plain", (128, 128), "sm_100a"))
    # in front of the loop, in it and behind it: scores twice, values twice, of two halves
    assert opcodes(kernel, "tcgen05.mma.cta_group::1.kind::f16") == 4 * 2 * 8
    assert not opcodes(kernel, "mma.sync") and not opcodes(kernel, "wgmma")


def test_emulated_exponentials_take_the_place_of_others() -> None:
    plan = planned("plain", (64, 64), "sm_100a")
    counts = []
    for numerator in (0, 1, 2):
        emulated = EmulatedFraction(numerator, 4)
        tiling = replace(plan.tiling, emulated=emulated)
        counts.append(opcodes(compiled(replace(plan, tiling=tiling)), "ex2.approx"))
    # the loops of partial and of full tiles
    assert [counts[0] - count for count in counts] == [0, 2 * 32, 2 * 64]


OF_PAIRS = [
    pytest.param(*case, marks=() if case == ("plain", 64, "sm_100a") else pytest.mark.full)
    for case in itertools.product(("plain", "capped", "bias of keys"), (64, 128), ARCHITECTURES)
]


@pytest.mark.parametrize(("variant", "head_dim", "arch"), OF_PAIRS, ids=str)
def test_two_blocks_that_compute_together_issue_products_of_the_pair(
    variant: str, head_dim: int, arch: str
) -> None:
    pairs = Options(tile=(512, 128))
    kernel = compiled(planned(variant, (head_dim, head_dim), arch, options=pairs), arch)
    assert not complaints(kernel) and kernel.cluster == (2, 1, 1)
    assert opcodes(kernel, "tcgen05.mma.cta_group::2")
    assert not opcodes(kernel, "tcgen05.mma.cta_group::1")
