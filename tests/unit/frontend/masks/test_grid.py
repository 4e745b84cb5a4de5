"""Index spaces and grids: what analysis knows of them, and which blocks cover what."""

from __future__ import annotations

import pytest
import torch

from flexfa4.frontend.analysis.intervals import Interval
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import I32, Buffer, Scalar, scalar, size, symbol
from flexfa4.frontend.masks.grid import (
    EMPTY,
    FULL,
    PARTIAL,
    BlockGrid,
    MaskSize,
    block_count,
    block_counts,
    blocks_of,
)
from tests.brute_force import kinds_of
from tests.leaves import KV, B, H, Q


def test_inputs_range_over_the_space_and_symbols_are_the_calls() -> None:
    buffer, number = Buffer("t", I32, (None,)), Scalar("w", I32)
    symbols = {"q_len": 300, "kv_len": 200, "num_heads": 8, "num_kv_heads": 2}
    values = Values({buffer: torch.zeros(7)}, {number: 5}, symbols)
    leaf = MaskSize(2, 3, 1, 200).domain(values).leaf  # one query stands for all
    assert [leaf(node) for node in (B, H, Q, KV)] == [
        Interval(0, 1), Interval(0, 2), Interval(0, 0), Interval(0, 199)
    ]  # fmt: skip
    for name, value in symbols.items():
        assert leaf(symbol(name)) == Interval(value, value)
    assert leaf(scalar(number)) == Interval(5, 5)
    assert leaf(size(buffer, 0)) == Interval(7, 7)


@pytest.mark.parametrize("block", [1, 48, 64])
def test_blocks_cover_lengths_with_the_last_one_ragged(block: int) -> None:
    lengths = torch.arange(200)
    expected = [sum(1 for _ in range(0, n, block)) for n in range(200)]
    assert [block_count(n, block) for n in range(200)] == expected
    assert block_counts(lengths, block).tolist() == expected
    assert blocks_of(lengths, block).tolist() == [n // block for n in range(200)]


def test_a_grid_has_rows_of_queries_and_columns_of_keys() -> None:
    grid = BlockGrid(MaskSize(1, 1, 300, 200), (128, 64))
    assert (grid.rows, grid.columns) == (3, 4)


def test_brute_force_takes_each_block_by_its_real_lanes() -> None:
    dense = torch.tensor([[1, 1, 0, 0, 1], [1, 1, 0, 1, 1], [0, 0, 1, 1, 0]], dtype=torch.bool)
    kinds = [[FULL, PARTIAL, FULL], [EMPTY, FULL, EMPTY]]
    assert kinds_of(dense, (2, 2)).tolist() == kinds
    kinds = [[FULL, PARTIAL, PARTIAL], [EMPTY, PARTIAL, EMPTY]]
    assert kinds_of(dense, (2, 2), ragged_full=False).tolist() == kinds
