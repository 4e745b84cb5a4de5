"""How the Hopper backward kernel's work is cut, for mods and for sums that are made in turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flexfa4.frontend.ir import F32
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.blocks.walk import Walk, WalkPlan
from flexfa4.kernels.emit.gradient import GradientProgram, prepare_gradient
from flexfa4.kernels.sm90.backward.storage import plan_storage
from flexfa4.kernels.sm90.backward.tilings import BACKWARD
from flexfa4.kernels.sm90.backward.tuning import fitting, in_turns, tiling_for
from flexfa4.kernels.sm90.forward.storage import SHARED_MEMORY
from flexfa4.primitives.tile_walk import TileShape

GATES = torch.rand(9)

MODS: dict[str, Any] = {
    "none": None,
    "derivative of 1": lambda s, b, h, q, kv: s + q - kv,
    "derivative of each score": lambda s, b, h, q, kv: 9 * torch.tanh(s / 9),
    "learned bias": lambda s, b, h, q, kv: s + GATES[kv],
    "learned": lambda s, b, h, q, kv: s * GATES[kv] + GATES[q],
}


def program(name: str) -> GradientProgram:
    graph = None if MODS[name] is None else resolve(MODS[name], "score").graph
    floats = () if graph is None else graph.buffers
    return prepare_gradient(graph, frozenset(b for b in floats if b.dtype is F32))


@pytest.mark.parametrize("name", MODS)
@pytest.mark.parametrize("head_dims", BACKWARD, ids=str)
def test_a_tiling_can_do_what_its_mod_asks_for_in_any_order_or_in_turns(
    head_dims: tuple[int, int], name: str
) -> None:
    score = program(name)
    tiling = tiling_for(head_dims, score)
    assert tiling is not None
    for made in (tiling, in_turns(tiling)):
        assert plan_storage(made, head_dims).bytes <= SHARED_MEMORY
        assert made.early or score.keeps_probabilities
        assert score.derivative is None or not made.lagged
    assert not in_turns(tiling).finishes


def test_mods_without_a_derivative_change_nothing() -> None:
    for head_dims, tiling in BACKWARD.items():
        assert tiling_for(head_dims, program("derivative of 1")) == tiling


def test_sums_for_captured_tensors_get_the_registers_of_half_a_tile() -> None:
    for head_dims, tiling in BACKWARD.items():
        made = tiling_for(head_dims, program("learned bias"))
        assert made == replace(tiling, queries=64)


def test_turns_change_nothing_but_who_finishes_dq() -> None:
    for tiling in BACKWARD.values():
        assert in_turns(tiling) == replace(tiling, finishes=False)


def test_head_dims_without_a_kernel_have_no_tiling() -> None:
    assert tiling_for((80, 80), program("none")) is None


@pytest.mark.parametrize(("visits", "finishes"), [(None, False), (32, True), (33, False)])
def test_dq_is_finished_where_few_tiles_of_keys_add_to_it(
    visits: int | None, finishes: bool
) -> None:
    tiling = BACKWARD[128, 128]
    shape = TileShape(tiling.queries, tiling.keys)
    counted = None if visits is None else lambda: torch.tensor([[visits + 1, visits - 1]])
    walk = Walk(WalkPlan("closed", shape, by="columns"), counted=counted)
    assert fitting(tiling, walk) == replace(tiling, finishes=finishes)
    never = BACKWARD[64, 64]
    assert fitting(never, walk) == never
