"""What is too large to be found, listed or written down is an error, and at once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from flexfa4 import create_block_mask
from flexfa4.errors import ArgumentError
from flexfa4.frontend.masks import limits
from flexfa4.frontend.masks.limits import MOST_LINES
from flexfa4.variants import causal

SCATTERED = "(q * q + kv * 7) % 4099 == 3"


def test_more_lines_than_can_be_listed_are_refused_but_a_part_is_not() -> None:
    length = 16 * (MOST_LINES + 1)
    mask = create_block_mask(causal, q_len=length, kv_len=length, block_size=16)
    for call in (mask.lists, mask.counts, mask.order, lambda: mask.counts("columns"),
                 lambda: mask.density):  # fmt: skip
        with pytest.raises(ArgumentError, match=r"rows or columns of blocks.*is 67,108,865"):
            call()
    part = mask.with_block_size(1 << 20)[:, :, -32:]
    assert part.counts().tolist() == [[[1025]]]


def test_more_batches_and_heads_than_can_be_told_apart_are_refused() -> None:
    sizes: Any = {"batch": 1 << 16, "heads": 1 << 10, "q_len": 8, "kv_len": 8}
    with pytest.raises(ArgumentError, match="batches times heads that may differ is 67,108,864"):
        create_block_mask("(q + kv + b) % 3 == h", **sizes)
    create_block_mask("q >= kv + b", **sizes)[:9].lists()
    assert create_block_mask("q >= kv", **sizes)[:9, :3].counts().shape == (9, 3, 1)


def test_a_dense_table_beyond_the_limit_is_refused_before_it_is_made() -> None:
    mask = create_block_mask(causal, q_len=1 << 22, kv_len=1 << 22, block_size=16)
    with pytest.raises(ArgumentError, match="blocks in a dense table is 68,719,476,736"):
        mask.block_kinds()
    with pytest.raises(ArgumentError, match="scores in a dense table is 17,592,186,044,416"):
        mask.to_dense()
    assert mask[:, :, 77:79].to_dense().sum() == 78 + 79


def test_more_blocks_than_can_be_listed_are_refused_before_they_are_written() -> None:
    mask = create_block_mask(causal, q_len=1 << 21, kv_len=1 << 21, block_size=16)
    with pytest.raises(ArgumentError, match="blocks to list is 8,589,869,056"):
        mask.lists()
    assert len(mask[:, :, -48:].lists().full.indices) == 3 * (1 << 17) - 6


def test_more_equal_batches_and_heads_than_can_be_written_down_are_refused() -> None:
    sizes: Any = {"batch": 1 << 48, "heads": 1 << 48, "q_len": 40, "kv_len": 40}
    mask = create_block_mask(causal, **sizes)
    for call in (mask.lists, mask.counts, mask.order, mask.block_kinds, mask.to_dense):
        with pytest.raises(ArgumentError, match=r"is [\d,]+\n.*at most"):
            call()
    assert mask[7, -1].to_dense().sum() == 40 * 41 // 2


def test_a_mask_without_structure_at_a_million_tokens_is_refused_by_a_sample() -> None:
    started = time.thread_time()
    with pytest.raises(ArgumentError, match="next to nothing is proved"):
        create_block_mask(SCATTERED, q_len=1 << 20, kv_len=1 << 20)
    assert time.thread_time() - started < 20  # all of it would be hours


def test_a_sample_refuses_no_mask_of_few_scattered_blocks() -> None:
    # as many scores as above, but all but a corner of them are proved
    corner = f"({SCATTERED}) and q < 1024 and kv < 1024"
    mask = create_block_mask(corner, q_len=1 << 20, kv_len=1 << 20)
    found = int(mask.counts().sum())
    assert 0 < found <= 64 and found == int(mask[:, :, :1024].counts().sum())


@pytest.mark.parametrize("limit", ["lanes", "rectangles"])
def test_a_mask_about_which_nothing_is_proved_is_given_up(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> None:
        create_block_mask(SCATTERED, q_len=2048, kv_len=2048)

    make()
    monkeypatch.setattr(limits.Budget.__init__, "__defaults__",
                        (1 << 10, 1 << 30) if limit == "lanes" else (1 << 30, 1 << 4))  # fmt: skip
    with pytest.raises(ArgumentError, match=r"explain\(mask\)"):
        make()
