"""The tensor memory of the Blackwell backward kernel: what lies where, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexfa4.kernels.sm100.backward.tmem import (
    DQ_BEFORE_CHANGES,
    DQ_LAST,
    GROUPS,
    ONE_BY_ONE,
    Region,
    plan_tensor_memory,
)
from flexfa4.kernels.sm100.forward.tmem import COLUMNS

DIMS = [(dim, dim_v) for dim in range(16, 144, 16) for dim_v in range(16, 144, 16)]
QUERIES = 128


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("head_dims", DIMS, ids=str)
def test_nothing_is_in_one_place_at_one_time(head_dims: tuple[int, int], blocks: int) -> None:
    memory = plan_tensor_memory(QUERIES, head_dims, blocks)
    assert memory.fits and not memory.conflicts()
    assert not memory.hands_over  # each warpgroup writes to where it has read
    assert memory.columns <= memory.allocated <= COLUMNS
    assert all(region.stop <= memory.columns for region in memory.regions.values())


def test_columns_are_counted_as_the_formats_need_them() -> None:
    memory = plan_tensor_memory(QUERIES, (96, 64))
    assert sum(region.columns for region in memory.scores) == QUERIES  # fp32
    assert sum(region.columns for region in memory.gradients) == QUERIES // 2  # 16 bits
    assert (memory.dq.columns, memory.dk.columns, memory.dv.columns) == (96, 96, 64)
    assert len(memory.probabilities) == GROUPS
    assert plan_tensor_memory(QUERIES, (96, 64), 2).dq.columns == 48  # of half of the queries


@pytest.mark.parametrize(
    ("head_dims", "blocks", "steps", "waiting"),
    [
        ((64, 128), 1, DQ_LAST, {"dq"}),  # with columns of its own
        ((96, 96), 2, DQ_LAST, {"dq"}),
        ((128, 128), 2, DQ_LAST, {"next scores", "dq"}),  # in the middle of S
        ((128, 128), 1, DQ_BEFORE_CHANGES, {"next changes"}),  # in the place of dP
        ((192, 128), 2, ONE_BY_ONE, {"next scores"}),
    ],
)
def test_dq_is_made_beside_the_next_gradients_where_there_is_room(
    head_dims: tuple[int, int], blocks: int, steps: tuple[str, ...], waiting: set[str]
) -> None:
    memory = plan_tensor_memory(QUERIES, head_dims, blocks)
    assert memory.steps == steps and set(memory.wait_for_dq) == waiting
    beside = [memory.dq.overlaps(region) for region in (*memory.changes, *memory.gradients)]
    assert memory.dq_is_last == (steps is DQ_LAST) == (not any(beside))


@pytest.mark.parametrize(("head_dims", "blocks"), [((192, 128), 1), ((256, 256), 2)], ids=str)
def test_what_does_not_fit_says_so(head_dims: tuple[int, int], blocks: int) -> None:
    assert not plan_tensor_memory(QUERIES, head_dims, blocks).fits


def test_wide_heads_fit_where_gradients_take_the_place_of_half_of_the_scores() -> None:
    """Beside each other they would take 576 columns."""
    memory = plan_tensor_memory(QUERIES, (192, 128), 2)
    assert memory.fits and memory.columns == memory.allocated == COLUMNS
    assert 2 * QUERIES + memory.dv.columns + memory.dk.columns == COLUMNS + QUERIES // 2
    assert memory.changes[0].overlaps(memory.scores[1]) and memory.hands_over


# ---- what would be wrong -------------------------------------------------------------------------

MEMORY = plan_tensor_memory(QUERIES, (128, 128))


TOGETHER = plan_tensor_memory(QUERIES, (128, 128), 2)
WIDE = plan_tensor_memory(QUERIES, (192, 128), 2)


def test_dq_in_the_place_of_scores_would_be_overwritten() -> None:
    """Those of the next tile are made before dQ is."""
    wrong = replace(MEMORY, dq=replace(MEMORY.dq, first=MEMORY.scores[0].first))
    assert any({"scores 0", "dq"} == set(pair) for pair in wrong.conflicts())


def test_dq_among_scores_must_not_meet_probabilities() -> None:
    wrong = replace(TOGETHER, dq=replace(TOGETHER.dq, first=TOGETHER.dq.first + 1))
    assert ("dq", "probabilities 1") in wrong.conflicts()


def test_dq_among_scores_must_wait_until_they_have_been_read() -> None:
    """Rather than until their probabilities are there."""
    late = tuple(replace(region, dies=0) for region in TOGETHER.scores)
    assert ("dq", "scores 0") in replace(TOGETHER, scores=late).conflicts()


def test_gradients_in_the_place_of_scores_must_wait_until_they_have_been_read() -> None:
    late = tuple(replace(region, dies=0) for region in WIDE.scores)
    assert ("scores 1", "changes 0") in replace(WIDE, scores=late).conflicts()


def test_scores_in_the_place_of_dq_must_wait_until_it_has_been_read() -> None:
    late = replace(WIDE.dq, dies=len(ONE_BY_ONE) - 1)
    assert ("dq", "scores 1") in replace(WIDE, dq=late).conflicts()


def test_dq_that_is_read_while_the_next_gradients_are_made_needs_its_own_place() -> None:
    later = replace(MEMORY, dq=replace(MEMORY.dq, dies=MEMORY.steps.index("dq") + 5))
    assert any("dq" in pair and "changes 0" in pair for pair in later.conflicts())


def test_a_warpgroup_must_not_write_over_scores_of_the_other() -> None:
    first, second = MEMORY.probabilities
    wrong = replace(MEMORY, probabilities=(first, replace(second, first=first.stop)))
    assert any({"scores 0", "probabilities 1"} == set(pair) for pair in wrong.conflicts())


def test_a_region_that_outlives_a_tile_is_in_conflict_with_itself() -> None:
    wrong = replace(MEMORY, dq=Region(0, 1, 0, len(MEMORY.steps) + 1))
    assert ("dq", "dq") in wrong.conflicts()
