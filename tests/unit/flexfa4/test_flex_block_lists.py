"""Lists of blocks and the tables they stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex

from flexfa4.flex.block_lists import ListPair, checked_kinds, marked, ordered
from flexfa4.flex.errors import BlockListError

NAMES = ("kv_num_blocks", "kv_indices")


@given(st.integers(0, 2**20), st.integers(1, 6), st.integers(1, 6))
def test_lists_are_torchs_and_stand_for_the_table_they_were_made_of(
    seed: int, rows: int, columns: int
) -> None:
    table = torch.rand(2, 3, rows, columns, generator=torch.Generator().manual_seed(seed)) < 0.5
    num, indices = ordered(table)
    for ours, theirs in zip((num, indices), torch_flex._dense_to_ordered(table), strict=True):
        assert ours.dtype is theirs.dtype
        assert torch.equal(ours, theirs)
    assert torch.equal(marked(num, indices, columns), table)
    assert torch.equal(ListPair(NAMES, num, indices).table(rows, columns), table)


def test_what_follows_the_counted_blocks_means_nothing() -> None:
    num, indices = torch.tensor([[[1]]]), torch.tensor([[[[2, -1, 99]]]])
    assert ListPair(NAMES, num, indices).table(1, 4)[0, 0].tolist() == [[False, False, True, False]]


@pytest.mark.parametrize(
    ("num", "indices", "says"),
    [
        ([[[3]]], [[[[0, 1]]]], "counts up to 3 blocks in lists of 2"),
        ([[[-1]]], [[[[0, 1]]]], "lists of 2"),
        ([[[1]]], [[[[4, 0]]]], "lists block 4 of 4"),
        ([[[1]]], [[[[-1, 0]]]], "lists block -1 of 4"),
        ([[[2]]], [[[[1, 1]]]], "twice"),
        ([[1]], [[[[1, 1]]]], "(batch, heads, rows of blocks)"),
        ([[[1]]], [[[1, 1]]], "(batch, heads, rows of blocks, blocks in a row)"),
        ([[[1], [1]]], [[[[0]]]], "(1, 2, 1)"),
        ([[[1, 1]]], [[[[0], [0]]]], "2 rows of blocks, the lengths need 1"),
        ([[[1.0]]], [[[[0]]]], "is a tensor of float32"),
    ],
)
def test_lists_that_stand_for_no_table_are_refused(num: object, indices: object, says: str) -> None:
    pair = ListPair(NAMES, torch.tensor(num), torch.tensor(indices))
    with pytest.raises(BlockListError) as caught:
        pair.table(1, 4)
    assert says in str(caught.value)


def test_lists_that_are_no_tensors_are_refused() -> None:
    with pytest.raises(BlockListError, match="kv_indices is a list"):
        ListPair(NAMES, torch.ones(1, 1, 1).int(), [[[[0]]]]).table(1, 1)


def test_partial_and_full_blocks_may_not_meet_or_differ_in_shape() -> None:
    num, indices = torch.ones(1, 1, 1).int(), torch.zeros(1, 1, 1, 2).int()
    partial = ListPair(NAMES, num, indices)
    with pytest.raises(BlockListError, match="in kv_indices and in full_kv_indices"):
        checked_kinds(partial, ListPair(("n", "full_kv_indices"), num, indices), 1, 2)
    for other in (indices.expand(2, -1, -1, -1), indices.to("meta")):
        full = ListPair(("n", "i"), torch.zeros(other.shape[:3], device=other.device).int(), other)
        if other.device.type == "cpu":
            with pytest.raises(BlockListError, match="one number of batches and heads"):
                checked_kinds(partial, full, 1, 2)
    mixed = ListPair(NAMES, num.to("meta"), indices)
    with pytest.raises(BlockListError, match="has device meta and kv_indices device cpu"):
        mixed.table(1, 2)
    assert checked_kinds(partial, ListPair(("n", "i"), num, indices + 1), 1, 2).tolist() == [
        [[[1, 2]]]
    ]
