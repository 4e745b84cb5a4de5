"""The choice of how tiles are found: right for every mask, lists only where they are needed."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from flexfa4.flex import create_block_mask as flex_block_mask
from flexfa4.flex.native_mask import native_of
from flexfa4.frontend.masks.grid import EMPTY
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.blocks.walk import ORDER_PARAMETERS, WalkPlan, heads_alike, walk_for
from flexfa4.kernels.cache.keys import canonical_text
from flexfa4.primitives.arithmetic import PLAIN
from flexfa4.primitives.scheduler import Sections, Work
from flexfa4.primitives.tile_walk import TileShape
from tests.random_masks import RandomMask, Space, random_masks
from tests.tile_walks import CASES, COLUMNS, CPU, Case, limits_on_host, visited_on_host

EITHER = {**CASES, **{f"columns of {name}": case for name, case in COLUMNS.items()}}


@pytest.mark.parametrize("name", EITHER)
def test_every_tile_that_is_seen_is_visited_once_and_no_other(name: str) -> None:
    case = EITHER[name]
    assert torch.equal(visited_on_host(case), case.kinds())


@pytest.mark.parametrize("name", CASES)
def test_lists_are_made_only_where_tiles_cannot_be_computed(name: str) -> None:
    plan = CASES[name].walk().plan
    assert (plan.source, plan.has_limits) == (CASES[name].source, CASES[name].one_interval)


@pytest.mark.parametrize("name", COLUMNS)
def test_queries_of_tiles_of_keys_are_listed_only_where_they_cannot_be_computed(name: str) -> None:
    plan = COLUMNS[name].walk().plan
    assert plan.has_limits == COLUMNS[name].one_interval
    assert (plan.source == "listed") == (not plan.has_limits or name == "crossed documents")


@given(random_masks, st.sampled_from(((2, 3, 70, 90), (1, 1, 130, 40))), st.sampled_from((16, 21)))
@settings(deadline=None)
def test_of_random_masks_no_tile_is_missed_and_the_full_ones_are_full(
    mask: RandomMask, lengths: tuple[int, int, int, int], keys: int
) -> None:
    space = Space(*lengths)
    sizes = Sizes(space.batch, space.heads, space.heads, space.q_len, space.kv_len)
    rows = Case(mask.function(space), sizes, TileShape(24, keys), "")
    for case in (rows, replace(rows, by="columns")):
        visited, kinds = visited_on_host(case), case.kinds()
        assert torch.equal(visited == 2, kinds == 2)
        if case.walk().plan.source == "listed":
            assert torch.equal(visited, kinds)
        assert bool((visited[kinds != EMPTY] != EMPTY).all())


@pytest.mark.parametrize("name", [n for n, c in EITHER.items() if c.mask and c.one_interval])
def test_limits_of_rows_are_the_mask(name: str) -> None:
    case = EITHER[name]
    limits = limits_on_host(case.walk(), case.sizes)
    dense = case.dense() if case.by == "rows" else case.dense().transpose(2, 3)
    lines, across = dense.shape[2:]
    for batch in range(case.sizes.batch):
        for head in range(case.sizes.heads):
            ends = [limits.of_existing(batch, head, line) for line in range(0, lines, 7)]
            begin, end = torch.tensor(ends).T.unsqueeze(2)
            seen = (torch.arange(across) >= begin) & (torch.arange(across) < end)
            assert torch.equal(seen, dense[batch, head, ::7])


@pytest.mark.parametrize("name", [n for n, c in EITHER.items() if c.mask])
def test_work_comes_in_an_order_of_decreasing_visits(name: str) -> None:
    case = EITHER[name]
    walk, kinds = case.walk(), case.kinds()
    visits = (kinds != EMPTY).sum(3)
    batch, heads, tiles = visits.shape
    assert walk.visits is not None
    sections = Sections.of(Work(tiles, heads, batch), 1, walk.descending)
    values = [v.flatten().tolist() if isinstance(v, torch.Tensor) else v for v in walk.values]
    order = walk.plan.order_of(values, sections, PLAIN)
    items = [order.item(n) for n in range(sections.items)]
    for pair in range(heads * batch):
        part = items[pair * tiles : (pair + 1) * tiles]
        amounts = [int(visits[i.batch, i.head, i.q_tile]) for i in part]
        # one more where intervals are as long, and cut by tiles in another way
        fewest = accumulate(amounts, min)
        assert all(n <= before + 1 for before, n in zip(fewest, amounts[1:], strict=False))
        assert amounts == sorted(amounts, reverse=True) or not walk.plan.order_table
        assert sorted(i.q_tile for i in part) == list(range(tiles))


def test_a_repeated_call_finds_what_was_made() -> None:
    case = CASES["sink and window"]
    blocks = case.blocks
    walk = walk_for(blocks, case.shape, CPU)
    assert walk_for(blocks, case.shape, CPU) is walk
    assert walk_for(blocks, TileShape(64, 80), CPU) is not walk


def test_plans_are_equal_for_other_lengths_and_captured_numbers() -> None:
    def plan(window: int, length: int) -> WalkPlan:
        def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
            return (q >= kv) & (q - kv < window)

        sizes = Sizes(1, 1, 1, length, length)
        return Case(mask, sizes, TileShape(128, 128), "closed").walk().plan

    assert plan(70, 500) == plan(300, 900)
    assert hash(plan(70, 500)) == hash(plan(300, 900))


def test_plans_are_part_of_the_key_of_a_kernel() -> None:
    texts = {name: canonical_text(case.walk().plan) for name, case in CASES.items()}
    assert texts["causal"] == canonical_text(CASES["causal"].walk().plan)
    different = ("dense", "causal", "window", "prefix", "sink and window", "documents", "texts")
    assert len({texts[name] for name in different}) == len(different)


def test_a_launch_gets_the_addresses_of_the_lists() -> None:
    walk = CASES["checkered"].walk()
    *lists, by_batch, by_head, order = walk.values
    addresses = [t.data_ptr() for t in (*lists, order) if isinstance(t, torch.Tensor)]
    assert len(lists) == 3 and (by_batch, by_head) == (0, 1)
    assert walk.arguments == (*addresses[:3], by_batch, by_head, addresses[3])


def test_heads_of_a_group_are_alike_or_not() -> None:
    by_pair, by_head = (CASES[n].blocks for n in ("window by pair, packed", "window by head"))
    assert heads_alike(by_pair, 2) and not heads_alike(by_pair, 4)
    assert heads_alike(by_head, 1) and not heads_alike(by_head, 2)
    assert heads_alike(CASES["causal"].blocks, 2) and heads_alike(None, 8)


@pytest.mark.parametrize(("block", "tile"), [(128, (64, 80)), (64, (128, 176)), (128, (128, 128))])
def test_lists_of_blocks_are_derived_anew_for_the_tile(block: int, tile: tuple[int, int]) -> None:
    sizes = Sizes(1, 2, 2, 600, 600)
    keep = torch.rand(1, 2, 10, 10, generator=torch.Generator().manual_seed(0)) < 0.4

    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return keep[0, h, q // 64, kv // 64] & (q + 90 >= kv)

    given_ = flex_block_mask(mask, 1, 2, 600, 600, device="cpu", BLOCK_SIZE=block)
    lists = type(given_).from_kv_blocks(
        given_.kv_num_blocks, given_.kv_indices, given_.full_kv_num_blocks,
        given_.full_kv_indices, BLOCK_SIZE=block, mask_mod=mask, seq_lengths=(600, 600),
    )  # fmt: skip
    blocks = native_of(lists, 1, 2).blocks_on(CPU)
    case = Case(mask, sizes, TileShape(*tile), "listed", given_blocks=blocks)
    assert case.walk().plan.source == "listed"
    assert torch.equal(visited_on_host(case), case.kinds())


def test_lists_have_parameters_of_their_own_and_computed_tiles_have_none() -> None:
    named = {name: [p.name for p in CASES[name].walk().plan.parameters] for name in CASES}
    assert named["dense"] == named["causal"] == []
    assert named["documents"] == ["tile_order"]
    assert named["sink and window"] == ["line_begins", "line_tiles", "tile_order"]
    assert named["checkered"] == [
        "line_begins",
        "line_tiles",
        "classes",
        "class_batch_stride",
        "class_head_stride",
        "tile_order",
    ]
    of_walks = {name for names in named.values() for name in names}
    assert of_walks.isdisjoint(p.name for p in ORDER_PARAMETERS)
    assert len(ORDER_PARAMETERS) == len(Sections.of(Work(1, 1, 1), 1).numbers())


def test_lists_say_which_halves_of_a_tile_of_queries_take_part_where_that_is_asked() -> None:
    def alternating(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q // 8 + kv // 8) % 2 == 0

    sizes, shape = Sizes(batch=1, heads=1, kv_heads=1, q_len=40, kv_len=32), TileShape(16, 8)
    walk = walk_for(Case(alternating, sizes, shape, "listed").blocks, shape, CPU, halves=True)
    names = [parameter.name for parameter in walk.plan.parameters]
    assert names[:3] == ["line_begins", "line_tiles", "visit_halves"]
    begins, tiles, halves = (torch.as_tensor(value).tolist() for value in walk.values[:3])
    # of 8 queries, 0 sees tiles 2 and 0, 1 sees 3 and 1; of the last tile there is one half
    assert tiles[: begins[2]] == [3, 2, 1, 0] and halves[: begins[2]] == [2, 1, 2, 1]
    assert tiles[begins[4] : begins[6]] == [2, 0] and halves[begins[4] : begins[6]] == [1, 1]


def test_keys_that_do_not_exist_are_hidden_from_queries() -> None:
    case = COLUMNS["causal, tall"]
    limits, last = limits_on_host(case.walk(), case.sizes), case.sizes.kv_len - 1
    assert limits(0, 0, last + 1) == limits(0, 0, last)
    begin, end = limits.of_existing(0, 0, last + 1)
    assert begin >= end


def test_heads_that_are_worked_on_together_have_the_order_of_the_first() -> None:
    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:  # the later a key, the fewer queries, or more
        return ((h < 2) & (kv <= q)) | ((h >= 2) & (q <= kv))

    case = Case(mask, Sizes(1, 4, 2, 300, 300), TileShape(64, 64), "", by="columns")
    walk = case.walk()
    values = [v.flatten().tolist() if isinstance(v, torch.Tensor) else v for v in walk.values]
    kinds = case.kinds()
    sections = Sections.of(Work(kinds.shape[2], 2, 1), 1, walk.descending)
    order = walk.plan.order_of(values, sections, PLAIN, heads_together=2)
    items = [order.item(number) for number in range(sections.items)]
    for head, part in enumerate((items[:5], items[5:])):
        amounts = [int((kinds[0, 2 * head, item.q_tile] != EMPTY).sum()) for item in part]
        # one more where intervals are as long, and cut by tiles in another way
        fewest = accumulate(amounts, min)
        assert all(n <= before + 1 for before, n in zip(fewest, amounts[1:], strict=False))
        assert amounts == sorted(amounts, reverse=True) or not walk.plan.order_table


def test_a_plan_says_in_words_how_tiles_are_found() -> None:
    words = {name: CASES[name].walk().plan.in_words for name in CASES}
    assert "closed form at the first and the last query" in words["causal"]
    assert "all queries" in words["levels"]
    assert "by position" in words["causal"]
    assert "listed" in words["checkered"] and "from a table" in words["checkered"]
    assert "from a table" in words["whole documents"]
    columns = COLUMNS["window"].walk().plan.in_words
    assert columns.startswith("tiles of queries: ") and "the first and the last key" in columns


def test_a_mask_that_nothing_sees_visits_nothing() -> None:
    sizes = Sizes(1, 1, 1, 200, 200)
    case = Case(lambda b, h, q, kv: (q < kv) & (q > kv), sizes, TileShape(64, 64), "closed")
    assert not visited_on_host(case).any()
    assert case.walk().plan.source == "closed"


def test_rows_that_see_far_apart_keys_are_listed_although_others_between_see_none() -> None:
    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:  # keys 0 to 4, none, keys 990 to 999, none
        return (q % 2 == 0) & ((kv - q % 4 * 495).abs() < 10)

    sizes = Sizes(1, 1, 1, 400, 1000)
    case = Case(mask, sizes, TileShape(64, 64), "listed")
    plan = case.walk().plan
    assert plan.source == "listed" and plan.has_limits
    assert torch.equal(visited_on_host(case), case.kinds())


def test_no_keys_are_no_tiles() -> None:
    sizes = Sizes(1, 1, 1, 200, 0)
    for mask in (CASES["causal"].mask, CASES["sink and window"].mask):
        assert visited_on_host(Case(mask, sizes, TileShape(64, 64), "")).shape[3] == 0


def test_masks_of_captured_numbers_are_walked_without_waiting_for_a_look_at_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look(*_: Any) -> None:
        raise AssertionError("all rows were looked at")

    monkeypatch.setattr("flexfa4.kernels.blocks.walk.monotone_in_tiles", look)
    for name in ("causal", "window", "both ways", "bottom right", "prefix", "lengths of batches"):
        assert CASES[name].walk().plan.source == "closed"
    for name in ("documents", "whole documents"):  # which keys they see is proved to be one run
        assert CASES[name].walk().plan.source == "closed"
        assert COLUMNS[name].walk().plan.source == "closed"


class Counted(TorchDispatchMode):
    """Counts the operations that are started, and those that would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.started = 0
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.started += 1
        if name in ("nonzero", "_unique2", "_local_scalar_dense", "equal", "masked_select"):
            self.waits.append(name)
        return func(*args, **(kwargs or {}))


def operations_of(batch: int, documents: int, length: int) -> Counted:
    """Return what is done to find the tiles of packed documents."""
    generator = torch.Generator().manual_seed(documents)
    ids = torch.randint(0, documents, (batch, length), generator=generator).sort(1).values

    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (ids[b, q] == ids[b, kv])

    case = Case(mask, Sizes(batch, 4, 4, length, length), TileShape(16, 16), "closed")
    with Counted() as counted:
        plan = case.walk().plan
    assert plan.source == "closed" and plan.order_table
    return counted


def test_other_documents_and_more_batches_need_no_other_kernel() -> None:
    def plan(*rows: tuple[int, ...]) -> WalkPlan:
        ids = torch.stack([torch.arange(3).repeat_interleave(torch.tensor(n)) for n in rows])

        def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
            return (q >= kv) & (ids[b, q] == ids[b, kv])

        sizes = Sizes(len(rows), 2, 2, *(2 * ids.shape[1:]))
        return Case(mask, sizes, TileShape(16, 16), "closed").walk().plan

    uneven = plan((100, 20, 30), (20, 100, 30))
    assert uneven == plan((50, 50, 50)) == plan((10, 10, 130), (10, 10, 130), (0, 150, 0))


def test_documents_take_as_many_operations_however_many_and_long_they_are() -> None:
    operations_of(2, 3, 300)  # positions that are kept have been made
    few, many = operations_of(2, 3, 300), operations_of(3, 200, 3000)
    assert few.started == many.started and few.waits == many.waits
