"""The tiling of a call on Blackwell: rows of the table, the user's choice, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.architectures import architecture
from flexfa4.kernels.forward.function import planned
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import ANY_TILE, Choices, Inputs, Request, Tile
from flexfa4.kernels.sm100.forward.plan import ForwardPlan, Tiling
from flexfa4.kernels.sm100.model import GPUS, RATES
from flexfa4.kernels.sm100.search import with_pairs
from flexfa4.kernels.sm100.tuning import (
    choice_for,
    is_tabled,
    refused_head_dims,
    tiling_for,
)


def planned_of(
    score_mod: Any = None,
    dims: tuple[int, int] = (128, 128),
    tile: Tile = ANY_TILE,
    mask: str | None = None,
) -> ForwardPlan | Refusal:
    """Return the plan of a call on a B200, or why there is none."""
    one = torch.empty(1, dtype=torch.bfloat16)
    q, k, v = (one.expand(1, 2, 512, d) for d in (dims[0], *dims))
    score = None if score_mod is None else resolve(score_mod, "score")
    blocks = None
    if mask is not None:
        made = flexfa4.create_block_mask(flexfa4.parse(mask), q_len=512, kv_len=512)
        blocks = made.blocks_on(torch.device("cpu"))
    request = Request(score, blocks, 0.1, frozenset(), False, Choices("sm100", None, tile))
    call = planned(architecture("sm100"), request, Inputs(q, k, v, None), False, "sm_100a")
    assert call is not None
    if isinstance(call, Refusal):
        return call
    assert isinstance(call.plan, ForwardPlan)
    return call.plan


def plan_of(*args: Any, **kwargs: Any) -> ForwardPlan:
    """Return the plan of a call that is served."""
    found = planned_of(*args, **kwargs)
    assert not isinstance(found, Refusal)
    return found


def test_usual_head_dims_get_the_row_of_their_mods_class() -> None:
    plain, capped = plan_of(), plan_of("30 * tanh(score / 30)")
    for plan, name in ((plain, "plain"), (capped, "a function")):
        row = choice_for(plan, "sm_100a")
        assert row.variant == name and is_tabled(row) and plan.tiling == row.tiling
    assert capped.tiling.emulated.value > plain.tiling.emulated.value


def much_computed(work: int) -> Any:
    """Return a score mod of some functions of floats, more than half a dozen instructions each."""

    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        waves = [torch.sin((q - kv) * 0.1 * i) for i in range(1, work + 1)]
        return score + sum(waves[1:], waves[0])

    return score_mod


def test_mods_that_compute_much_get_fewer_keys_for_their_registers() -> None:
    keys = [plan_of(much_computed(n)).tiling.keys for n in (1, 5, 12)]
    assert keys == [96, 64, 32]
    assert plan_of(lambda s, b, h, q, kv: s + (q // 3 + kv // 5 + q * kv % 7)).tiling.keys == 128
    assert plan_of(divided).tiling.keys == 32


def divided(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Return a score and much that is computed with integers."""
    return score + sum((q + kv) // n % (n + kv) for n in (3, 5, 7, 11))
    assert plan_of(much_computed(5), tile=Tile(keys=128)).tiling.keys == 128


def test_mods_that_read_by_what_they_read_leave_the_softmax_fewer_registers() -> None:
    table = torch.arange(512)

    def chained(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return divided(score, b, h, q, kv) + table[table[kv]]

    once, twice = plan_of(divided).tiling, plan_of(chained).tiling
    assert once.keys == twice.keys == 32
    assert twice.registers.softmax < once.registers.softmax


def test_distances_beside_a_mask_of_scores_emulate_no_exponentials() -> None:
    linear = "score + q - kv"
    closed, evaluated = (
        plan_of(linear, (64, 64), mask=mask).tiling.emulated
        for mask in ("q >= kv", "kv % 3 != q % 5")
    )
    assert closed.value > evaluated.value == 0


def test_other_head_dims_are_searched_when_they_are_planned() -> None:
    row = choice_for(plan_of(dims=(80, 48)), "sm_100a")
    assert not is_tabled(row) and row.tiling.keys == 128


def test_what_the_user_chose_of_a_tile_stays_and_the_rest_is_tuned() -> None:
    plan = plan_of("30 * tanh(score / 30)", tile=Tile(keys=64, stages=4))
    assert (plan.tiling.keys, plan.tiling.stages) == (64, 4)
    assert plan.tiling.emulated == plan_of("30 * tanh(score / 30)").tiling.emulated


@pytest.mark.parametrize(
    ("tile", "words"),
    [
        (Tile(rows=128), ("128 queries by 128 keys", "256 or 512 queries")),
        (Tile(rows=512, stages=12), ("12 parts", "2 to 6")),
        (Tile(keys=80), ("80 keys", "32, 64, 96, 128 keys")),
        (Tile(keys=256), ("256 keys", "32, 64, 96, 128 keys")),
        (Tile(stages=40), ("40 parts", "2 to 3")),
        (Tile(stages=1), ("1 parts", "2 to 3")),
    ],
)
def test_tiles_that_there_are_not_say_what_there_is(tile: Tile, words: tuple[str, str]) -> None:
    refused = tiling_for((128, 128), tile)
    assert isinstance(refused, Refusal)
    assert words[0] in refused.found and words[1] in refused.allowed
    assert refused.rewrite == "options=flexfa4.Options(tile=(256, 128))"


def test_a_tile_of_512_queries_is_that_of_two_blocks() -> None:
    plan = plan_of("30 * tanh(score / 30)", tile=Tile(rows=512))
    assert (plan.tiling.blocks, plan.tiling.keys, plan.walk.shape.rows) == (2, 128, 512)
    assert plan.tiling.emulated == plan_of("30 * tanh(score / 30)").tiling.emulated


def test_two_blocks_serve_calls_that_visit_every_tile_of_keys_alone() -> None:
    found = planned_of(tile=Tile(rows=512), mask="q >= kv")
    assert isinstance(found, Refusal)
    assert "512 queries, of two blocks" in found.found and "every query sees" in found.allowed
    assert "tile=(256, 128)" in found.rewrite


def test_two_blocks_need_columns_of_values_that_can_be_halved() -> None:
    refused = tiling_for((64, 48), Tile(rows=512))
    assert isinstance(refused, Refusal) and refused.allowed.startswith("256 queries")


def test_two_blocks_are_taken_where_the_model_finds_them_clearly_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert plan_of().tiling.blocks == 1
    slow = replace(GPUS["sm_100a"], rates=replace(RATES, shared=RATES.shared / 2))
    monkeypatch.setitem(GPUS, "sm_100a", slow)
    with_pairs.cache_clear()
    try:
        assert plan_of(dims=(64, 64)).tiling.blocks == 1
        assert plan_of().tiling.blocks == 2
        assert plan_of(mask="q >= kv").tiling.blocks == 1
    finally:
        with_pairs.cache_clear()


def test_a_tile_that_tensor_memory_has_no_room_for_is_refused() -> None:
    refused = tiling_for((192, 192), Tile(keys=96))
    assert isinstance(refused, Refusal) and "576 columns of tensor memory" in refused.found
    assert isinstance(tiling_for((192, 192), ANY_TILE), Tiling)


@pytest.mark.parametrize(
    ("head_dims", "words"),
    [
        ((256, 256), ("576 columns", "512 columns of tensor memory", 'backend="flex"')),
        ((128, 256), ("576 columns", "512 columns of tensor memory", '"cpu"')),
        ((512, 64), ("bytes", "232448 bytes of shared memory", 'backend="flex"')),
        ((72, 64), ("72", "multiples of 16", "pad(x, (0, 8))")),
    ],
)
def test_head_dims_without_kernels_say_what_serves_them(
    head_dims: tuple[int, int], words: tuple[str, str, str]
) -> None:
    refused = refused_head_dims(head_dims)
    assert refused is not None
    assert words[0] in refused.found and words[1] in refused.allowed and words[2] in refused.rewrite


def test_head_dims_with_kernels_are_not_refused() -> None:
    for head_dims in ((16, 16), (64, 128), (192, 128), (256, 192), (224, 224)):
        assert refused_head_dims(head_dims) is None
