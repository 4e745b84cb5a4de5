"""Tilings: those of the table fit, and a user's choice is taken or refused with its limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flexfa4.ahead_of_time import Call, plan_of
from flexfa4.api import Options
from flexfa4.kernels.architectures import architecture
from flexfa4.kernels.blocks.walk import WalkPlan
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import ANY_TILE, Tile
from flexfa4.kernels.sm90.forward.plan import ForwardPlan, Tiling
from flexfa4.kernels.sm90.forward.storage import SHARED_MEMORY, plan_storage
from flexfa4.kernels.sm90.forward.tilings import FORWARD, UNMASKED
from flexfa4.kernels.sm90.model import cycles_per_score
from flexfa4.kernels.sm90.tuning import feasible, tiling_for
from flexfa4.primitives.tile_walk import TileShape


@pytest.mark.parametrize("head_dims", FORWARD, ids=str)
def test_the_tilings_of_the_table_fit_and_are_what_a_call_gets(head_dims: tuple[int, int]) -> None:
    tiling = FORWARD[head_dims]
    assert plan_storage(tiling.rows, tiling.keys, head_dims, tiling.stages).bytes <= SHARED_MEMORY
    assert tiling_for(head_dims, ANY_TILE) == tiling
    assert tiling_for(head_dims, Tile(tiling.rows, tiling.keys, tiling.stages)) == tiling


def test_a_choice_is_taken_and_the_rest_stays_as_usual() -> None:
    usual = FORWARD[128, 128]
    assert tiling_for((128, 128), Tile(64, 96)) == replace(usual, warpgroups=1, keys=96)
    assert tiling_for((128, 128), Tile(stages=1)) == replace(usual, stages=1)


@pytest.mark.parametrize(
    ("tile", "limit"),
    [
        (Tile(256, 64), "64, 128, 192 queries"),
        (Tile(128, 40), "multiple of 16"),
        (Tile(128, 272), "up to 256 keys"),
        (Tile(128, 256, 2), f"{SHARED_MEMORY} bytes"),
    ],
)
def test_a_choice_that_there_is_no_kernel_for_is_refused(tile: Tile, limit: str) -> None:
    found = tiling_for((128, 128), tile)
    assert isinstance(found, Refusal) and limit in found.allowed


@pytest.mark.parametrize(
    ("tile", "instead"),
    [
        (Tile(128, 256), Tile(128, 160, 2)),  # the most keys that fit
        (Tile(128, 128, 9), Tile(128, 32, 9)),
        (Tile(stages=9), Tile(128, 128, 3)),
        (Tile(192, 256, 64), Tile(128, 128, 2)),  # so many stages never fit
    ],
)
def test_a_choice_that_is_too_large_is_refused_with_one_that_fits(
    tile: Tile, instead: Tile
) -> None:
    found = tiling_for((128, 128), tile)
    assert isinstance(found, Refusal)
    rows, keys, stages = instead
    assert found.rewrite == f"options=flexfa4.Options(tile=({rows}, {keys}), stages={stages})"
    assert isinstance(tiling_for((128, 128), instead), Tiling)


# ---- head dims that were not measured ------------------------------------------------------------

EVERY = [(d, dv) for d in range(16, 257, 16) for dv in range(16, 257, 16)]


@pytest.mark.parametrize("head_dim", range(16, 257, 16))
def test_every_multiple_of_16_has_a_tiling_that_fits(head_dim: int) -> None:
    for head_dims in (dims for dims in EVERY if dims[0] == head_dim):
        assert architecture("sm90").refused_head_dims(head_dims) is None
        tiling = tiling_for(head_dims, ANY_TILE)
        assert isinstance(tiling, Tiling)
        storage = plan_storage(tiling.rows, tiling.keys, head_dims, tiling.stages)
        assert storage.bytes <= SHARED_MEMORY
        # what ptxas has: 160 registers for each of three warpgroups, 240 for each of two
        held = tiling.keys * 3 // 4 + head_dims[1] // 2
        assert held <= {1: 220, 2: 200, 3: 136}[tiling.warpgroups]
        if head_dims not in FORWARD:
            assert tiling in set(feasible(head_dims))


@pytest.mark.parametrize("head_dims", FORWARD, ids=str)
def test_what_was_measured_to_be_best_is_near_the_best_of_the_model(
    head_dims: tuple[int, int],
) -> None:
    def cycles(tiling: Tiling) -> float:
        walk = WalkPlan("dense", TileShape(tiling.rows, tiling.keys))
        plan = ForwardPlan(element="bf16", head_dims=head_dims, tiling=tiling, walk=walk)
        return cycles_per_score(plan)

    assert cycles(FORWARD[head_dims]) <= 1.02 * min(map(cycles, feasible(head_dims)))


@pytest.mark.parametrize("head_dims", [(72, 64), (64, 8), (272, 64), (64, 272), (0, 16)])
def test_other_head_dims_are_not_served(head_dims: tuple[int, int]) -> None:
    assert architecture("sm90").refused_head_dims(head_dims) is not None


@pytest.mark.parametrize(
    ("head_dims", "rewrite"),
    [
        ((72, 72), "pad(x, (0, 8))"),
        ((64, 40), "out[..., :40]"),
        ((300, 64), "heads of at most 256"),
    ],
)
def test_what_is_not_served_is_refused_with_what_would_be(
    head_dims: tuple[int, int], rewrite: str
) -> None:
    refused = architecture("sm90").refused_head_dims(head_dims)
    assert refused is not None
    assert "multiples of 16 up to 256" in refused.allowed and rewrite in refused.rewrite
    assert architecture("sm90").refused_head_dims((80, 48)) is None


def tiling_of(
    head_dims: tuple[int, int], score_mod: Any = None, mask: Any = None, options: Any = None
) -> Tiling:
    call = Call(head_dims, heads=2, q_len=64, kv_len=64, options=options)
    plan = plan_of(score_mod, mask, call, "sm_90a")
    assert isinstance(plan, ForwardPlan)
    return plan.tiling


BIAS, PARITY = torch.randn(2, 64), torch.arange(64) % 2
LARGE = "score + " + " + ".join(f"sin(kv * {i}.0) * cos(q * {i}.0)" for i in range(1, 9))


def test_mods_that_need_registers_get_tilings_that_leave_them() -> None:
    def reading(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + BIAS[h, kv]

    def by_parity(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return PARITY[q] == PARITY[kv]

    usual = FORWARD[64, 64]
    assert usual.warpgroups == 3
    for few in ("score * 2", "score + abs(q - kv)", "30 * tanh(score / 30)"):
        assert tiling_of((64, 64), few, "q >= kv") == usual
    # where two warpgroups fit all their registers, they keep the tile
    for mod, mask in ((reading, "q >= kv"), (LARGE, "q >= kv"), (LARGE, by_parity)):
        assert tiling_of((64, 64), mod, mask) == Tiling(warpgroups=2, keys=128)
        assert tiling_of((128, 128), mod, mask) == FORWARD[128, 128]
    masked = tiling_of((64, 64), None, by_parity)
    assert masked == replace(usual, keys=usual.keys - 16)


@pytest.mark.parametrize("head_dims", UNMASKED, ids=str)
def test_calls_without_a_mask_have_rows_of_their_own(head_dims: tuple[int, int]) -> None:
    def tiling(*mods: str | None, **named: str) -> Tiling:
        return tiling_of(head_dims, *mods, **named)

    assert tiling() == tiling("score * 2") == UNMASKED[head_dims] != FORWARD[head_dims]
    assert tiling(mask="q >= kv") == FORWARD[head_dims]
    # where a mod has no room there
    wide = head_dims[1] > 128  # a row with few keys anyway
    assert wide or tiling(LARGE) != UNMASKED[head_dims]


@pytest.mark.parametrize("head_dim", range(16, 257, 16))
def test_the_tiling_that_makes_room_for_a_mod_fits_shared_memory(head_dim: int) -> None:
    def by_parity(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return PARITY[q] == PARITY[kv]

    def reading(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + BIAS[h, kv]

    for head_dims in (dims for dims in EVERY if dims[0] == head_dim):
        for mod, mask in ((None, by_parity), (reading, "q >= kv"), (LARGE, "q >= kv")):
            tiling = tiling_of(head_dims, mod, mask)
            storage = plan_storage(tiling.rows, tiling.keys, head_dims, tiling.stages)
            assert storage.bytes <= SHARED_MEMORY


@pytest.mark.parametrize("stages", [1, 3])
def test_a_choice_of_stages_alone_leaves_mods_their_registers(stages: int) -> None:
    for mod, mask in ((None, None), (LARGE, "q >= kv"), (None, "q >= kv")):
        found = tiling_of((64, 64), mod, mask, Options(stages=stages))
        assert found == replace(tiling_of((64, 64), mod, mask), stages=stages)
