"""The performance model: what follows from the plan, and from which tiles a launch visits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.architectures import architecture
from flexfa4.kernels.forward.call import PlannedCall
from flexfa4.kernels.forward.function import planned
from flexfa4.kernels.forward.model import Visited, items_of
from flexfa4.kernels.request import Choices, Inputs, Request, Tile
from flexfa4.kernels.sm90 import model
from flexfa4.kernels.sm90.forward.plan import ForwardPlan, Tiling
from flexfa4.kernels.sm90.model import MULTIPROCESSORS, seconds, tile_time
from flexfa4.primitives.exponentials import EmulatedFraction

CPU = torch.device("cpu")


def drawn(batch: int, heads: int, kv_heads: int, length: int, dim: int = 128) -> Inputs:
    """Return tensors without memory."""
    one = torch.empty(1, dtype=torch.bfloat16)
    q, k, v = (one.expand(batch, h, length, dim) for h in (heads, kv_heads, kv_heads))
    return Inputs(q, k, v, None)


def call_of(
    inputs: Inputs, score_mod: Any = None, mask: Any = None
) -> tuple[PlannedCall, MaskBlocks | None]:
    score = None if score_mod is None else resolve(score_mod, "score")
    blocks = None
    if mask is not None:
        b, h, n, _ = inputs.q.shape
        made = flexfa4.create_block_mask(mask, batch=b, heads=h, q_len=n, kv_len=n)
        blocks = made.blocks_on(CPU)
    call = planned(
        architecture("sm90"),
        Request(score, blocks, 0.1, frozenset(), False, Choices(tile=Tile(128, 128))),
        inputs,
        False,
        "sm_90a",
    )
    assert isinstance(call, PlannedCall)
    return call, blocks


def plan_of(score_mod: Any = None, mask: Any = None, dim: int = 128) -> ForwardPlan:
    plan = call_of(drawn(1, 1, 1, 1024, dim), score_mod, mask)[0].plan
    assert isinstance(plan, ForwardPlan)
    return plan


def test_a_tile_of_128_by_128_asks_for_what_the_notes_say() -> None:
    cycles = tile_time(plan_of(), masked=False).cycles
    assert cycles["tensor"] == 2048 and cycles["mufu"] == 1024 and cycles["shared"] == 1280
    assert cycles["fma"] == 256 and cycles["alu"] == 384 and cycles["load"] == 0


def test_what_a_mod_computes_costs_time_and_names_what_bounds_it() -> None:
    plain, capped = plan_of(), plan_of("30 * tanh(score / 30)")
    heavy = plan_of("score + exp(score) + exp(score * 2) + exp(score * 3)")
    times = [tile_time(plan, masked=False) for plan in (plain, capped, heavy)]
    assert times[0].total < times[1].total < times[2].total
    assert times[0].bound == "tensor cores" and times[2].bound == "special functions"


def test_emulated_exponentials_ask_for_additions_and_products_instead() -> None:
    plain = plan_of()
    plan = replace(plain, tiling=replace(plain.tiling, emulated=EmulatedFraction(1, 4)))
    before, after = (tile_time(p, masked=False).cycles for p in (plain, plan))
    assert after["mufu"] == before["mufu"] * 3 / 4
    assert after["fma"] == before["fma"] + 6 * 128 * 128 / 4 / 128
    assert after["alu"] == before["alu"] + 2 * 128 * 128 / 4 / 64


def test_a_read_that_waits_for_another_waits_twice_as_long() -> None:
    lut, table = torch.randint(0, 9, (1024,)), torch.rand(1024)
    one = plan_of(lambda s, b, h, q, kv: s + table[kv])
    two = plan_of(lambda s, b, h, q, kv: s + table[lut[kv]])
    waits = [tile_time(plan, masked=False).waits for plan in (plan_of(), one, two)]
    assert waits == [0, model.FITTED.load, 2 * model.FITTED.load]


def test_masking_costs_time_by_limits_and_more_as_a_function_of_each_score() -> None:
    limited, evaluated = plan_of(mask="q >= kv"), plan_of(mask="(q - kv) % 3 == 0")
    times = [tile_time(plan, masked=True).total for plan in (limited, evaluated)]
    assert tile_time(limited, masked=False).total < times[0] < times[1]


def test_one_warpgroup_has_nobody_to_hide_its_softmax_behind() -> None:
    alone = replace(plan_of(), tiling=Tiling(1, 128))
    time = tile_time(alone, masked=False)
    assert time.alone > time.cycles["tensor"]
    per_row = time.total / 64
    assert per_row > 1.1 * tile_time(plan_of(), masked=False).total / 128


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2)])
def test_items_are_those_of_the_walk_with_most_tiles_first(heads: int, kv_heads: int) -> None:
    inputs = drawn(2, heads, kv_heads, 1000)
    call, blocks = call_of(inputs, mask=lambda b, h, q, kv: q >= kv)
    items = items_of(call, blocks, inputs.sizes)
    visits = call.walk.visits
    assert visits is not None
    pairs = 2 * kv_heads
    assert len(items) == pairs * visits.shape[1]
    assert sum(map(sum, items)) == pairs * int(visits.sum())
    assert [sum(item) for item in items] == sorted(map(sum, items), reverse=True)
    assert items[0] == Visited(1, 7) if kv_heads == heads else True


def test_masks_that_differ_between_batches_and_heads_are_counted_for_each() -> None:
    inputs = drawn(2, 2, 2, 512)
    width = torch.tensor([[100, 200], [300, 10_000]])
    call, blocks = call_of(inputs, mask=lambda b, h, q, kv: q - kv < width[b, h])
    items = items_of(call, blocks, inputs.sizes)
    visits, classes = call.walk.visits, blocks.classes.of if blocks else None
    assert visits is not None and classes is not None
    assert sum(map(sum, items)) == int(visits[classes].sum())


def test_a_length_that_cuts_the_last_tile_makes_it_partial() -> None:
    inputs = drawn(1, 1, 1, 300)
    call, blocks = call_of(inputs)
    assert items_of(call, blocks, inputs.sizes) == [Visited(1, 2)] * 3


def test_a_launch_takes_as_long_as_the_busiest_multiprocessor() -> None:
    plan = plan_of()
    wave = [Visited(0, 64)] * MULTIPROCESSORS
    one, two = seconds(plan, wave), seconds(plan, [*wave, wave[0]])
    assert two == pytest.approx(2 * one)
    cycles = 64 * tile_time(plan, masked=False).total + model.FITTED.item
    assert one == pytest.approx(cycles / model.FITTED.gigahertz / 1e9)


def test_reports_say_what_bounds_a_tile_and_how_fast_it_is() -> None:
    _, text = model.describe_time(plan_of())
    for words in ("bound: tensor cores", "special functions 1024", "4.5 instructions", "TFLOPS"):
        assert words in text
    table = torch.rand(1024)
    _, text = model.describe_time(plan_of(lambda s, b, h, q, kv: s + table[kv]))
    assert "waiting for loads" in text
