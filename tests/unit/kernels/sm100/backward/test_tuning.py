"""Which head dims the Blackwell backward kernel serves, and how much ahead it loads."""

from __future__ import annotations

import pytest
import torch

import flexfa4
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.kernels.blocks.walk import WalkPlan, walk_for
from flexfa4.kernels.emit.gradient import GradientProgram
from flexfa4.kernels.sm100.backward.storage import Tiling
from flexfa4.kernels.sm100.backward.tuning import fitting, tiling_for
from flexfa4.primitives.tile_walk import TileShape

PLAIN = GradientProgram()
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("head_dims", "blocks", "stages"),
    [
        ((64, 64), 2, (2, 2, 2)),
        ((128, 128), 2, (1, 1, 1)),
        ((80, 48), 1, (2, 2, 2)),  # halves of 40 columns are no operands
        ((112, 112), 1, (2, 1, 1)),
        ((192, 128), 2, (1, 1, 1)),  # no block could alone
    ],
    ids=str,
)
def test_as_much_is_loaded_ahead_as_there_is_room(
    head_dims: tuple[int, int], blocks: int, stages: tuple[int, int, int]
) -> None:
    tiling = tiling_for(head_dims, PLAIN)
    assert tiling is not None and tiling.blocks == blocks
    assert (tiling.q_stages, tiling.do_stages, tiling.kv_stages) == stages


def test_single_blocks_serve_masks_whose_tiles_are_listed() -> None:
    tiling = tiling_for((128, 128), PLAIN)
    assert tiling is not None and tiling.blocks == 2
    for source, blocks in (("dense", 2), ("closed", 2), ("listed", 1)):
        walk = WalkPlan(source, TileShape(128, 256), by="columns")  # type: ignore[arg-type]
        assert fitting(tiling, (128, 128), walk).blocks == blocks


def test_turns_are_taken_by_two_blocks_where_a_key_is_seen_by_neighbours() -> None:
    tiling = tiling_for((128, 128), PLAIN)
    assert tiling is not None
    interval = walk_for(causal_blocks(), TileShape(128, 256), CPU, by="columns").plan.interval
    for own, blocks in ((interval, 2), (None, 1)):
        walk = WalkPlan("listed", TileShape(128, 256), own, by="columns", ranked=True)
        assert fitting(tiling, (128, 128), walk).blocks == blocks


def causal_blocks() -> MaskBlocks:
    return flexfa4.create_block_mask("q >= kv", q_len=300, kv_len=300).blocks_on(CPU)


def test_head_dims_that_take_two_blocks_have_them_for_lists_as_well() -> None:
    tiling = tiling_for((192, 128), PLAIN)
    assert tiling is not None
    walk = WalkPlan("listed", TileShape(128, 256), by="columns")
    assert fitting(tiling, (192, 128), walk) == tiling


@pytest.mark.parametrize("head_dims", [(72, 64), (64, 40), (144, 112), (256, 256)], ids=str)
def test_head_dims_that_do_not_fit_have_no_kernel(head_dims: tuple[int, int]) -> None:
    assert tiling_for(head_dims, PLAIN) is None


def test_registers_are_those_of_a_multiprocessor() -> None:
    found = Tiling().registers
    assert 2 * found.compute + found.reduce + found.others <= 512
    assert not any(count % 8 for count in (found.compute, found.reduce, found.others))
