"""The table of work items that a kernel makes from cumulative lengths, in the emulator."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

from flexfa4.emulator.options import SCHEDULES
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.captures import capture_plan
from flexfa4.kernels.varlen import table
from flexfa4.kernels.varlen.call import Ends, TableCall, numbers_of
from flexfa4.kernels.varlen.plan import TablePlan, kernel_for
from flexfa4.kernels.varlen.walk import walk_of
from flexfa4.primitives.arithmetic import PLAIN
from flexfa4.primitives.fast_division import Divisor
from flexfa4.primitives.scheduler import Work
from flexfa4.primitives.tile_walk import Closed, Lengths, RowLimits, TileShape
from tests.emulated_executor import EmulatedExecutor
from tests.forward_trials import poisoned_memory

SHAPE = TileShape(32, 16)
HEADS, SECTION = 6, 4
Entry = tuple[
    int, ...
]  # tile, sequence, and where its queries and keys begin and how many they are


@dataclass(frozen=True)
class Made:
    """A table as it was made.

    Attributes:
        header: its numbers.
        entries: in order.
    """

    header: list[int]
    entries: list[Entry]


def ends_of(lengths: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def made(
    q: torch.Tensor,
    kv: torch.Tensor,
    mask: Any = None,
    *,
    totals: tuple[int, int] | None = None,
    together: int = 1 << 30,
    **options: Any,
) -> Made:
    """Return the table of cumulative lengths, of which `together` keys are a group."""
    q_total, kv_total = totals or (int(q[-1]), int(kv[-1]))
    heads = Sizes(len(q) - 1, HEADS, HEADS, q_total, kv_total)
    bound: BoundGraph | None = None if mask is None else resolve(mask, "mask")
    walk = walk_of(bound, SHAPE, heads)
    assert walk is not None
    ends = Ends(q, kv)
    plan = TablePlan(walk.plan, wide=ends.wide)
    if walk.interval is not None:
        captures = capture_plan(walk.interval, heads, any_length=True)
        plan = TablePlan(walk.plan, captures, ends.wide)
    sizes = table.Sizes(len(q) - 1, q_total, kv_total, SHAPE.queries)
    numbers = numbers_of(sizes, heads, Work(1, HEADS, 1), SECTION, together)
    call = TableCall(plan, kernel_for(plan, "sm_90a"), sizes, numbers)
    with poisoned_memory():
        found = call.launch(EmulatedExecutor(**options), ends, walk.interval, 0).tolist()
    header, rest = found[: table.HEADER], found[table.HEADER :]
    count = header[table.ITEMS] // HEADS
    starts = range(0, count * table.ENTRY, table.ENTRY)
    return Made(header, [tuple(rest[i : i + 6]) for i in starts])


def expected(q: list[int], kv: list[int]) -> list[Entry]:
    """Return the entries of sequences, as they lie."""
    found: list[Entry] = []
    q_begin = kv_begin = 0
    for number, (q_len, kv_len) in enumerate(zip(q, kv, strict=True)):
        tiles = -(-q_len // SHAPE.queries)
        found += [(t, number, q_begin, q_len, kv_begin, kv_len) for t in range(tiles)]
        q_begin, kv_begin = q_begin + q_len, kv_begin + kv_len
    return found


def visits(entry: Entry, ends: Callable[[int, int, int], tuple[int, int]]) -> int:
    """Return how many tiles of keys an entry visits; `ends` of query, and both lengths."""
    tile, _, _, q_len, _, kv_len = entry
    lengths = Lengths(q_len, kv_len)
    limits = RowLimits(PLAIN, lengths, lambda b, h, query: ends(query, q_len, kv_len))
    found = Closed(SHAPE, limits, "edges").row(0, 0, tile)
    return int(found.partial_count + found.full_count)


MIXED = [5, 0, 70, 130, 1, 9, 64, 0], [7, 3, 70, 0, 200, 3, 64, 0]
MASKS: dict[str, tuple[Any, Callable[[int, int, int], tuple[int, int]]]] = {
    "all keys": (None, lambda q, q_len, kv_len: (0, kv_len)),
    "causal": (lambda b, h, q, kv: q >= kv, lambda q, q_len, kv_len: (0, q + 1)),
    "causal at the end": (
        "q + kv_len - q_len >= kv",
        lambda q, q_len, kv_len: (0, q + kv_len - q_len + 1),
    ),
    "window": ("(q >= kv) & (q - kv < 20)", lambda q, q_len, kv_len: (q - 19, q + 1)),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtypes", [(torch.int32, torch.int64), (torch.int64, torch.int32)])
def test_entries_come_by_falling_numbers_of_tiles_of_keys(
    mask: tuple[Any, Any], dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    q, kv = MIXED
    found = made(ends_of(q, dtypes[0]), ends_of(kv, dtypes[1]), mask[0])
    assert sorted(found.entries) == sorted(expected(q, kv))
    work = [visits(entry, mask[1]) for entry in found.entries]
    assert work == sorted(work, reverse=True) and work[0] > work[-1]


def test_the_header_has_the_items_and_the_divisor_of_a_section() -> None:
    found = made(ends_of(MIXED[0]), ends_of(MIXED[1]))
    count = len(expected(*MIXED))
    divisor = Divisor.of(SECTION * count)
    assert found.header[table.ITEMS] == HEADS * count
    size, multiplier, shift = found.header[table.SECTION : table.SECTION + 3]
    assert (size, multiplier % (1 << 32), shift) == (
        divisor.size,
        divisor.multiplier,
        divisor.shift,
    )


def test_sequences_that_do_not_fit_the_cache_together_are_in_groups_longer_ones_first() -> None:
    kv = [40, 300, 8, 120, 500, 60, 33, 270]
    found = made(ends_of(kv), ends_of(kv), "q >= kv", together=400)
    assert sorted(found.entries) == sorted(expected(kv, kv))
    groups = table.groups_of(sum(kv), 400)
    assert groups == 4
    of, before = {}, 0  # groups by the keys of the sequences that are longer
    for number in sorted(range(len(kv)), key=lambda i: -kv[i]):
        of[number] = min(before // -(-sum(kv) // groups), groups - 1)
        before += kv[number]
    order = [of[entry[1]] for entry in found.entries]
    assert order == sorted(order) and set(order) == {0, 1, 2, 3}
    for group in set(order):
        own = [e for e in found.entries if of[e[1]] == group]
        work = [visits(entry, MASKS["causal"][1]) for entry in own]
        assert work == sorted(work, reverse=True)


def test_more_sequences_than_threads_are_counted_in_turns() -> None:
    lengths = [(7 * i) % 50 for i in range(2500)]
    found = made(ends_of(lengths), ends_of(lengths), together=1 << 13)
    assert sorted(found.entries) == sorted(expected(lengths, lengths))


def test_many_levels_of_work_are_taken_together() -> None:
    kv = [16 * i for i in range(1, 9000, 800)]
    found = made(ends_of([1] * len(kv)), ends_of(kv), together=sum(kv) // 3)
    assert sorted(found.entries) == sorted(expected([1] * len(kv), kv))
    longest = max(kv) // SHAPE.keys + 1
    step = -(-longest // (1 << (table.LEVELS_LOG2 - 2)))
    lengths = [entry[5] // SHAPE.keys // step for entry in found.entries]
    assert all(b <= a + 1 for a, b in itertools.pairwise(lengths))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_gives_the_same_entries(schedule: str) -> None:
    found = made(
        ends_of(MIXED[0]), ends_of(MIXED[1]), "q >= kv", together=100, schedule=schedule, seed=1
    )
    assert sorted(found.entries) == sorted(expected(*MIXED))


NO_LENGTHS = {
    "that end early": ([0, 40, 50], (200, 200)),
    "that end behind the last token": ([0, 150, 900], (200, 200)),
    "that fall": ([0, 150, 20], (200, 200)),
    "below 0": ([-9, -5, 200], (200, 200)),
}


@pytest.mark.parametrize(("ends", "totals"), NO_LENGTHS.values(), ids=NO_LENGTHS)
def test_numbers_that_are_no_lengths_give_entries_within_the_tensors(
    ends: list[int], totals: tuple[int, int]
) -> None:
    numbers = torch.tensor(ends, dtype=torch.int32)
    found = made(numbers, numbers, totals=totals)
    sizes = table.Sizes(2, *totals, SHAPE.queries)
    assert sizes.least <= len(found.entries) <= sizes.most
    for tile, sequence, q_begin, q_len, kv_begin, kv_len in found.entries:
        assert 0 <= sequence < 2 and tile >= 0
        assert 0 <= q_begin <= q_begin + q_len <= totals[0]
        assert 0 <= kv_begin <= kv_begin + kv_len <= totals[1]
        assert kv_len or not sequence  # entries of no sequence see nothing
