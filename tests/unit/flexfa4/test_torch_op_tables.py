"""Tables of blocks: what a graph holds of a mask is all that there is to know."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4 import create_block_mask
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.torch_op.tables import MIN_TABLE, table_of, with_table
from tests.brute_force import equal_runs

TABLE = torch.rand(3, 90, 90, generator=torch.Generator().manual_seed(0)) < 0.01
TABLE[2] = TABLE[0]


def blocks(mask: Any, q_len: int, kv_len: int) -> MaskBlocks:
    made = create_block_mask(mask, heads=3, q_len=q_len, kv_len=kv_len, block_size=(16, 32))
    return made.blocks_on(made.device)


@pytest.mark.parametrize("lengths", [(90, 90), (16, 90), (90, 31), (5, 5), (0, 90), (0, 0)])
@pytest.mark.parametrize("mask", ["q >= kv", lambda b, h, q, kv: TABLE[h, q, kv]])
def test_what_a_table_says_is_what_was_found(mask: Any, lengths: tuple[int, int]) -> None:
    found = blocks(mask, *lengths)
    table, kinds = table_of(found), found.kinds()
    rows, columns = kinds.shape[2:]
    assert table.shape == (*kinds.shape[:2], max(rows, MIN_TABLE), max(columns, MIN_TABLE))
    assert torch.equal(table[:, :, :rows, :columns], kinds)
    assert table.sum() == kinds.sum()  # the rest is empty
    again = with_table(MaskBlocks(found.graph, found.values, found.size, (16, 32)), table)
    assert again.has_runs is not again.is_closed
    assert equal_runs(again.runs, found.runs)
