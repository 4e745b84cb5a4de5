"""FlexAttention's `BlockMask` over FlexFA4's: what it means, its parts, copies and conversions."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex

import flexfa4
from flexfa4.errors import (
    ArgumentError,
    BlockMaskMismatchError,
    DamagedPickleError,
    FlexFA4Error,
    PickleFormatError,
    StaleBlockMaskError,
)
from flexfa4.flex import BlockMask, create_block_mask, create_mask, flex_attention, noop_mask
from flexfa4.flex.errors import BlockIndexError, BlockListError


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def banded(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx + 3 * b - kv_idx).abs() <= 9 + 5 * h


def qkv(length: int, kv_len: int = 0, batch: int = 2) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(batch, 2, n, 8, generator=g) for n in (length, *2 * [kv_len or length])]


def from_table(kinds: list[list[int]], size: int, mask_mod: Any = None, **more: Any) -> BlockMask:
    """A block mask of a table of 0 (empty), 1 (partial) and 2 (full)."""
    table = torch.tensor(kinds)[None, None]
    partial, full = (torch_flex._dense_to_ordered((table == kind).int()) for kind in (1, 2))
    return BlockMask.from_kv_blocks(*partial, *full, size, mask_mod, **more)


# ---- meaning -------------------------------------------------------------------------------------


def test_full_blocks_are_visible_partial_ones_masked_and_others_not() -> None:
    block_mask = from_table([[1, 0], [2, 1]], 16, causal)
    tokens = block_mask.token_mask()[0, 0]
    triangle = torch.ones(16, 16, dtype=torch.bool).tril()
    assert torch.equal(tokens[:16, :16], triangle)
    assert not tokens[:16, 16:].any()
    assert tokens[16:, :16].all()
    assert torch.equal(tokens[16:, 16:], triangle)


@pytest.mark.parametrize("mask_mod", [None, noop_mask, torch_flex.noop_mask])
def test_lists_are_the_mask_where_the_mask_function_masks_nothing(mask_mod: Any) -> None:
    # each row keeps two blocks of four, and only the lists say so
    table = [[1, 0, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1]]
    block_mask = from_table(table, 32, mask_mod)
    seen = torch.tensor(table).bool().repeat_interleave(32, 0).repeat_interleave(32, 1)
    q, k, v = qkv(128)
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=block_mask), right)
    assert torch.equal(block_mask.token_mask()[0, 0], seen)


@pytest.mark.parametrize("size", [7, 16, (17, 30), (32, 16), 100, 1000])
def test_any_block_size_means_the_same(size: Any) -> None:
    block_mask = create_block_mask(banded, 2, 2, 60, 75, BLOCK_SIZE=size)
    parts: Any = (*block_mask.as_tuple(flatten=False)[:9], block_mask.BLOCK_SIZE, banded)
    again = BlockMask(*parts)
    native = flexfa4.create_block_mask(banded, batch=2, heads=2, q_len=60, kv_len=75)
    for one in (block_mask, again, BlockMask.from_torch(block_mask.to_torch())):
        assert torch.equal(one.token_mask(), native.to_dense())


def test_a_mask_function_that_reads_batch_and_head_may_have_lists_for_all() -> None:
    block_mask = from_table([[1, 1], [1, 1]], 16, banded)
    q, k, v = qkv(32)
    native = flexfa4.create_block_mask(banded, batch=2, heads=2, q_len=32, kv_len=32)
    right = flexfa4.attention(q, k, v, block_mask=native)
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=block_mask), right)


def test_sparsity_is_a_share_of_the_blocks_and_never_negative() -> None:
    assert create_block_mask(causal, 1, 1, 100, 100).sparsity() == 0.0
    assert create_block_mask(causal, 1, 1, 256, 256).sparsity() == 25.0
    assert create_block_mask(causal, 1, 1, 0, 0).sparsity() == 0.0


@pytest.mark.parametrize(
    "sizes", [(None, None, 0, 5), (None, None, 5, 0), (0, 2, 5, 5), (2, 2, 0, 0)]
)
@pytest.mark.parametrize("size", [16, 17])
def test_a_mask_of_nothing_is_one(sizes: Any, size: int) -> None:
    made = create_block_mask(causal, sizes[0], sizes[1], sizes[2], sizes[3], BLOCK_SIZE=size)
    q = torch.randn(2 if sizes[0] is None else sizes[0], 2, sizes[2], 8)
    k = torch.randn(len(q), 2, sizes[3], 8)
    for block_mask in (made, made[:], BlockMask.from_torch(made.to_torch())):
        assert not flex_attention(q, k, k, block_mask=block_mask).any()
        assert "░" not in str(block_mask)
        assert block_mask.token_mask().shape == block_mask.shape


# ---- lists ---------------------------------------------------------------------------------------


def is_listed(block_mask: BlockMask) -> bool:
    return "kv_indices" in vars(block_mask)


def test_lists_are_written_when_one_is_read_and_not_before() -> None:
    made = create_block_mask(banded, 2, 2, 50, 60, BLOCK_SIZE=16)
    q, k, v = qkv(50, 60)
    flex_attention(q, k, v, block_mask=made)
    (
        made.sparsity(),
        str(made),
        repr(made),
        made.token_mask(),
        made.block_kinds(),
        made.shape,
        made._adjust(9, 9),
    )
    copied, part = copy.copy(made), made[:, 0, 1:]
    assert not any(map(is_listed, (made, copied, part, part.to("cpu"))))
    assert made.q_num_blocks is made.to_torch().q_num_blocks
    assert is_listed(made) and not is_listed(copied)
    for name in ("kv_num_blocks", "full_q_indices"):
        assert torch.equal(getattr(copied, name), getattr(made, name))


def test_a_million_tokens_take_no_lists() -> None:
    made = create_block_mask(causal, None, None, 2**20, 2**20)
    part = made[:, :, -1]
    assert part.shape == (1, 1, 128, 2**20)
    assert made.sparsity() == 100 * (1 - 8193 / 2**14) and part.sparsity() == 0.0
    assert made.to_string((2, 2)).split("\n")[1:3] == ["░░  ", "██░░"]
    assert not is_listed(made) and not is_listed(part)


def test_lists_that_were_written_are_read_again_when_they_change() -> None:
    made = create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=16)
    made.q_num_blocks = made.q_indices = made.full_q_num_blocks = made.full_q_indices = None
    assert made.full_kv_num_blocks is not None
    made.full_kv_num_blocks[0, 0, 3] = 0
    seen = torch.ones(64, 64).tril().bool()
    seen[48:, :48] = False
    assert torch.equal(made.token_mask()[0, 0], seen)


def test_what_is_no_attribute_of_an_unlisted_mask_is_none() -> None:
    made = create_block_mask(causal, None, None, 64, 64)
    with pytest.raises(AttributeError, match="has no attribute 'kv_blocks'"):
        made.kv_blocks  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(BlockMask, "kv_indices") and not is_listed(made)


# ---- assignment ----------------------------------------------------------------------------------


def test_an_assigned_mask_function_takes_the_place_of_the_old_one() -> None:
    block_mask = create_block_mask(causal, 1, 1, 32, 32, BLOCK_SIZE=16)
    block_mask.token_mask()
    block_mask.mask_mod = lambda b, h, q_idx, kv_idx: q_idx > kv_idx
    assert torch.equal(block_mask.token_mask()[0, 0], torch.ones(32, 32).tril(-1).bool())


def test_a_row_decodes_at_a_position_inside_it() -> None:
    q, k, v = qkv(64)
    block_mask = create_block_mask(causal, 1, 1, 64, 64, BLOCK_SIZE=16)
    whole = flex_attention(q, k, v, block_mask=block_mask)
    for position in (0, 15, 37):
        row = block_mask[:, :, position // 16]
        row.mask_mod = lambda b, h, q_idx, kv_idx, at=position: causal(b, h, q_idx + at, kv_idx)
        row.seq_lengths = (1, 64)
        out = flex_attention(q[:, :, [position]], k, v, block_mask=row)
        torch.testing.assert_close(out, whole[:, :, [position]])


def test_lists_changed_in_place_are_read_again() -> None:
    block_mask = from_table([[1, 0], [1, 1]], 16)
    block_mask.token_mask()
    block_mask.q_num_blocks = block_mask.q_indices = None
    block_mask.kv_num_blocks[0, 0, 1] = 1
    assert block_mask.token_mask()[0, 0].sum() == 2 * 16 * 16
    block_mask.kv_num_blocks[0, 0, 1] = 3
    with pytest.raises(BlockListError, match="counts up to 3"):
        block_mask.sparsity()


def test_lists_may_follow_new_values_that_the_mask_function_captures() -> None:
    length = torch.tensor(20)
    block_mask = from_table([[1, 1]] * 2, 16, lambda b, h, q_idx, kv_idx: kv_idx < length)
    for n in (20, 5):
        length.fill_(n)
        assert int(block_mask.token_mask()[0, 0, 0].sum()) == n


def test_blocks_found_from_a_mask_may_not_follow_new_values() -> None:
    length = torch.tensor(20)
    block_mask = create_block_mask(lambda b, h, q, kv: kv < length, None, None, 32, 32)
    part = block_mask[:, :, :1]
    length.fill_(5)
    for one in (block_mask, part, block_mask._adjust(7, 9)):
        again = r"create_block_mask\(mask_mod, 1, 1, 32, 32\)"
        with pytest.raises(StaleBlockMaskError, match=again):
            one.token_mask()


# ---- parts ---------------------------------------------------------------------------------------


def test_the_length_of_a_part_is_that_of_its_rows() -> None:
    block_mask = create_block_mask(causal, 1, 1, 1024, 1024, BLOCK_SIZE=256)
    assert block_mask[:, :, :1].shape == (1, 1, 256, 1024)
    ragged = create_block_mask(causal, 1, 1, 1000, 1000, BLOCK_SIZE=256)
    assert ragged[:, :, 1:].shape == (1, 1, 744, 1000)
    assert ragged[:, :, -1].shape == (1, 1, 232, 1000)


@pytest.mark.parametrize(
    "index",
    [
        0,
        (-1, 1),
        (slice(None), slice(1, 2), slice(2, None)),
        (torch.tensor([1, 0]), 0, torch.tensor([2, 0, 1])),
        (slice(None), [1, 1], -1),
        (slice(None), slice(None), slice(0, 0)),
        (torch.tensor([False, True]),),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_a_part_is_masked_as_it_is_in_the_whole(index: Any, listed: bool) -> None:
    block_mask = create_block_mask(banded, 2, 2, 48, 40, BLOCK_SIZE=16)
    if listed:
        block_mask = BlockMask.from_torch(block_mask.to_torch())
    tokens = block_mask.token_mask().unflatten(2, (3, 16))
    picks = index if isinstance(index, tuple) else (index,)
    for axis, pick in enumerate(picks):
        positions = torch.arange(tokens.shape[axis])[pick].reshape(-1)
        tokens = tokens.index_select(axis, positions)
    part = block_mask[index]
    assert torch.equal(part.token_mask(), tokens.flatten(2, 3))
    assert part.shape == tuple(part.token_mask().shape)


def test_a_part_of_a_part_is_masked_as_in_the_whole() -> None:
    block_mask = create_block_mask(banded, 2, 2, 64, 64, BLOCK_SIZE=16)
    part = block_mask[1:, :, 1:][0, 1, [2, 0]]
    rows = [*range(48, 64), *range(16, 32)]
    assert torch.equal(part.token_mask(), block_mask.token_mask()[1:, 1:, rows])


@pytest.mark.parametrize("index", [2, (0, 0, 0, 0), (0, 0, 3), None, "row", (0, 0, [2, 0])])
def test_an_index_that_picks_nothing_is_refused(index: Any) -> None:
    block_mask = create_block_mask(banded, 2, 2, 40, 40, BLOCK_SIZE=16)
    with pytest.raises(BlockIndexError):
        block_mask[index]


@given(st.integers(1, 60), st.integers(1, 75), st.sampled_from([16, (16, 32), 23]))
def test_adjusting_crops_masks_of_any_form(q_len: int, kv_len: int, size: Any) -> None:
    block_mask = create_block_mask(banded, 2, 2, 60, 75, BLOCK_SIZE=size)
    adjusted = block_mask._adjust(q_len, kv_len)
    assert adjusted.seq_lengths == (q_len, kv_len)
    assert torch.equal(adjusted.token_mask(), block_mask.token_mask()[:, :, :q_len, :kv_len])


def test_adjusting_to_more_blocks_is_refused() -> None:
    with pytest.raises(BlockMaskMismatchError, match="no more blocks"):
        create_block_mask(causal, 1, 1, 100, 100)._adjust(100, 129)


# ---- copies and conversions ----------------------------------------------------------------------


def test_a_block_mask_of_a_closure_can_be_pickled_and_copied() -> None:
    width = torch.tensor([5])
    block_mask = create_block_mask(lambda b, h, q, kv: q - kv < width[0], None, None, 40, 40)
    tokens = block_mask.token_mask()
    copies = [pickle.loads(pickle.dumps(block_mask)), copy.deepcopy(block_mask)]
    part = pickle.loads(pickle.dumps(block_mask[:, :, 0]))
    width.fill_(99)
    for one in (*copies, part):
        assert torch.equal(one.token_mask(), tokens)
    assert copy.copy(block_mask).mask_mod is block_mask.mask_mod


def read(**changes: Any) -> BlockMask:
    made = BlockMask.__new__(BlockMask)
    made.__setstate__({**create_block_mask(causal, None, None, 40, 40).__getstate__(), **changes})
    return made


@pytest.mark.parametrize("name", ["format", "mask_mod", "seq_lengths", "q_indices", "dq_kv_order"])
def test_a_pickle_without_one_of_its_parts_is_damaged(name: str) -> None:
    state = create_block_mask(causal, None, None, 40, 40).__getstate__()
    del state[name]
    with pytest.raises(DamagedPickleError, match="a pickled BlockMask is damaged"):
        BlockMask.__new__(BlockMask).__setstate__(state)


def test_a_pickle_of_another_format_or_of_lists_that_are_none_is_refused() -> None:
    assert torch.equal(read().token_mask(), create_mask(causal, None, None, 40, 40))
    with pytest.raises(PickleFormatError, match="has format 99"):
        read(format=99)
    for changes in ({"format": torch.ones(2)}, {"kv_indices": 3}, {"seq_lengths": (4000, 40)}):
        with pytest.raises(DamagedPickleError):
            read(**changes)


NO_MASKS: dict[str, Any] = {
    "a number": 3,
    "a score mod": lambda score, b, h, q_idx, kv_idx: score,
    "a score variant": flexfa4.variants.alibi,
    "a score text": "score + 1",
    "a traced score mod": flexfa4.parse("score + 1"),
    "a class": flexfa4.variants.Causal,
    "a function of one parameter": lambda q_idx: q_idx > 0,
    "a module of one parameter": torch.nn.Identity(),
}


@pytest.mark.parametrize("name", NO_MASKS)
def test_what_is_no_mask_is_refused_when_it_is_given_or_assigned(name: str) -> None:
    with pytest.raises(FlexFA4Error):
        from_table([[1]], 16, NO_MASKS[name])
    block_mask = from_table([[1]], 16)
    with pytest.raises(FlexFA4Error):
        block_mask.mask_mod = NO_MASKS[name]
    assert block_mask.mask_mod is noop_mask


@pytest.mark.parametrize("lengths", [40, (40,), (40, 40, 1), "ab", (40, 4.5), (True, 40)])
def test_lengths_that_are_no_pair_are_refused_when_they_are_assigned(lengths: Any) -> None:
    block_mask = create_block_mask(causal, None, None, 40, 40)
    with pytest.raises(ArgumentError, match="seq_lengths"):
        block_mask.seq_lengths = lengths
    assert block_mask.seq_lengths == (40, 40)


def test_moving_keeps_the_meaning_and_leaves_the_original() -> None:
    block_mask = create_block_mask(banded, 2, 2, 40, 40)
    moved = block_mask.to("meta")
    assert moved.kv_indices.device.type == "meta"
    assert block_mask.kv_indices.device.type == "cpu"
    assert torch.equal(block_mask.to("cpu").token_mask(), block_mask.token_mask())


def test_conversions_keep_every_attribute() -> None:
    theirs = torch_flex.create_block_mask(
        causal, 1, 2, 40, 40, "cpu", BLOCK_SIZE=16, compute_dq_write_order=True
    )
    back = BlockMask.from_torch(theirs).to_torch()
    assert isinstance(back, torch_flex.BlockMask)
    for ours, right in zip(back.as_tuple(), theirs.as_tuple(), strict=True):
        assert ours is right or ours == right


def test_block_masks_of_flexfa4_convert_both_ways() -> None:
    length = torch.tensor([20, 35])
    native = flexfa4.create_block_mask(
        lambda b, h, q, kv: (kv < length[b]) & (q >= kv),
        batch=2,
        q_len=40,
        kv_len=48,
        block_size=(16, 32),
    )
    made = BlockMask.from_flexfa4(native)
    assert made.BLOCK_SIZE == (16, 32) and made.shape == (2, 1, 40, 48)
    assert made.kv_num_blocks[:, 0].tolist() == [[1, 1, 1], [1, 1, 2]]
    assert made.to_flexfa4() is native
    listed = BlockMask.from_torch(made.to_torch()).to_flexfa4(heads=3)
    assert listed.shape == (2, 1, 40, 48)
    assert torch.equal(listed.to_dense(), native.to_dense())
    part = BlockMask.from_flexfa4(native[1, :, 16:])
    assert torch.equal(part.token_mask(), native.to_dense()[1:, :, 16:])
    with pytest.raises(ArgumentError, match=r"a flexfa4\.BlockMask"):
        BlockMask.from_flexfa4(made)  # type: ignore[arg-type]
    length.fill_(3)
    with pytest.raises(StaleBlockMaskError):
        made.to_flexfa4()


def test_what_torch_cannot_call_is_not_converted() -> None:
    block_mask = create_block_mask("q >= kv", None, None, 16, 16)
    with pytest.raises(ArgumentError, match="a Python function"):
        block_mask.to_torch()
    with pytest.raises(ArgumentError, match="BlockMask of torch"):
        BlockMask.from_torch(block_mask)


@pytest.mark.parametrize(
    ("lengths", "size"),
    [(64, 16), ((64,), 16), ((64, 64.0), 16), ((64, 64), 0), ((64, 64), (1, 2, 3))],
)
def test_lengths_and_block_sizes_are_pairs_of_integers(lengths: Any, size: Any) -> None:
    with pytest.raises(ArgumentError, match="a pair of integers"):
        from_table([[1]], size, seq_lengths=lengths)


def test_lists_by_column_must_be_those_by_row() -> None:
    num, indices = torch_flex._dense_to_ordered(torch.tensor([[[[1, 0], [1, 1]]]]))
    with pytest.raises(BlockListError, match="q_indices and kv_indices"):
        BlockMask((32, 32), num, indices, None, None, num, indices, None, None, BLOCK_SIZE=(16, 16))
    no_list: Any = None
    with pytest.raises(BlockListError, match="kv_num_blocks is None"):
        BlockMask(
            (32, 32), no_list, no_list, None, None, None, None, None, None, BLOCK_SIZE=(16, 16)
        )


def test_texts_are_torchs() -> None:
    ours, theirs = (
        module.create_block_mask(banded, 2, 2, 256, 256, "cpu", BLOCK_SIZE=16)
        for module in (flexfa4.flex, torch_flex)
    )
    assert str(ours) == str(theirs)
    assert repr(ours) == repr(theirs).replace("torch.Size([", "(").replace("])", ")")
    assert "to_string(limit=N)" in ours.to_string(limit=1)
