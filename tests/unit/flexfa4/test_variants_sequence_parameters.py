"""What all masks over positions share: explanations, pictures, copies, checked parameters."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch

import flexfa4
from flexfa4 import variants
from flexfa4.errors import ArgumentError, MaskOutOfRangeError, NoValuesError
from flexfa4.report import COMPUTED, UNCOUNTED
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
    TreeAttention,
)

PARENTS: Final = [-1, 0, 0, 1, 1, 2, 4]
OFFSETS: Final = torch.tensor([0, 9, 9, 20])
ALL: Final[list[Any]] = [
    LocalWindow(5, 3), DilatedWindow(4, 2), LongNet(16, 2), ChunkedCausal(10), BlockCausal(7),
    SinkWindow(2, 6), BottomRightCausal(), OffsetCausal(torch.tensor([3])),
    GlobalWindow.from_positions([0, 9], length=32, window=3),
    BigBird.from_seed(1, length=32, random=1, shape=BigBird(block=4, global_blocks=1)),
    PackedCausal(OFFSETS), PackedDocuments(OFFSETS, PrefixLM(4)),
    SharedPrefix(OFFSETS, torch.tensor([-1, 0, 0])), PrefixTree(OFFSETS, (-1, 0, 0)),
    FoldedBatch(12), BlockDiffusion(12, 4),
    ImageCrossAttention.from_image_positions([2, 11], length=24, tokens=16),
    TreeAttention.from_parents(PARENTS, prefix=8), DraftBlocks(8, 6),
    KeyPadding(torch.tensor([20]), torch.tensor([18])),
    ByPosition(torch.arange(32).flip(0)),
]  # fmt: skip


def seen(mask: Any) -> torch.Tensor:
    """Return the matrix (24, 32) of a mask in the first batch entry and head."""
    made = flexfa4.create_block_mask(mask, batch=1, heads=1, q_len=24, kv_len=32)
    dense: torch.Tensor = made.to_dense()[0, 0]
    return dense


def class_name(mask: object) -> str:
    return type(mask).__name__


@pytest.mark.parametrize("mask", ALL, ids=class_name)
def test_the_picture_shows_what_the_mask_sees(mask: Any) -> None:
    right = seen(mask)
    assert 0 < right.sum() < right.numel()
    tokens, _ = flexfa4.plot_mask(mask, 24, 32, block_size=16).axes
    drawn = tokens.images[0].get_array()
    assert drawn is not None and drawn.tolist() == right.long().tolist()


@pytest.mark.parametrize("mask", ALL, ids=class_name)
def test_the_explanation_reads_back_and_finds_nothing_computed_on_each_call(mask: Any) -> None:
    found = flexfa4.explain(mask)
    for slow in (COMPUTED, UNCOUNTED):
        assert slow not in str(found["captures"])
    graph = found["mask mod"].rows[0][1]
    traced = flexfa4.trace(mask, "mask")
    captured = traced.bind()
    declared: list[Any] = [*captured.graph.buffers, *captured.graph.scalars]
    values = dict(
        zip((d.name for d in declared), (*captured.tensors, *captured.scalars), strict=True)
    )
    assert torch.equal(seen(flexfa4.parse(graph, **values)), seen(mask))


@pytest.mark.parametrize("mask", ALL, ids=class_name)
def test_copies_and_pickles_see_the_same(mask: Any) -> None:
    right = seen(mask)
    for other in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask)), dataclasses.replace(mask)):
        assert torch.equal(seen(other), right)


NEW_VALUES: Final[list[tuple[Any, Any]]] = [
    (LocalWindow(5, 3), LocalWindow(2, 9)),
    (DilatedWindow(4, 2), DilatedWindow(3, 3)),
    (LongNet(16, 2), LongNet(12, 3)),
    (ChunkedCausal(10), ChunkedCausal(3)),
    (BlockCausal(7), BlockCausal(4)),
    (SinkWindow(2, 6), SinkWindow(5, 3)),
    (OffsetCausal(2), OffsetCausal(-4)),
    (PackedCausal(OFFSETS), PackedCausal.from_lengths([3, 9])),
    (PackedDocuments(OFFSETS), PackedDocuments.from_lengths([3, 9])),
    (PrefixTree(OFFSETS, (-1, 0, 0)), PrefixTree.from_lengths([3, 9], [-1, 0])),
    (FoldedBatch(12), FoldedBatch(9)),
    (BlockDiffusion(12, 4), BlockDiffusion(9, 2)),
    (TreeAttention.from_parents(PARENTS), TreeAttention.from_parents([-1, 0, 1], prefix=3)),
    (DraftBlocks(8, 6), DraftBlocks(3, 5)),
]


@pytest.mark.parametrize(("first", "second"), NEW_VALUES, ids=class_name)
def test_new_parameters_are_not_traced_anew(first: Any, second: Any) -> None:
    def call(mask: Any) -> None:
        q = torch.zeros(1, 2, 24, 4)
        flexfa4.attention(q, q, q, block_mask=mask)

    call(first)
    before = flexfa4.stats().traces
    call(second)
    assert flexfa4.stats().traces == before


WRONG: Final[dict[str, tuple[Callable[[], Any], str]]] = {
    "a negative side": (lambda: LocalWindow(-1, 0), r"LocalWindow.left is -1"),
    "a side of True": (lambda: LocalWindow(0, True), r"LocalWindow.right is True"),
    "a window of nothing": (lambda: DilatedWindow(0), "DilatedWindow.window is 0"),
    "no dilation": (lambda: DilatedWindow(3, 0), "DilatedWindow.dilation is 0"),
    "causal in words": (lambda: DilatedWindow(3, 1, "no"), "DilatedWindow.causal is 'no'"),  # type: ignore[arg-type]
    "causal as a number": (lambda: LongNet(8, 2, 1), "LongNet.causal is 1(.|\n)*pass True"),  # type: ignore[arg-type]
    "no segment": (lambda: LongNet(0), "LongNet.segment is 0"),
    "no LongNet dilation": (lambda: LongNet(8, 0), "LongNet.dilation is 0"),
    "an empty chunk": (lambda: ChunkedCausal(0), "ChunkedCausal.chunk is 0"),
    "a fractional block": (lambda: BlockCausal(2.0), "BlockCausal.block is 2.0"),  # type: ignore[arg-type]
    "negative sinks": (lambda: SinkWindow(-1, 4), "SinkWindow.sinks is -1"),
    "a sink window of nothing": (lambda: SinkWindow(1, 0), "SinkWindow.window is 0"),
    "a fractional offset": (lambda: OffsetCausal(1.5), "OffsetCausal.offset is 1.5(.|\n)*an int"),  # type: ignore[arg-type]
    "a float tensor as offset": (
        lambda: OffsetCausal(torch.zeros(2)),
        "OffsetCausal.offset is a tensor of torch.float32",
    ),
    "an offset for each query": (
        lambda: OffsetCausal(torch.zeros(2, 3, dtype=torch.long)),
        r"OffsetCausal.offset is a tensor of shape \(2, 3\)",
    ),
    "global positions as integers": (
        lambda: GlobalWindow(torch.zeros(4, dtype=torch.long)),
        "GlobalWindow.is_global is a tensor of torch.int64",
    ),
    "a global position beyond the end": (
        lambda: GlobalWindow.from_positions([9], length=9),
        r"from_positions\(positions\)\[0\] is 9",
    ),
    "no global window": (
        lambda: GlobalWindow(torch.ones(4, dtype=torch.bool), 0),
        "GlobalWindow.window is 0",
    ),
    "an even window of blocks": (lambda: BigBird(window_blocks=2), "BigBird.window_blocks is 2"),
    "random blocks as bools": (
        lambda: BigBird(torch.ones(3, 3, dtype=torch.bool)),
        "BigBird.random_blocks is a tensor of torch.bool",
    ),
    "negative random blocks": (
        lambda: BigBird.from_seed(0, length=9, random=-1),
        r"BigBird.from_seed\(random\) is -1",
    ),
    "offsets that fall": (
        lambda: PackedCausal(torch.tensor([0, 5, 3])),
        r"PackedCausal.offsets is \[0, 5, 3\]",
    ),
    "offsets that begin late": (
        lambda: PackedDocuments(torch.tensor([2, 5])),
        r"PackedDocuments.offsets is \[2, 5\]",
    ),
    "a length beyond 64 bits": (
        lambda: PackedCausal.from_lengths([10**30]),
        r"\(lengths\)\[0\] is 1000(.|\n)*64 bits",
    ),
    "lengths as bytes": (
        lambda: PackedCausal.from_lengths(b"ab"),
        r"\(lengths\) is a bytes",
    ),
    "a prefix that is complex": (
        lambda: SharedPrefix.from_lengths([2, 2], torch.tensor([1j, 0])),  # type: ignore[arg-type]
        r"\(prefix\) is a Tensor",
    ),
    "a prefix that is half a document": (
        lambda: SharedPrefix.from_lengths([2, 2], [-1, 0.5]),  # type: ignore[list-item]
        r"\(prefix\)\[1\] is 0.5",
    ),
    "no parents": (
        lambda: PrefixTree(parents=None),  # type: ignore[arg-type]
        "PrefixTree.parents is None",
    ),
    "paths in a tensor": (
        lambda: TreeAttention.from_paths(torch.tensor(3)),  # type: ignore[arg-type]
        r"\(paths\) is a Tensor(.|\n)*tolist",
    ),
    "no offsets": (
        lambda: PackedCausal(torch.tensor([], dtype=torch.long)),
        r"PackedCausal.offsets is \[\]",
    ),
    "offsets in a list": (
        lambda: PackedCausal([0, 3]),  # type: ignore[arg-type]
        r"PackedCausal.offsets is \[0, 3\](.|\n)*wrap it",
    ),
    "a negative length": (lambda: PackedCausal.from_lengths([3, -1]), r"\(lengths\)\[1\] is -1"),
    "lengths in a tensor": (
        lambda: SharedPrefix.from_lengths(torch.tensor([3, 1]), [-1, 0]),  # type: ignore[arg-type]
        r"\(lengths\) is a Tensor(.|\n)*tolist",
    ),
    "an inner score mod": (
        lambda: PackedDocuments(OFFSETS, lambda score, b, h, q_idx, kv_idx: score),
        "score mod",
    ),
    "an inner number": (lambda: FoldedBatch(3, 7), "is 7"),  # type: ignore[arg-type]
    "an empty request": (lambda: FoldedBatch(0), "FoldedBatch.length is 0"),
    "a prefix for too few documents": (
        lambda: SharedPrefix(OFFSETS, torch.tensor([0])),
        r"SharedPrefix.prefix is \[0\]",
    ),
    "a prefix beyond the documents": (
        lambda: SharedPrefix(OFFSETS, torch.tensor([0, 3, 0])),
        r"SharedPrefix.prefix is \[0, 3, 0\]",
    ),
    "documents without prefixes": (lambda: SharedPrefix(OFFSETS), "SharedPrefix.prefix is None"),
    "prefixes without documents": (
        lambda: SharedPrefix(prefix=torch.tensor([0])),
        "SharedPrefix.offsets is None",
    ),
    "a parent behind its child": (
        lambda: PrefixTree.from_lengths([2, 2], [1, -1]),
        r"PrefixTree.parents\[0\] is 1",
    ),
    "parents in a tensor": (
        lambda: PrefixTree(OFFSETS, torch.tensor([-1, 0, 0])),  # type: ignore[arg-type]
        "PrefixTree.parents is a Tensor",
    ),
    "too few parents": (
        lambda: PrefixTree(OFFSETS, (-1,)),
        "PrefixTree.parents is a list of 1(.|\n)*each of 3",
    ),
    "no text to diffuse": (lambda: BlockDiffusion(0, 4), "BlockDiffusion.length is 0"),
    "no block to diffuse": (lambda: BlockDiffusion(8, 0), "BlockDiffusion.block is 0"),
    "intervals of three": (
        lambda: ImageCrossAttention(torch.zeros(2, 3, dtype=torch.long)),
        r"intervals is a tensor of shape \(2, 3\)",
    ),
    "images without tokens": (
        lambda: ImageCrossAttention(torch.zeros(2, 2, dtype=torch.long), 0),
        "ImageCrossAttention.tokens is 0",
    ),
    "images out of order": (
        lambda: ImageCrossAttention.from_image_positions([5, 2], length=9),
        r"from_image_positions\(positions\) is \[5, 2\]",
    ),
    "no images": (
        lambda: ImageCrossAttention.from_image_positions([], length=9),
        r"from_image_positions\(positions\) is \[\]",
    ),
    "ancestors as numbers": (
        lambda: TreeAttention(torch.eye(3)),
        "TreeAttention.ancestors is a tensor of torch.float32",
    ),
    "ancestors of others": (
        lambda: TreeAttention(torch.ones(2, 3, dtype=torch.bool)),
        r"TreeAttention.ancestors is a tensor of shape \(2, 3\)",
    ),
    "a tree without nodes": (lambda: TreeAttention.from_parents([]), r"\(parents\) is a list of 0"),
    "a tree with a negative prefix": (
        lambda: TreeAttention.from_parents([-1], prefix=-1),
        "TreeAttention.prefix is -1",
    ),
    "a path without its parent": (
        lambda: TreeAttention.from_paths([[0], [1, 0]]),
        r"\[1, 0\] without its parent(.|\n)*add \[1\]",
    ),
    "a path twice": (lambda: TreeAttention.from_paths([[0], [0]]), r"\[0\] twice"),
    "the root as a path": (lambda: TreeAttention.from_paths([[], [0]]), "an empty path"),
    "a rank for a path": (
        lambda: TreeAttention.from_paths([0, 1]),  # type: ignore[list-item]
        r"from_paths\(paths\)\[0\] is 0(.|\n)*a list of ints",
    ),
    "a draft of nothing": (lambda: DraftBlocks(3, 0), "DraftBlocks.block is 0"),
    "a draft after less than nothing": (lambda: DraftBlocks(-3, 2), "DraftBlocks.prefix is -3"),
    "lengths in a list": (lambda: KeyPadding([3, 4]), r"KeyPadding.lengths is \[3, 4\]"),  # type: ignore[arg-type]
    "padding in front": (
        lambda: KeyPadding.from_attention_mask(torch.tensor([[0, 1, 1]])),
        "padding before a token",
    ),
    "an attention mask in floats": (
        lambda: KeyPadding.from_attention_mask(torch.ones(1, 3)),
        "is a tensor of torch.float32",
    ),
    "positions in floats": (
        lambda: ByPosition(torch.ones(3)),
        "ByPosition.kv_positions is a tensor of torch.float32",
    ),
    "a page that is not there": (
        lambda: ByPosition.from_pages(
            torch.tensor([[6]]), torch.tensor([3]), pages=6, page_size=4
        ),
        "names page 6",
    ),
    "a page that is missing": (
        lambda: ByPosition.from_pages(
            torch.tensor([[2, -1]]), torch.tensor([5]), pages=6, page_size=4
        ),
        r"\(lengths\) is \[5\]",
    ),
    "a page twice in a row": (
        lambda: ByPosition.from_pages(
            torch.tensor([[2, 2]]), torch.tensor([7]), pages=6, page_size=4
        ),
        r"\(lengths\) is \[7\]",
    ),
    "lengths for another batch": (
        lambda: ByPosition.from_pages(
            torch.tensor([[2, 1]]), torch.tensor([7, 3]), pages=6, page_size=4
        ),
        r"\(lengths\) is \[7, 3\](.|\n)*each row",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_parameter_is_refused_by_name(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize("make", [PackedCausal, PackedDocuments, PrefixTree, SharedPrefix])
def test_offsets_without_values_are_refused(make: Any) -> None:
    offsets = OFFSETS.to("meta")
    more = {PrefixTree: [-1, 0, 0], SharedPrefix: torch.tensor([-1, 0, 0])}
    with pytest.raises(NoValuesError, match=f"{make.__name__}.offsets is on meta"):
        make(offsets, *[more[make]] if make in more else [])


WITHOUT_TENSORS: Final = (
    "global_window", "packed_causal", "packed_documents", "shared_prefix", "prefix_tree",
    "image_cross_attention", "tree_attention", "key_padding", "by_position",
)  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_TENSORS)
def test_a_default_instance_without_tensors_says_how_to_make_one(name: str) -> None:
    mask = getattr(variants, name)
    kind = type(mask).__name__
    with pytest.raises(ArgumentError, match=rf"{kind}\.\w+ is None(.|\n)*instead: {kind}"):
        seen(mask)


def test_a_table_that_is_too_short_is_refused_by_name_and_size() -> None:
    for mask in (
        GlobalWindow.from_positions([0], length=5),
        BigBird(torch.zeros(5, 1, dtype=torch.long), block=1),
        ByPosition(torch.arange(5)),
    ):
        with pytest.raises(MaskOutOfRangeError, match="size 5"):
            seen(mask)
