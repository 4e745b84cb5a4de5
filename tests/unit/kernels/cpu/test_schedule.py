"""Schedules: every non-empty block once, heads joined where their structure is the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flexfa4
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import const, make_graph
from flexfa4.frontend.masks.classes import Classes
from flexfa4.frontend.masks.grid import MaskSize, block_count
from flexfa4.frontend.masks.runs import BlockRuns
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.cpu import schedule
from flexfa4.kernels.cpu.schedule import (
    MAX_TILE_Q,
    SCORES_AT_ONCE,
    VECTORS_AT_ONCE,
    Chunk,
    Problem,
    dense_schedule,
    mask_schedule,
    scratch_size,
)

GRAPH = make_graph("mask", const(True))


def blocks_of(kinds: torch.Tensor, size: MaskSize, block: tuple[int, int]) -> MaskBlocks:
    """Return a mask of given kinds ``(b, h, rows, columns)``; a class for each that differs."""
    tables = list(kinds.flatten(0, 1))
    classes: dict[tuple[int, ...], int] = {}  # the place of the first that is alike
    first = [classes.setdefault(tuple(t.flatten().tolist()), i) for i, t in enumerate(tables)]
    numbers = {place: number for number, place in enumerate(classes.values())}
    of = torch.tensor([numbers[place] for place in first], dtype=torch.int64)
    members = tuple((place // size.h, place % size.h) for place in numbers)
    distinct = kinds.flatten(0, 1)[list(numbers)]
    blocks = MaskBlocks(GRAPH, Values(), size, block, BlockRuns.from_kinds(distinct))
    blocks.__dict__["classes"] = Classes(of.view(size.b, size.h), members)
    return blocks


def coverage(chunks: tuple[Chunk, ...], problem: Problem) -> torch.Tensor:
    """Return how often each (batch, head, query, key) is visited: +1 whole, +100 masked."""
    p = problem.sizes
    seen = torch.zeros(p.batch, p.heads, p.q_len, p.kv_len, dtype=torch.int32)
    for chunk in chunks:
        for tile in chunk.tiles:
            for by in range(0, tile.end - tile.start, tile.rows):
                part = seen[slice(*chunk.b), slice(*chunk.h), tile.start + by : tile.stop + by]
                for run in tile.runs:
                    part[..., run.start + by : run.stop + by] += 1
                    for start, stop in run.partial:
                        part[..., start + by : stop + by] += 99
    return seen


@given(
    st.tuples(st.integers(1, 3), st.sampled_from((1, 2)), st.sampled_from((1, 3))),
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.sampled_from(((16, 16), (32, 16), (16, 48))),
    st.tuples(st.booleans(), st.booleans()),
    st.booleans(),
    st.integers(0, 99),
)
def test_every_visible_score_is_visited_once_and_partial_blocks_are_masked(
    counts: tuple[int, int, int],
    lengths: tuple[int, int],
    block: tuple[int, int],
    differs: tuple[bool, bool],
    join: bool,
    seed: int,
) -> None:
    batch, kv_heads, group = counts
    problem = Problem(Sizes(batch, kv_heads * group, kv_heads, *lengths), join)
    size = MaskSize(batch if differs[0] else 1, kv_heads * group if differs[1] else 1, *lengths)
    shape = (size.b, size.h, block_count(lengths[0], block[0]), block_count(lengths[1], block[1]))
    kinds = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(seed)).to(torch.int8)
    seen = coverage(mask_schedule(problem, blocks_of(kinds, size, block)), problem)
    wide = kinds.repeat_interleave(block[0], 2).repeat_interleave(block[1], 3)
    wide = wide[:, :, : lengths[0], : lengths[1]].expand(seen.shape)
    # a tile may join block rows: a full or an empty block beside another kind is masked then
    assert ((seen == 1) | (seen == 100))[wide > 0].all()
    assert (seen[wide == 1] == 100).all() and (seen[wide == 0] % 100 == 0).all()


def window(before: int, after: int, sizes: Sizes) -> MaskBlocks:
    """Return a mask of the keys up to so many before and after the query, in blocks of 128."""
    mask = flexfa4.create_block_mask(
        lambda b, h, q, kv: (q - kv <= before) & (kv - q <= after),
        q_len=sizes.q_len,
        kv_len=sizes.kv_len,
    )
    return mask.blocks_on(torch.device("cpu"))


@given(
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.sampled_from((1, 2))),
    st.tuples(st.integers(1, 700), st.integers(1, 700)),
    st.tuples(st.integers(-80, 150), st.integers(-80, 150)),
    st.sampled_from((1 << 20, 1 << 16, 1 << 13)),
)
def test_bands_visit_every_visible_score_once(
    counts: tuple[int, int, int], lengths: tuple[int, int], ends: tuple[int, int], at_once: int
) -> None:
    batch, kv_heads, group = counts
    sizes = Sizes(batch, kv_heads * group, kv_heads, *lengths)
    problem, blocks = Problem(sizes, True, at_once, bands=True), window(*ends, sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "_WORTH_BANDS", 0.0)
        chunks = mask_schedule(problem, blocks)
    seen = coverage(chunks, problem)
    visible = blocks.dense().expand(seen.shape)
    assert ((seen == 1) | (seen == 100))[visible].all() and (seen[~visible] % 100 == 0).all()
    assert scratch_size(chunks) <= max(at_once, group * 128 * 128)
    for chunk in chunks:
        assert chunk.tiles
        if any(t.copies > 1 for t in chunk.tiles):
            assert (chunk.b[1] - chunk.b[0], chunk.kv_heads[1] - chunk.kv_heads[0]) == (1, 1)


def test_tiles_of_a_narrow_band_are_low_and_have_copies() -> None:
    sizes = Sizes(1, 8, 8, 8192, 8192)
    blocks = window(255, 0, sizes)
    single = mask_schedule(Problem(sizes, False), blocks)
    bands = mask_schedule(Problem(sizes, False, bands=True), blocks)
    assert all(t.copies == 1 for c in single for t in c.tiles)
    rows = {t.rows for c in bands for t in c.tiles if t.copies > 1}
    assert rows and max(rows) < min(t.rows for c in single for t in c.tiles)
    calls = [sum(len(t.runs) for c in chunks for t in c.tiles) for chunks in (bands, single)]
    assert calls[0] < calls[1]


@pytest.mark.parametrize("heads", [(8, 8), (32, 32), (32, 4)], ids=str)
@pytest.mark.parametrize("ends", [(8192, 0), (8192, 8192)], ids=["triangle", "all"])
def test_a_mask_that_is_no_narrow_band_has_no_copies(
    ends: tuple[int, int], heads: tuple[int, int]
) -> None:
    sizes = Sizes(1, *heads, 8192, 8192)
    blocks = window(*ends, sizes)
    chunks = mask_schedule(Problem(sizes, False, bands=True), blocks)
    assert chunks == mask_schedule(Problem(sizes, False), blocks)


def test_empty_rows_and_columns_are_not_visited() -> None:
    kinds = torch.zeros(1, 1, 8, 8, dtype=torch.int8)
    kinds[0, 0, 3, 5] = 2
    problem = Problem(Sizes(1, 1, 1, 1024, 1024), False)
    chunks = mask_schedule(problem, blocks_of(kinds, MaskSize(1, 1, 1024, 1024), (128, 128)))
    seen = coverage(chunks, problem)
    assert (seen[0, 0, 384:512, 640:768] > 0).all()
    assert int((seen > 0).sum()) <= MAX_TILE_Q * 128


@pytest.mark.parametrize("lengths", [(1, 1), (300, 700), (1025, 513), (5000, 33)])
@pytest.mark.parametrize("heads", [(1, 1), (8, 2), (6, 6)])
def test_a_dense_schedule_covers_everything_within_its_scratch(
    lengths: tuple[int, int], heads: tuple[int, int]
) -> None:
    problem = Problem(Sizes(2, *heads, *lengths), True)
    chunks = dense_schedule(problem)
    assert (coverage(chunks, problem) == 1).all()
    one_head = MAX_TILE_Q * 512 * problem.group
    assert scratch_size(chunks) <= max(SCORES_AT_ONCE, one_head)


HEADS: dict[str, list[tuple[tuple[int, int], tuple[int, int]]]] = {
    "aaaaaaaa": [((0, 8), (0, 4))],
    "aaaabbbb": [((0, 4), (0, 2)), ((4, 8), (2, 4))],
    "abababab": [((h, h + 1), (h // 2, h // 2 + 1)) for h in range(8)],
    "aaabbbba": [((0, 2), (0, 1)), ((2, 3), (1, 2)), ((3, 4), (1, 2)), ((4, 6), (2, 3)),
                 ((6, 7), (3, 4)), ((7, 8), (3, 4))],
    "aabbaaaa": [((0, 2), (0, 1)), ((2, 4), (1, 2)), ((4, 8), (2, 4))],
}  # fmt: skip


@pytest.mark.parametrize("classes", HEADS)
def test_neighbouring_heads_of_one_class_are_worked_on_together(classes: str) -> None:
    kinds = torch.tensor([1 + "ab".index(c) for c in classes], dtype=torch.int8).view(1, 8, 1, 1)
    blocks = blocks_of(kinds, MaskSize(1, 8, 64, 64), (64, 64))
    chunks = mask_schedule(Problem(Sizes(2, 8, 4, 64, 64), False), blocks)
    assert [(c.b, c.h, c.kv_heads) for c in chunks] == [
        ((b, b + 1), *span) for b in range(2) for span in HEADS[classes]
    ]


@pytest.mark.parametrize("join", [True, False])
def test_batches_of_one_class_are_joined_where_their_keys_allow_it(join: bool) -> None:
    kinds = torch.tensor([1, 1, 2, 1], dtype=torch.int8).view(4, 1, 1, 1)
    blocks = blocks_of(kinds, MaskSize(4, 1, 64, 64), (64, 64))
    chunks = mask_schedule(Problem(Sizes(4, 2, 1, 64, 64), join), blocks)
    joined, each = [(0, 2), (2, 3), (3, 4)], [(b, b + 1) for b in range(4)]
    assert [c.b for c in chunks] == (joined if join else each)
    partial = [chunk.tiles[0].runs[0].partial for chunk in chunks]
    assert [bool(p) for p in partial] == [c.b[0] != 2 for c in chunks]


def test_batches_are_not_joined_where_their_heads_are_of_several_classes() -> None:
    kinds = torch.tensor([1, 2], dtype=torch.int8).view(1, 2, 1, 1)
    blocks = blocks_of(kinds, MaskSize(1, 2, 64, 64), (64, 64))
    chunks = mask_schedule(Problem(Sizes(2, 2, 2, 64, 64), True), blocks)
    assert [c.b for c in chunks] == [(0, 1), (0, 1), (1, 2), (1, 2)]


def test_heads_of_one_class_make_their_tiles_once() -> None:
    kinds = torch.tensor([1, 2, 1], dtype=torch.int8).view(1, 3, 1, 1)
    blocks = blocks_of(kinds, MaskSize(1, 3, 64, 64), (64, 64))
    a, b, again = mask_schedule(Problem(Sizes(1, 3, 3, 64, 64), False), blocks)
    assert a.tiles is again.tiles and a.tiles != b.tiles


def test_no_more_heads_of_a_class_are_joined_than_fit_the_scores_at_once() -> None:
    kinds = torch.full((1, 8, 1, 1), 2, dtype=torch.int8)
    blocks = blocks_of(kinds, MaskSize(1, 8, 64, 64), (64, 64))
    chunks = mask_schedule(Problem(Sizes(1, 8, 4, 64, 64), True, 4 * 64 * 64), blocks)
    assert [c.h for c in chunks] == [(0, 4), (4, 8)]


def test_batches_are_joined_only_where_their_keys_lie_one_behind_the_other() -> None:
    for join, ranges in ((True, [(0, 3)]), (False, [(0, 1), (1, 2), (2, 3)])):
        assert [c.b for c in dense_schedule(Problem(Sizes(3, 2, 2, 16, 16), join))] == ranges


def test_a_schedule_is_made_once_for_a_mask_and_sizes() -> None:
    blocks = blocks_of(torch.ones(1, 1, 1, 1, dtype=torch.int8), MaskSize(1, 1, 9, 9), (16, 16))
    problem = Problem(Sizes(1, 2, 1, 9, 9), False)
    assert mask_schedule(problem, blocks) is mask_schedule(problem, blocks)
    other = Problem(Sizes(1, 4, 1, 9, 9), False)
    assert mask_schedule(other, blocks) is not mask_schedule(problem, blocks)


@pytest.mark.parametrize("sizes", [(0, 9, 9), (2, 0, 9), (2, 9, 0)])
def test_no_work_makes_no_chunks(sizes: tuple[int, int, int]) -> None:
    batch, q_len, kv_len = sizes
    problem = Problem(Sizes(batch, 2, 2, q_len, kv_len), False)
    kinds = torch.zeros(batch, 2, block_count(q_len, 16), block_count(kv_len, 16), dtype=torch.int8)
    assert dense_schedule(problem) == ()
    size = MaskSize(batch, 2, q_len, kv_len)
    assert mask_schedule(problem, blocks_of(kinds, size, (16, 16))) == ()


@pytest.mark.parametrize("group", [1, 4])
def test_fewer_scores_at_once_mean_smaller_rectangles(group: int) -> None:
    sizes = []
    for at_once in (1 << 20, 1 << 17, 1 << 14, 1 << 12):
        problem = Problem(Sizes(1, 8, 8 // group, 2048, 2048), True, at_once)
        sizes.append(scratch_size(dense_schedule(problem)))
        assert sizes[-1] <= at_once
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4


def test_vectors_of_each_score_or_pair_make_rectangles_smaller() -> None:
    problem = Problem(Sizes(1, 8, 4, 2048, 2048), True)
    assert problem.for_vectors(0, 0) == problem
    chunks = dense_schedule(problem.for_vectors(0, 32))
    assert scratch_size(chunks) * 32 <= VECTORS_AT_ONCE
    chunks = dense_schedule(problem.for_vectors(32, 0))
    assert max(c.largest for c in chunks) * 32 <= VECTORS_AT_ONCE
    assert chunks[0].h == (0, 8)  # all heads share the vectors of a pair
    assert problem.for_vectors(1 << 30, 1 << 30).scores_at_once == 1
