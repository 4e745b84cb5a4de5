"""Lists of blocks are those of torch's own block masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex

import flexfa4
from flexfa4.kernels.flex.blocks import MOST_BLOCKS, lists_of, refused_blocks

CPU = torch.device("cpu")


def blocks_of(mask: Any, lengths: tuple[int, int], **how: Any) -> Any:
    made = flexfa4.create_block_mask(mask, q_len=lengths[0], kv_len=lengths[1], **how)
    return made.blocks_on(CPU)


@pytest.mark.parametrize("lengths", [(512, 512), (300, 700), (70, 50)])
@pytest.mark.parametrize("size", [128, 64])
def test_lists_stand_for_the_blocks_that_torch_finds(lengths: tuple[int, int], size: int) -> None:
    ids = torch.arange(700) // 190

    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (ids[q] == ids[kv]) | (h == 1)

    theirs = torch_flex.create_block_mask(mask, None, 3, *lengths, device="cpu")
    names = [*torch_flex.BlockMask._TENSOR_ATTRS[:8]]
    found = lists_of(blocks_of(mask, lengths, heads=3, block_size=size), CPU, by_columns=True)
    for name, ours in zip(names, found, strict=True):
        assert ours is not None
        exact = getattr(theirs, name)
        if "indices" in name:
            counts = getattr(theirs, name.replace("indices", "num_blocks"))
            counted = torch.arange(exact.shape[-1]) < counts[..., None]
            assert torch.equal(ours[counted], exact[counted]), name
        else:
            assert torch.equal(ours, exact), name
    assert len({id(t) for t in found}) == 8  # torch writes wrong code for a tensor given twice


def test_lists_are_made_once_and_those_by_columns_for_a_backward_pass() -> None:
    blocks = blocks_of("q >= kv", (300, 300))
    rows = lists_of(blocks, CPU, by_columns=False)
    assert rows is lists_of(blocks, CPU, by_columns=False) and rows[4:] == (None,) * 4
    assert lists_of(blocks, CPU, by_columns=True)[4] is not None


def test_more_blocks_than_torch_should_list_are_refused() -> None:
    refused = refused_blocks(blocks_of("q >= kv", (1 << 22, 1 << 22)))
    assert refused is not None and str(MOST_BLOCKS) in refused.allowed
    assert refused_blocks(blocks_of("q >= kv", (1 << 20, 1 << 20))) is None
