"""Block masks as objects: public reports on other systems, right values."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4 import BlockMask, create_block_mask
from flexfa4.errors import ArgumentError, BlockMaskMismatchError
from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL
from flexfa4.testing import Case, Inputs, Mods, Sizes, Trial, attend, excess
from flexfa4.variants import SlidingWindow, causal


def with_block_size(block_size: Any) -> Any:
    """Return attention through a block mask with blocks of this size."""

    def run(inputs: Inputs, mods: Mods) -> tuple[torch.Tensor, torch.Tensor]:
        q_len, kv_len = inputs.q.shape[2], inputs.k.shape[2]
        block_mask = create_block_mask(mods.mask, q_len=q_len, kv_len=kv_len, block_size=block_size)
        return attend(inputs, Mods(mods.score_mod, block_mask))

    return run


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


# ---- lengths -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("q_len", "kv_len"), [(16, 16), (256, 1024), (1, 33), (100, 300)])
@pytest.mark.parametrize("block_size", [16, 256])
def test_a_mask_made_again_for_part_of_the_queries_has_the_lengths_of_that_part(
    q_len: int, kv_len: int, block_size: int
) -> None:
    """pytorch/pytorch#143260, pytorch/pytorch#175533: the old length, or the padded one."""
    whole = create_block_mask(causal, q_len=1024, kv_len=1024, block_size=block_size)
    part = create_block_mask(whole.mask, q_len=q_len, kv_len=kv_len, block_size=block_size)
    assert part.shape == (1, 1, q_len, kv_len) == part.to_dense().shape
    assert torch.equal(part.to_dense(), whole.to_dense()[:, :, :q_len, :kv_len])


@pytest.mark.parametrize(
    ("made", "used"),
    [((1500, 1500), (500, 1500)), ((64, 64), (1, 64)), ((64, 64), (64, 65)), ((128, 256), (2, 2))],
)
def test_a_mask_for_other_lengths_is_refused_with_both_and_the_way_to_decode(
    made: tuple[int, int], used: tuple[int, int]
) -> None:
    """meta-pytorch/attention-gym#122, meta-pytorch/attention-gym#34,
    meta-pytorch/attention-gym#60, Robbyant/lingbot-va#87: a longer mask for fewer queries."""
    block_mask = create_block_mask(causal, q_len=made[0], kv_len=made[1])
    q, k = random(1, 1, used[0], 8), random(1, 1, used[1], 8)
    with pytest.raises(BlockMaskMismatchError) as caught:
        flexfa4.attention(q, k, k, block_mask=block_mask)
    message = str(caught.value)
    assert f"made for q_len={made[0]}, kv_len={made[1]}" in message
    assert f"query has length {used[0]} and key {used[1]}" in message
    assert f"create_block_mask(mask, q_len={used[0]}, kv_len={used[1]})" in message
    is_part = used[0] < made[0] and used[1] == made[1]
    assert ("let the mask add it to q_idx" in message) is not is_part
    if is_part:
        assert "for these of the queries, block_mask[:, :, first:last]" in message
        part = block_mask[:, :, made[0] - used[0] :]
        assert flexfa4.attention(q, k, k, block_mask=part).isfinite().all()


def test_an_unused_mask_of_another_length_does_not_disturb_the_next_one() -> None:
    """meta-pytorch/attention-gym#96: length 712 for the mask alone, then 1478 in both passes."""
    ids = torch.arange(1478) // 100

    def documents(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)

    for length in (712, 1478, 300, 1478):
        create_block_mask(documents, q_len=712, kv_len=712)
        trial = Trial(Case.of(mask=documents), Sizes(1, 1, 1, length, length, 8, 8))
        assert not excess(trial, with_block_size(128))


# ---- blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [16, 128, 4096, (16, 512)])
@pytest.mark.parametrize("length", [1, 100, 129, 1000])
def test_the_density_is_a_share_of_the_blocks_whatever_the_padding(
    length: int, block_size: Any
) -> None:
    """meta-pytorch/attention-gym#93, meta-pytorch/attention-gym#68, pytorch/pytorch#188868:
    a sparsity of -63.84 for 100 positions in one block of 128."""
    full = create_block_mask("q >= 0", q_len=length, kv_len=length, block_size=block_size)
    none = create_block_mask("q < 0", q_len=length, kv_len=length, block_size=block_size)
    half = create_block_mask(causal, q_len=length, kv_len=length, block_size=block_size)
    assert (none.density, full.density) == (0.0, 1.0)
    assert 0.0 < half.density <= 1.0
    assert "100.0% of the blocks not empty" in repr(full)


@pytest.mark.parametrize("block_size", [(256, 128), (128, 256)])
def test_a_causal_mask_with_oblong_blocks_has_the_right_number_of_them(
    block_size: tuple[int, int],
) -> None:
    """create_causal_block_mask_fast of attention-gym: 10 and 26 blocks, right is 20 for both."""
    made = create_block_mask(causal, q_len=1024, kv_len=1024, block_size=block_size)
    kinds = made.block_kinds()
    assert int((kinds != EMPTY).sum()) == 20
    assert int((kinds == PARTIAL).sum()) == 8 and int((kinds == FULL).sum()) == 12


@pytest.mark.parametrize("block", [16, 50, 256])
def test_sparsity_that_lies_in_a_table_of_blocks_alone_is_respected(block: int) -> None:
    """pytorch/pytorch#188322, pytorch/pytorch#188484: 4 x 4 blocks, two for each row, and no mask
    function: the lists of blocks were ignored."""
    kept = torch.zeros(2, 4, 4, dtype=torch.bool)
    for head, row in ((h, r) for h in range(2) for r in range(4)):
        kept[head, row, [row, (row + head + 1) % 4]] = True

    def in_kept_blocks(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kept[h, q_idx // block, kv_idx // block]

    s = Sizes(1, 2, 2, 4 * block, 4 * block, 16, 16)
    assert not excess(Trial(Case.of(mask=in_kept_blocks), s))
    made = create_block_mask(in_kept_blocks, heads=2, q_len=s.q_len, kv_len=s.kv_len)
    assert torch.equal(made.to_dense()[0, :, ::block, ::block], kept)


@pytest.mark.parametrize("block_size", [16, 48, 80, (16, 112), (256, 64), 1024])
@pytest.mark.parametrize(("q_len", "kv_len"), [(10, 10), (100, 70), (129, 257)])
def test_blocks_of_any_size_serve_any_lengths(q_len: int, kv_len: int, block_size: Any) -> None:
    """pytorch/pytorch#133562, meta-pytorch/attention-gym#71, meta-pytorch/attention-gym#40:
    blocks other than 128, of two sizes, or that do not divide the lengths."""
    s = Sizes(1, 2, 1, q_len, kv_len, 8, 8)
    for mask in (causal, SlidingWindow(9) | (lambda b, h, q_idx, kv_idx: kv_idx % 5 == 0)):
        assert not excess(Trial(Case.of(mask=mask), s), with_block_size(block_size))


@pytest.mark.parametrize("block_size", [8, 10, (10, 10), (128, 24), 0, -16, 16.0])
def test_a_block_size_that_is_no_multiple_of_16_is_refused_when_the_mask_is_made(
    block_size: Any,
) -> None:
    """meta-pytorch/attention-gym#40 (10 x 10), vllm-project/vllm#39340 (8): deep inside a
    kernel."""
    with pytest.raises(ArgumentError, match=r"(?s)block_size is .*a multiple of 16"):
        create_block_mask(causal, q_len=10, kv_len=10, block_size=block_size)


@pytest.mark.parametrize("block_size", [16, 128])
def test_to_dense_is_the_token_mask_and_block_kinds_the_table_of_blocks(block_size: int) -> None:
    """kuleshov-group/bd3lms#23: the table of blocks, taken for the mask of the tokens."""
    mask = "q >= kv and q - kv < 3"
    made = create_block_mask(mask, q_len=40, kv_len=50, block_size=block_size)
    distance = torch.arange(40)[:, None] - torch.arange(50)
    assert torch.equal(made.to_dense()[0, 0], (distance >= 0) & (distance < 3))
    assert made.block_kinds().shape[2:] == (-(-40 // block_size), -(-50 // block_size))


# ---- other processes -----------------------------------------------------------------------------


class Masks(torch.utils.data.Dataset[BlockMask]):
    """A data set that holds a block mask of a lambda and makes another for each item."""

    def __init__(self) -> None:
        width = 7
        self.held = create_block_mask(lambda b, h, q, kv: q - kv < width, q_len=40, kv_len=40)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> BlockMask:
        ids = torch.arange(40) // (5 + index)
        both = flexfa4.mask("ids[q] == ids[kv]", ids=ids) & self.held.mask
        return create_block_mask(both, q_len=40, kv_len=40)


def only(items: list[BlockMask]) -> BlockMask:
    (item,) = items
    return item


def test_block_masks_travel_to_and_from_the_workers_of_a_data_loader() -> None:
    """A BlockMask of a closure that cannot be pickled."""
    data = Masks()
    loader = torch.utils.data.DataLoader(
        data, collate_fn=only, num_workers=1, multiprocessing_context="spawn"
    )
    q = random(1, 1, 40, 8)
    for index, made in enumerate(loader):
        right = data[index]
        assert torch.equal(made.to_dense(), right.to_dense())
        found = flexfa4.attention(q, q, q, block_mask=made)
        assert torch.equal(found, flexfa4.attention(q, q, q, block_mask=right))


def test_a_block_mask_of_any_function_can_be_pickled() -> None:
    """A BlockMask of a closure that cannot be pickled: lambdas, closures and methods."""

    class Model:
        window = 5

        def mask(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return q_idx - kv_idx < self.window

    def closure(limit: int) -> Any:
        return lambda b, h, q_idx, kv_idx: kv_idx < limit

    for mask in (Model().mask, closure(9), lambda b, h, q_idx, kv_idx: q_idx >= kv_idx):
        made = create_block_mask(mask, q_len=20, kv_len=30)
        assert torch.equal(pickle.loads(pickle.dumps(made)).to_dense(), made.to_dense())
