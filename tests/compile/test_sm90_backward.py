"""Every tiling of the Hopper backward kernels compiles as it is meant to."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any, Final

import pytest
import torch

pytest.importorskip("cutlass")

import cutlass
from cutlass import cute

import flexfa4
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.backward.call import PlannedBackward, Wishes, plan_backward
from flexfa4.kernels.backward.plan import GradientPlan, PostprocessPlan
from flexfa4.kernels.backward.preprocess import PreprocessKernel
from flexfa4.kernels.compile.cute import Compilation, compile_with_cute, example_of
from flexfa4.kernels.request import Inputs, Request
from flexfa4.kernels.sm90.backward import kernel as kernel_module
from flexfa4.kernels.sm90.backward.architecture import HOPPER_BACKWARD
from flexfa4.kernels.sm90.backward.kernel import BackwardKernel
from flexfa4.kernels.sm90.backward.lagged import LaggedConsumer
from flexfa4.kernels.sm90.backward.load import Places
from flexfa4.kernels.sm90.backward.plan import BackwardPlan
from flexfa4.kernels.sm90.backward.postprocess import PostprocessKernel
from flexfa4.kernels.sm90.backward.storage import Tiling
from flexfa4.kernels.sm90.backward.tilings import BACKWARD
from flexfa4.kernels.sm90.forward.storage import SHARED_MEMORY
from flexfa4.primitives.wgmma import ROWS, issue

ARCH = "sm_90a"
SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")
WARNINGS = re.compile(r"\(C7\d+\).*|Potential Performance Loss.*")
LENGTH = 600


def planned(
    head_dims: tuple[int, int],
    score_mod: Any = None,
    block_mask: Any = None,
    *,
    deterministic: bool = False,
) -> PlannedBackward:
    """Return the plans of a call with a group of two query heads.

    Args:
        head_dims: of q and k, and of v.
        score_mod: or None.
        block_mask: its mod, or None.
        deterministic: the same bits on every run.
    """
    dim, value_dim = head_dims
    q, k, v = (
        torch.empty(1, heads, LENGTH, columns, dtype=torch.bfloat16)
        for heads, columns in ((4, dim), (2, dim), (2, value_dim))
    )
    blocks = None
    if block_mask is not None:
        mask = flexfa4.create_block_mask(block_mask, q_len=LENGTH, kv_len=LENGTH)
        blocks = mask.blocks_on(q.device)
    score = None if score_mod is None else resolve(score_mod, "score")
    request = Request(score, blocks, 1.0, frozenset(), False)
    wishes = Wishes(frozenset(), True, deterministic)
    plan = plan_backward(HOPPER_BACKWARD, Inputs(q, k, v, None), request, wishes)
    assert plan is not None
    return plan


def compilation(plan: GradientPlan) -> Compilation:
    assert isinstance(plan, BackwardPlan)
    example, maps = example_of(plan.signature), len(plan.maps)
    return compile_with_cute(
        BackwardKernel(plan), (tuple(example[:maps]), tuple(example[maps:])), ARCH
    )


def spills(made: Compilation) -> list[str]:
    """Return what ptxas says of registers that did not suffice."""
    assert SPILLS.search(made.report)
    return [spilled for spilled in SPILLS.findall(made.report) if int(spilled)]


def serialised(made: Compilation) -> list[str]:
    """Return what ptxas says of products that have to wait for each other."""
    return WARNINGS.findall(made.report)


MASKS = {"none": None, "causal": "q >= kv", "prefix": "q >= kv or kv < 300"}
MODS: dict[str, Any] = {
    "none": None,
    "softcap": "30 * tanh(score / 30)",
    "by position": "score + 0.5 * (kv - q)",
}

SPILLING: Final = {
    (64, 64): {"by position"},
    (128, 128): {"softcap"},
    (192, 128): {"softcap", "by position"},
}
"""Head dims and mods where accumulators and a tile of scores may leave too few registers for what a
block knows of its item: some of that is kept in memory while the tiles of queries are taken in."""


@pytest.mark.parametrize("head_dims", BACKWARD, ids=str)
def test_no_tiling_serialises_products_or_spills(head_dims: tuple[int, int]) -> None:
    plan = planned(head_dims, block_mask="q >= kv").main
    made = compilation(plan)
    assert not serialised(made)
    assert not spills(made)
    assert plan.storage.bytes <= SHARED_MEMORY


@pytest.mark.full
@pytest.mark.parametrize(
    ("head_dims", "mod", "mask"), [*itertools.product(BACKWARD, MODS, MASKS)], ids=str
)
def test_no_kind_of_mod_serialises_products_and_few_spill(
    head_dims: tuple[int, int], mod: str, mask: str
) -> None:
    made = compilation(planned(head_dims, MODS[mod], MASKS[mask]).main)
    assert not serialised(made)
    assert not spills(made) or mod in SPILLING.get(head_dims, ())


@pytest.mark.parametrize(
    ("head_dims", "mod", "mask"),
    [
        pytest.param(*of, marks=[pytest.mark.full] * (of[1:] != ("softcap", "causal")))
        for of in itertools.product(BACKWARD, MODS, MASKS)
    ],
    ids=str,
)
def test_turns_serialise_no_products(head_dims: tuple[int, int], mod: str, mask: str) -> None:
    plan = planned(head_dims, MODS[mod], MASKS[mask], deterministic=True).main
    assert isinstance(plan, BackwardPlan) and plan.ordered
    assert plan.tiling.staged == BACKWARD[head_dims].staged
    assert not serialised(compilation(plan))


def test_ptxas_reports_products_that_wait() -> None:
    """With twice the queries in a tile, nothing has room."""
    plan = planned((128, 128)).main
    wide = replace(plan, tiling=Tiling(128, 128, q_stages=1, do_stages=1, ds_stages=1))
    made = compilation(wide)
    assert serialised(made) and spills(made)


class Branching(LaggedConsumer):
    """A consumer that leaves out products which are for nobody."""

    @cute.jit
    def _begin_dq(self, at: Places) -> Any:
        o, columns = self.operands, self.parameters.plan.dq_order.columns
        sums = cute.make_rmem_tensor(o.dq.partition_shape_C((ROWS, columns)), cutlass.Float32)
        if at.mail.parity == 0:
            ds = o.ds_of_dq[None, None, None, at.ds.stage]
            k = o.k_of_dq[None, None, None, self.kv_stage]
            issue(o.dq, sums, ds, k, accumulate=False)
        return sums


def test_ptxas_reports_a_branch_around_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned((64, 128)).main
    monkeypatch.setattr(kernel_module, "LaggedConsumer", Branching)
    assert serialised(compilation(plan))


@pytest.mark.parametrize("head_dims", BACKWARD, ids=str)
def test_the_kernels_around_the_main_one_do_not_spill(head_dims: tuple[int, int]) -> None:
    plans = planned(head_dims)
    before, order = plans.preprocess, plans.main.dq_order
    after = PostprocessPlan(before.element, order)
    variants = [before, replace(before, grad_lse=False, sink=True)]
    variants += [replace(plan, finishes_dq=not plan.finishes_dq) for plan in variants]
    for plan in variants:
        arguments = (example_of(plan.signature),)
        assert not spills(compile_with_cute(PreprocessKernel(plan), arguments, ARCH))
    example = example_of(after.signature)
    both = (example[:1], example[1:])
    assert not spills(compile_with_cute(PostprocessKernel(after), both, ARCH))
