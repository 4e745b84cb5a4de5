"""Cases of the masks over positions in a sequence: one row or more for each variant.

The parameters are small beside the sizes of most tests, so that every row of the table shows full,
partial and empty blocks, and documents end before the sequence does, so that there is padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from flexfa4.testing.case import Case, Draw, Mods, Sizes
from flexfa4.variants import (
    BigBird,
    BlockCausal,
    BlockDiffusion,
    BottomRightCausal,
    ByPosition,
    ChunkedCausal,
    DilatedWindow,
    DraftBlocks,
    FoldedBatch,
    GlobalWindow,
    ImageCrossAttention,
    KeyPadding,
    LocalWindow,
    LongNet,
    OffsetCausal,
    PackedCausal,
    PackedDocuments,
    PrefixLM,
    PrefixTree,
    SharedPrefix,
    SinkWindow,
    SlidingWindow,
    TreeAttention,
)


def _length(s: Sizes) -> int:
    return max(s.q_len, s.kv_len)


def _lengths(s: Sizes) -> list[int]:
    """Four documents, an empty one among them, and padding of about a tenth."""
    length = _length(s)
    return [length // 5, 0, length // 3, length - length // 5 - length // 3 - length // 10]


def _fixed(mask: Any) -> Callable[[Sizes, Draw], Mods]:
    """Return the factory of a mask that is the same for all sizes."""
    return lambda s, d: Mods(None, mask)


def _bottom_right(s: Sizes, d: Draw) -> Mods:
    ahead = s.kv_len - s.q_len
    return Mods(
        None,
        BottomRightCausal(),
        eager_mask=lambda b, h, q_idx, kv_idx: kv_idx <= q_idx + ahead,
    )


def _offset_causal(s: Sizes, d: Draw) -> Mods:
    return Mods(None, OffsetCausal(d.integers(-5, s.kv_len + 5, s.batch)))


def _global_window(s: Sizes, d: Draw) -> Mods:
    is_global = d.integers(0, 10, s.batch, _length(s)) == 0
    return Mods(None, GlobalWindow(is_global, window=9))


def _big_bird(s: Sizes, d: Draw) -> Mods:
    shape = BigBird(block=8, window_blocks=3, global_blocks=1)
    mask = BigBird.from_seed(0, length=_length(s), random=2, shape=shape)
    drawn = mask.random_blocks
    assert drawn is not None

    def eager_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        random = (drawn[q_idx // 8] == (kv_idx // 8)[..., None]).any(-1)
        return shape(b, h, q_idx, kv_idx) | random

    return Mods(None, mask, eager_mask=eager_mask)


def _shared_prefix(s: Sizes, d: Draw) -> Mods:
    return Mods(None, SharedPrefix.from_lengths(_lengths(s), [-1, 0, 0, 0]))


def _image_cross_attention(s: Sizes, d: Draw) -> Mods:
    positions = sorted({s.q_len // 9, s.q_len // 3, s.q_len // 2})
    return Mods(
        None, ImageCrossAttention.from_image_positions(positions, length=s.q_len, tokens=20)
    )


def _tree_attention(s: Sizes, d: Draw) -> Mods:
    nodes = max(1, s.q_len - s.q_len // 10)
    parents = [-1, *((node - 1) // 2 for node in range(1, nodes))]
    prefix = d.integers(0, max(1, s.kv_len - nodes), s.batch)
    return Mods(None, TreeAttention.from_parents(parents, prefix=prefix))


def _key_padding(s: Sizes, d: Draw) -> Mods:
    lengths, query_lengths = (d.integers(0, n + 1, s.batch) for n in (s.kv_len, s.q_len))
    return Mods(None, KeyPadding(lengths, query_lengths))


def _by_position(s: Sizes, d: Draw) -> Mods:
    positions = torch.rand(s.batch, s.kv_len, generator=d.generator).argsort(1)
    kept = d.integers(0, 5, s.batch, s.kv_len) > 0
    window = SlidingWindow(40)
    return Mods(None, ByPosition(torch.where(kept, positions, -1), inner=window))


CASES: Final[tuple[Case, ...]] = (
    Case("local_window", _fixed(LocalWindow(11, 5))),
    Case("dilated_window", _fixed(DilatedWindow(5, 3))),
    Case("dilated_window_both_ways", _fixed(DilatedWindow(4, 2, causal=False))),
    Case("longnet", _fixed(LongNet(8, 1) | LongNet(32, 4, causal=False))),
    Case("chunked_causal", _fixed(ChunkedCausal(24))),
    Case("block_causal", _fixed(BlockCausal(10))),
    Case("sink_window", _fixed(SinkWindow(3, 12))),
    Case("bottom_right", _bottom_right),
    Case("offset_causal", _offset_causal),
    Case("global_window", _global_window),
    Case("big_bird", _big_bird),
    Case("packed_causal", lambda s, d: Mods(None, PackedCausal.from_lengths(_lengths(s)))),
    Case(
        "packed_documents",
        lambda s, d: Mods(None, PackedDocuments.from_lengths(_lengths(s), PrefixLM(6))),
    ),
    Case("shared_prefix", _shared_prefix),
    Case(
        "prefix_tree",
        lambda s, d: Mods(None, PrefixTree.from_lengths(_lengths(s), [-1, 0, 0, 2])),
    ),
    Case("folded_batch", _fixed(FoldedBatch(26, LocalWindow(7, 3)))),
    Case("block_diffusion", lambda s, d: Mods(None, BlockDiffusion(_length(s) // 2 + 1, 6))),
    Case("image_cross_attention", _image_cross_attention),
    Case("tree_attention", _tree_attention),
    Case("draft_blocks", _fixed(DraftBlocks(16, 7))),
    Case("key_padding", _key_padding),
    Case("by_position", _by_position),
)
