"""Tiles and items as kernels find them, in the emulator: those of the definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.runtime import from_dlpack

from flexfa4.emulator import Device
from flexfa4.emulator.options import SCHEDULES
from flexfa4.frontend.masks.grid import EMPTY
from flexfa4.kernels.blocks.walk import Walk
from flexfa4.kernels.emit.captures import capture_plan, capture_values, captures_signature
from flexfa4.primitives.arithmetic import PLAIN
from flexfa4.primitives.scheduler import Order, Sections, Work
from tests.emulate.tile_walk_kernels import Visitor, Walker
from tests.tile_walks import CASES, COLUMNS, Case

# Of each source and way of looking at rows, and of each kind of table, one or two.
ON_DEVICE = (
    "dense",
    "causal, packed",
    "causal, one query",
    "window by pair, packed",
    "bottom right, empty rows",
    "sink and window",
    "checkered",
    "far",
    "first documents",
    "texts",
    "lengths of batches",
    "levels",
    "empty rows",
)
BY_COLUMNS = ("dense", "causal, tall", "window by head", "prefix", "texts", "levels")
PAIRS = 3  # of batch and head in a section
NUMBERS = {"i32": Int32, "i64": Int64, "pointer": Int64, "f32": Float32}


def pointer(device: Device, tensor: torch.Tensor) -> Any:
    return from_dlpack(device.tensor(tensor)).iterator


def address(device: Device, tensor: torch.Tensor) -> Any:
    """Return a pointer that does not tell what is there, as launches give them."""
    return pointer(device, tensor.view(torch.uint8))


def captured(device: Device, walk: Walk, case: Case) -> tuple[Any, list[Any]]:
    """Return what is known of what the intervals capture, and the values that a kernel is given."""
    if walk.interval is None:
        return None, [Int32(0)]
    assert walk.plan.interval is not None
    plan = capture_plan(walk.interval, case.sizes, walk.plan.interval.index)
    for tensor in walk.interval.tensors:
        device.tensor(tensor)
    parameters = captures_signature(walk.interval.graph, plan)
    values = zip(parameters, capture_values(walk.interval, plan, 0), strict=True)
    return plan, [*(NUMBERS[p.kind](value) for p, value in values), Int32(0)]


def visited(device: Device, case: Case) -> tuple[torch.Tensor, torch.Tensor, Walk]:
    """Return what a kernel wrote down: visits of each tile, and the item of each number."""
    walk, sizes = case.walk(), case.sizes
    batch, heads, q_tiles, kv_tiles = case.kinds().shape
    sections = Sections.of(Work(q_tiles, heads, batch), PAIRS, walk.descending)
    visits = torch.zeros(batch, heads, q_tiles, kv_tiles, dtype=torch.int32)
    items = torch.zeros(sections.items, 3, dtype=torch.int32)
    plan, captures = captured(device, walk, case)
    args = (
        [Int32(number) for number in sections.numbers()],
        [
            address(device, v) if isinstance(v, torch.Tensor) else Int32(v)
            for v in (*walk.values, 0)
        ],
        captures,
        [Int32(n) for n in (sizes.q_len, sizes.kv_len, sizes.heads, sizes.kv_heads, kv_tiles)],
        pointer(device, visits),
        pointer(device, items),
    )
    cute.compile(Visitor(walk.plan, plan), *args)(*args)
    return visits, items, walk


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{by} {name}", marks=[pytest.mark.full] * (name not in sampled))
        for by, cases, sampled in (("rows", CASES, ON_DEVICE), ("columns", COLUMNS, BY_COLUMNS))
        for name, case in cases.items()
    ],
)
def test_a_kernel_visits_what_is_seen_once_each_the_full_tiles_without_mask(case: Case) -> None:
    with Device("sm_90a") as device:
        visits, items, walk = visited(device, case)
    kinds = case.kinds()
    assert torch.equal(visits % 10, kinds.int())
    first = (visits >= 10).sum(3)  # where a kernel begins
    assert torch.equal(first, (kinds != EMPTY).any(3).long())
    if not walk.plan.order_table:
        batch, heads, q_tiles, _ = kinds.shape
        order = Order(PLAIN, Sections.of(Work(q_tiles, heads, batch), PAIRS, walk.descending))
        expected = [order.item(number) for number in range(len(items))]
        assert [tuple(item) for item in items.tolist()] == expected
    else:
        assert len(set(map(tuple, items.tolist()))) == len(items)


@pytest.mark.parametrize("kind", ["one", "fetched"])
def test_all_roles_of_a_block_walk_through_the_same_items(kind: str) -> None:
    items, blocks = 19, 19 if kind == "one" else 4
    lanes = 32
    walker = None
    for schedule in SCHEDULES:
        counter = torch.zeros(1, dtype=torch.int32)
        met = torch.zeros(1 + Walker.CONSUMERS, items, dtype=torch.int32)
        with Device("sm_90a", schedule=schedule, seed=5, sms=4) as device:
            args = (Int32(items), Int32(blocks), pointer(device, counter), pointer(device, met))
            walker = walker or cute.compile(Walker(kind), *args)
            for launch in (1, 2):  # the second finds the counter as the first did
                walker(*args)
                assert bool((met == launch * lanes).all())
                assert counter.tolist() == [0]


def test_more_blocks_than_items_leave_the_counter_at_zero_too() -> None:
    items, walker = 3, None
    for blocks in (1, 3, 9):
        counter = torch.zeros(1, dtype=torch.int32)
        met = torch.zeros(1 + Walker.CONSUMERS, items, dtype=torch.int32)
        with Device("sm_90a") as device:
            args = (Int32(items), Int32(blocks), pointer(device, counter), pointer(device, met))
            walker = walker or cute.compile(Walker("fetched"), *args)
            walker(*args)
        assert counter.tolist() == [0] and bool((met == 32).all())
