"""What of the backward benchmark needs no GPU: its cases, and the check of gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hopper import backward, jobs, speed, timing
from hopper.backward import BackwardCase, gradient_call
from hopper.cases import Case
from hopper.gradients import ExpectedPart, expected_gradients, gradients_of, verdict
from hopper.providers import OURS, PROVIDERS, Prepared, Problem
from hopper.variants import VARIANTS, Shape

import flexfa4
from flexfa4.kernels.sm90.backward.architecture import HOPPER_BACKWARD
from tests.simulated_turns import launches, tensors

CPU = torch.device("cpu")
SMALL = Shape(2, 4, 2, 200, 16, 8)


def test_every_case_can_be_made_and_asks_for_something() -> None:
    for name, given in backward.cases().items():
        case = given.case
        assert case.name == f"backward-{name}" and case.variant in VARIANTS
        if name == "alibi-learned":  # beside the others, to see what distances cost
            assert case.must is None and case.aim is None
        else:
            assert case.must is not None and case.aim is not None and case.must < case.aim
        assert set(case.peers) < set(PROVIDERS)
        assert name.endswith("learned") == given.learned
        assert name.endswith("deterministic") == given.deterministic
        small = VARIANTS[case.variant].make(SMALL, CPU)
        assert bool(small.learnable) or not given.learned
    assert len(jobs.selected(["backward"])) == len(backward.cases())


def test_flops_count_five_products() -> None:
    given = backward.cases()["causal-d192-128"]
    visible = VARIANTS["causal"].visible(given.case.shape)
    assert given.tflop * 1e12 == 2 * (3 * 192 + 2 * 128) * 16 * visible


# ---- turns, by simulation ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("full", 0.945),
        ("causal", 0.917),
        ("window-1024", 0.873),
        ("documents", 0.881),
        ("causal-d64", 0.966),
        ("causal-d192-128", 0.956),
    ],
)
def test_the_speed_with_turns_is_simulated_within_five_points(name: str, measured: float) -> None:
    """What was measured is in docs/notes/h200.md, relative to the speed without turns."""
    case = backward.cases()[name].case
    shape, mask = case.shape, None
    mods = VARIANTS[case.variant].make(shape, CPU)
    if mods.mask is not None:
        batch = shape.batch if mods.mask_by_batch else None
        sizes = {"q_len": shape.length, "kv_len": shape.length}
        mask = flexfa4.create_block_mask(mods.mask, batch=batch, **sizes)
    heads, dims = (shape.heads, shape.kv_heads), (shape.dim, shape.value_dim)
    found = launches(HOPPER_BACKWARD, tensors(shape.batch, heads, shape.length, dims), mask)
    assert found.ratio == pytest.approx(measured, abs=0.05)


# ---- the check of gradients ----------------------------------------------------------------------


def prepared_on_cpu(problem: Problem) -> Prepared:
    q, k, v, mods = problem.q, problem.k, problem.v, problem.mods
    call = functools.partial(flexfa4.attention, q, k, v, score_mod=mods.score, block_mask=mods.mask)
    return Prepared(call, inputs=(q, k, v))


def checked(variant: str, learned: bool) -> tuple[tuple[torch.Tensor, ...], list[ExpectedPart]]:
    """Return the gradients of the CPU backend, and what they should be."""
    problem = Problem.of(Case(variant, "backward", variant, SMALL, 1.0, 2.0), CPU)
    tensors = problem.mods.learnable if learned else ()
    for tensor in tensors:
        tensor.requires_grad_()
    do = torch.randn(2, 4, 200, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    right = expected_gradients(problem, do, tensors)
    prepared = prepared_on_cpu(problem)
    return gradients_of(prepared, gradient_call(prepared, tensors, do)()), right


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_reference_agrees_with_the_cpu_backend(variant: str) -> None:
    learned = bool(VARIANTS[variant].make(SMALL, CPU).learnable)
    said = verdict(*checked(variant, learned))
    assert said.right and said.error >= 0


def test_a_wrong_number_in_any_part_is_found_and_named() -> None:
    found, right = checked("key-bias", True)
    assert {part.place[0] for part in right} == {0, 1, 2, 3}
    for part in right:
        which, place = part.place
        for by in (30.0, math.nan):
            broken = [g.clone() for g in found]
            own = broken[which][place]
            own.view(-1)[0] += by
            broken[which][place] = own
            said = verdict(tuple(broken), right)
            assert not said.right and said.worst == part.name


def test_gradients_of_another_variant_are_wrong() -> None:
    found, _ = checked("causal", False)
    assert not verdict(found, checked("window-128", False)[1]).right


# ---- rows ----------------------------------------------------------------------------------------


class StillCeiling:
    def tflops(self, clock: timing.Clock) -> float:
        return 700.0


class Clock:
    def milliseconds(self, call: Callable[[], Any], times: int) -> float:
        call()
        return 2.0


def test_a_row_has_the_times_of_those_whose_gradients_are_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(problem: Problem) -> Prepared:
        q, k, v = problem.q, problem.k, problem.v
        return Prepared(lambda: flexfa4.attention(q, k, v * 2), inputs=(q, k, v))

    def packed(problem: Problem) -> Prepared:  # a layout of its own
        own = tuple(t.transpose(1, 2).contiguous() for t in (problem.q, problem.k, problem.v))
        call = lambda: flexfa4.attention(  # noqa: E731
            *(t.transpose(1, 2) for t in own), block_mask=problem.mods.mask
        ).transpose(1, 2)
        return Prepared(call, lambda out: out.transpose(1, 2), own)

    fakes = {
        OURS: prepared_on_cpu, "flash-attn-4": packed, "Flex FLASH": wrong,
        "Flex Triton": lambda problem: None, "cuDNN": lambda problem: None,
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setitem(PROVIDERS, name, fake)
    bench = speed.Bench(CPU, Clock(), timing.Rounds(3, 1.0), StillCeiling())
    row = backward.measured(BackwardCase(Case("x", "backward", "causal", SMALL, 0.9, 1.0)), bench)
    found = row["providers"]
    assert found[OURS]["ms"] == found["flash-attn-4"]["ms"] == [2.0] * 3
    assert found["Flex FLASH"]["failed"].startswith("wrong") and "ms" not in found["Flex FLASH"]
    assert set(found) == {OURS, "flash-attn-4", "Flex FLASH"}
    assert row["tflop"] > 0


@pytest.mark.parametrize("reason", ["out of resource: Required: 233472", "no such thing"])
def test_a_peer_that_takes_too_much_shared_memory_is_tried_with_less(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def fails(problem: Problem) -> Prepared:
        raise RuntimeError(reason)

    monkeypatch.setitem(PROVIDERS, OURS, prepared_on_cpu)
    monkeypatch.setitem(PROVIDERS, "Flex Triton", fails)
    monkeypatch.setitem(backward._WITH_LESS, "Flex Triton", prepared_on_cpu)
    case = Case("x", "backward", "causal", SMALL, 0.9, 1.0, peers=("Flex Triton",))
    bench = speed.Bench(CPU, Clock(), timing.Rounds(3, 1.0), StillCeiling())
    found = backward.measured(BackwardCase(case), bench)["providers"]["Flex Triton"]
    assert ("ms" in found) == reason.startswith("out of resource")
    assert ("failed" in found) == (reason == "no such thing")
