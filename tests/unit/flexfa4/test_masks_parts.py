"""Parts of block masks: the rows of the whole, whatever the index, and what they cost."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flexfa4
from flexfa4 import BlockMask, create_block_mask
from flexfa4.counters import stats
from flexfa4.errors import ArgumentError, BlockMaskIndexError, StaleBlockMaskError
from flexfa4.variants import causal
from tests.random_masks import Space

Mask = Callable[..., Any]
BATCH, HEADS, Q_LEN, KV_LEN = 3, 4, 130, 97
G = torch.Generator().manual_seed(0)
IDS = torch.arange(200) % 5
TEXTS = torch.randint(0, 3, (BATCH, 200), generator=G).sort(1).values
PAIRS = torch.rand(BATCH, HEADS, Q_LEN, KV_LEN, generator=G) < 0.01
WINDOWS = torch.tensor([1, 17, 64, 300])

HEAD_COUNT: Any = flexfa4.num_heads
LENGTHS: Any = flexfa4.kv_len - flexfa4.q_len
MASKS: dict[str, Mask] = {
    "causal": causal,
    "bottom right": lambda b, h, q, kv: q + LENGTHS >= kv,
    "stripes": lambda b, h, q, kv: (q - kv) % 48 < 17,
    "ids": lambda b, h, q, kv: IDS[q] == IDS[kv],
    "texts": lambda b, h, q, kv: (TEXTS[b, q] == TEXTS[b, kv]) & (q >= kv),
    "windows": lambda b, h, q, kv: (q - kv).abs() < WINDOWS[h],
    "pairs": lambda b, h, q, kv: PAIRS[b, h, q, kv],
    "head count": lambda b, h, q, kv: q * HEAD_COUNT >= kv * (h + 1),
}


def dense(name: str) -> torch.Tensor:
    """Return a mask by brute force, where lengths and counts are numbers."""
    space = Space(BATCH, HEADS, Q_LEN, KV_LEN)
    if name == "bottom right":
        return space.dense(lambda b, h, q, kv: q + KV_LEN - Q_LEN >= kv)
    if name == "head count":
        return space.dense(lambda b, h, q, kv: q * HEADS >= kv * (h + 1))
    return space.dense(MASKS[name] if name != "causal" else lambda b, h, q, kv: q >= kv)


def make(mask: Any, **sizes: Any) -> BlockMask:
    made_for = {"batch": BATCH, "heads": HEADS, "q_len": Q_LEN, "kv_len": KV_LEN, **sizes}
    return create_block_mask(mask, block_size=(16, 32), **made_for)


def check(part: BlockMask, expected: torch.Tensor) -> None:
    """Compare a part with its rows, and with the block mask of a table of these."""
    assert part.shape == expected.shape and torch.equal(part.to_dense(), expected)
    again = create_block_mask(
        lambda b, h, q, kv: expected[b, h, q, kv],
        batch=expected.shape[0],
        heads=expected.shape[1],
        q_len=expected.shape[2],
        kv_len=expected.shape[3],
        block_size=part.block_size,
    )
    assert torch.equal(part.block_kinds(), again.block_kinds())
    for by in ("rows", "columns"):
        assert torch.equal(part.counts(by), again.counts(by))


def as_slice(index: Any) -> Any:
    """Return an int as the slice that keeps its dimension."""
    return index if isinstance(index, slice) else slice(index, index + 1 or None)


def ends(count: int) -> st.SearchStrategy[int | None]:
    return st.one_of(st.none(), st.integers(-count - 2, count + 2))


def picks(count: int) -> st.SearchStrategy[Any]:
    return st.one_of(st.integers(-count, count - 1), st.builds(slice, ends(count), ends(count)))


INDICES = st.tuples(picks(BATCH), picks(HEADS), picks(Q_LEN)).filter(
    lambda index: len(range(HEADS)[as_slice(index[1])]) > 0
)


@pytest.mark.parametrize("name", MASKS)
@given(index=INDICES, more=INDICES, axes=st.integers(1, 3))
def test_a_part_is_the_rows_that_its_index_picks(
    name: str, index: tuple[Any, ...], more: tuple[Any, ...], axes: int
) -> None:
    whole, expected = make(MASKS[name]), dense(name)
    index = index[:axes]
    part, expected = whole[index], expected[tuple(map(as_slice, index))]
    check(part, expected)
    try:
        rest = part[more[:axes]]
    except BlockMaskIndexError:
        return  # the part has no such batch, head or query
    check(rest, expected[tuple(map(as_slice, more[:axes]))])


def test_one_int_is_a_batch() -> None:
    assert torch.equal(make(MASKS["texts"])[-1].to_dense(), dense("texts")[-1:])


def test_where_one_mask_serves_all_any_index_picks_it() -> None:
    whole = make(causal, batch=None, heads=None)
    part = whole[7, -3:, 20:40]
    assert (part.batch, part.heads, part.q_len) == (None, None, 20)
    assert torch.equal(part.to_dense(), whole.to_dense()[:, :, 20:40])


def test_all_of_it_is_itself() -> None:
    whole = make(MASKS["pairs"])
    assert whole[:] is whole and whole[:, :, :Q_LEN] is whole and whole[0:BATCH, 0:] is whole
    part = whole[1]
    assert part[0] is part


@pytest.mark.parametrize("name", MASKS)
def test_attention_of_a_part_is_the_part_of_attention(name: str) -> None:
    g = torch.Generator().manual_seed(0)
    q = torch.randn(BATCH, HEADS, Q_LEN, 8, generator=g)
    k, v = (torch.randn(BATCH, HEADS, KV_LEN, 8, generator=g) for _ in range(2))
    whole = make(MASKS[name])
    out = flexfa4.attention(q, k, v, block_mask=whole)
    assert isinstance(out, torch.Tensor)
    found = flexfa4.attention(q[1:, 2:3, 37:101], k[1:, 2:3], v[1:, 2:3],
                              block_mask=whole[1:, 2, 37:101])  # fmt: skip
    torch.testing.assert_close(found, out[1:, 2:3, 37:101])
    steps = [
        flexfa4.attention(q[:, :, t : t + 1], k, v, block_mask=whole[:, :, t : t + 1])
        for t in (0, 77, Q_LEN - 1)
    ]
    torch.testing.assert_close(torch.cat(steps, 2), out[:, :, [0, 77, Q_LEN - 1]])


def test_parts_are_one_graph_and_read_where_they_begin() -> None:
    whole = make(MASKS["windows"])
    first, second = whole[:, 1:3, 5:9], whole[:, 2, 50:60]
    assert str(first.mask) == str(second.mask)
    assert str(first.mask).splitlines()[:3] == [
        "WINDOWS: i32[_]", "first_query: i32", "first_head: i32",
    ]  # fmt: skip
    again = create_block_mask(second.mask, batch=1, heads=1, q_len=10, kv_len=KV_LEN)
    assert torch.equal(again.to_dense()[0], second.to_dense()[0])


def test_a_part_between_blocks_needs_no_evaluation() -> None:
    whole = make(MASKS["pairs"])
    before = stats()
    check_kinds = [(whole[1:, 2], (slice(1, 3), slice(2, 3), slice(None)))]
    check_kinds += [(whole[:, :, 16:48], (slice(None), slice(None), slice(1, 3)))]
    check_kinds += [(whole[2, :, 112:], (slice(2, 3), slice(None), slice(7, 9)))]
    for part, cut in check_kinds:
        assert torch.equal(part.block_kinds(), whole.block_kinds()[cut])
    assert (stats() - before).block_lists == 0
    check(whole[:, :, 16:47], dense("pairs")[:, :, 16:47])


def test_what_is_known_about_captured_tensors_is_not_found_again_for_a_part() -> None:
    whole = make(MASKS["texts"])
    known = whole.blocks_on(whole.device).value_runs
    part = whole[1:, :, 5:9]
    found = part.blocks_on(part.device).value_runs
    assert known and all(found[key] is runs for key, runs in known.items())


def test_copies_of_a_part_are_equal_and_a_part_of_a_copy_is_the_same() -> None:
    for name in MASKS:
        whole = make(MASKS[name])
        part = whole[1:, 1:, 11:93]
        again = copy.deepcopy(part)
        assert torch.equal(again.to_dense(), part.to_dense())
        assert torch.equal(again.block_kinds(), part.block_kinds())
        check(again[1, 0, 5:70], part.to_dense()[1:2, 0:1, 5:70])
        check(copy.deepcopy(whole)[0, 2, 11:93], dense(name)[0:1, 2:3, 11:93])


def test_a_part_is_refused_when_what_the_whole_captured_has_changed() -> None:
    ids = IDS.clone()
    mask: Mask = lambda b, h, q, kv: ids[q] == ids[kv]  # noqa: E731
    part = make(mask, batch=None, heads=None)[:, :, 10:40]
    part.check_current()
    before = part.to_dense()
    ids.zero_()
    with pytest.raises(StaleBlockMaskError, match=f"q_len={Q_LEN}, kv_len={KV_LEN}"):
        part.check_current()
    assert torch.equal(part.with_block_size(64)[:, :, 3:9].to_dense(), before[:, :, 3:9])


@pytest.mark.parametrize(
    ("index", "found"),
    [
        (BATCH, "3 batches, but was indexed with 3"),
        (-BATCH - 1, "3 batches, but was indexed with -4"),
        ((0, HEADS), "4 heads, but was indexed with 4"),
        ((0, slice(2, 2)), "4 heads, but was indexed with 2:2"),
        ((0, 0, Q_LEN), f"{Q_LEN} queries, but was indexed with {Q_LEN}"),
    ],
)
def test_an_index_that_picks_nothing_is_an_index_error(index: Any, found: str) -> None:
    with pytest.raises(BlockMaskIndexError, match=found) as caught:
        make(causal)[index]
    assert isinstance(caught.value, IndexError)


@pytest.mark.parametrize(
    ("index", "found"),
    [
        ((0, 0, 0, 0), "4 indices"),
        (slice(None, None, 2), "a slice with a step of 2"),
        (slice(None, None, -1), "a slice with a step of -1"),
        (1.0, r"is 1\.0"),
        (True, "is True"),
        (None, "is None"),
        ((0, slice(0.0, 2)), r"is 0\.0"),
        ((0, ..., 0), "an ellipsis"),
        ([0, 1], "a list"),
        (torch.tensor([0, 1]), r"a Tensor of shape \(2,\)"),
        (torch.tensor(True), r"a Tensor of shape \(\)"),
    ],
)
def test_what_is_no_index_is_named(index: Any, found: str) -> None:
    with pytest.raises(ArgumentError, match=found):
        make(causal, batch=None, heads=None)[index]


def test_a_part_of_no_batches_has_no_blocks() -> None:
    for batch in (BATCH, None):
        part = make(causal, batch=BATCH)[:0] if batch else make("q >= kv + b")[1:1]
        assert part.block_kinds().numel() == part.counts().numel() == 0
        assert part.density == 0.0


def test_a_block_mask_is_no_sequence() -> None:
    with pytest.raises(TypeError):
        iter(make(causal))
