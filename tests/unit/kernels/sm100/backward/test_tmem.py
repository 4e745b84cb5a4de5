"""The tensor memory of the Blackwell backward kernel: what lies where, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexfa4.kernels.sm100.backward.tmem import GROUPS, STEPS, Region, plan_tensor_memory
from flexfa4.kernels.sm100.forward.tmem import COLUMNS

DIMS = [(dim, dim_v) for dim in range(16, 144, 16) for dim_v in range(16, 144, 16)]
QUERIES = 128


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("head_dims", DIMS, ids=str)
def test_nothing_is_in_one_place_at_one_time(head_dims: tuple[int, int], blocks: int) -> None:
    memory = plan_tensor_memory(QUERIES, head_dims, blocks)
    assert memory.fits and not memory.conflicts()
    assert memory.columns <= memory.allocated <= COLUMNS
    assert all(region.stop <= memory.columns for region in memory.regions.values())


def test_columns_are_counted_as_the_formats_need_them() -> None:
    memory = plan_tensor_memory(QUERIES, (96, 64))
    assert sum(region.columns for region in memory.scores) == QUERIES  # fp32
    assert sum(region.columns for region in memory.gradients) == QUERIES // 2  # 16 bits
    assert (memory.dq.columns, memory.dk.columns, memory.dv.columns) == (96, 96, 64)
    assert len(memory.probabilities) == GROUPS
    assert plan_tensor_memory(QUERIES, (96, 64), 2).dq.columns == 48  # of half of the queries


def test_dq_has_columns_of_its_own_where_there_is_room() -> None:
    assert plan_tensor_memory(QUERIES, (64, 128)).dq_has_room
    assert not plan_tensor_memory(QUERIES, (128, 128)).dq_has_room


@pytest.mark.parametrize("head_dims", [(192, 128), (256, 256)], ids=str)
def test_what_does_not_fit_says_so(head_dims: tuple[int, int]) -> None:
    assert not plan_tensor_memory(QUERIES, head_dims).fits


# ---- what would be wrong -------------------------------------------------------------------------

MEMORY = plan_tensor_memory(QUERIES, (128, 128))


def test_dq_in_the_place_of_scores_would_be_overwritten() -> None:
    """Those of the next tile are made before dQ is."""
    wrong = replace(MEMORY, dq=replace(MEMORY.dq, first=MEMORY.scores[0].first))
    assert any({"scores 0", "dq"} == set(pair) for pair in wrong.conflicts())


def test_dq_that_is_read_while_the_next_gradients_are_made_needs_its_own_place() -> None:
    later = replace(MEMORY, dq=replace(MEMORY.dq, dies=STEPS.index("dq") + len(STEPS)))
    assert any("dq" in pair and "changes 0" in pair for pair in later.conflicts())


def test_a_warpgroup_must_not_write_over_scores_of_the_other() -> None:
    first, second = MEMORY.probabilities
    wrong = replace(MEMORY, probabilities=(first, replace(second, first=first.stop)))
    assert any({"scores 0", "probabilities 1"} == set(pair) for pair in wrong.conflicts())


def test_a_region_that_outlives_a_tile_is_in_conflict_with_itself() -> None:
    wrong = replace(MEMORY, dq=Region(0, 1, 0, len(STEPS) + 1))
    assert ("dq", "dq") in wrong.conflicts()
