"""Each mask over positions against its paper's words: lists of keys, loops over documents, trees.

The right matrices are built without the variants' formulas: row by row from the keys that a query
sees (`rows`), or from the blocks of which the matrix consists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flexfa4
from flexfa4.variants import (
    BigBird,
    BlockCausal,
    BlockDiffusion,
    BottomRightCausal,
    ByPosition,
    ChunkedCausal,
    DilatedWindow,
    Document,
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
    causal,
)


def seen(
    mask: Any, q_len: int, kv_len: int, batch: int | None = None, heads: int | None = None
) -> torch.Tensor:
    """Return the whole matrix (batch or 1, heads or 1, q_len, kv_len) of a mask, of one for both
    without batch and heads."""
    made = flexfa4.create_block_mask(mask, batch=batch, heads=heads, q_len=q_len, kv_len=kv_len)
    dense: torch.Tensor = made.to_dense()
    return dense if batch or heads else dense[0, 0]


def rows(q_len: int, kv_len: int, keys: Callable[[int], Iterable[int]]) -> torch.Tensor:
    """Return the matrix in which query q sees ``keys(q)``, as far as there are such keys."""
    matrix = torch.zeros(q_len, kv_len, dtype=torch.bool)
    for q in range(q_len):
        for key in keys(q):
            if 0 <= key < kv_len:
                matrix[q, key] = True
    return matrix


def diagonal(blocks: Sequence[torch.Tensor], q_len: int, kv_len: int) -> torch.Tensor:
    """Return the blocks along the diagonal, cut or filled with False to a size."""
    whole = torch.block_diag(torch.zeros(0, 0), *(block.float() for block in blocks)).bool()
    matrix = torch.zeros(max(q_len, len(whole)), max(kv_len, len(whole)), dtype=torch.bool)
    matrix[: len(whole), : len(whole)] = whole
    return matrix[:q_len, :kv_len]


def triangle(size: int) -> torch.Tensor:
    return torch.ones(size, size, dtype=torch.bool).tril()


def text_of(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return (document, position in it) of each packed position."""
    return [(d, i) for d, length in enumerate(lengths) for i in range(length)]


# ---- windows, chunks and offsets -----------------------------------------------------------------


def last(count: int, gap: int = 1) -> Callable[[int], Iterable[int]]:
    """The query's own position and those before it, `count` in all, `gap` apart."""
    return lambda q: [q - n * gap for n in range(count)]


def both_sides(count: int, gap: int = 1) -> Callable[[int], Iterable[int]]:
    return lambda q: [q + n * gap for n in range(1 - count, count)]


def chunk_of(size: int) -> Callable[[int], list[int]]:
    """All positions of the query's chunk, found by cutting the sequence into pieces."""
    pieces = [list(range(start, start + size)) for start in range(0, 200, size)]
    return lambda q: next(piece for piece in pieces if q in piece)


def until_own(keys: Callable[[int], Iterable[int]]) -> Callable[[int], Iterable[int]]:
    return lambda q: [key for key in keys(q) if key <= q]


WINDOWS: Final[list[tuple[Any, int, int, Callable[[int], Iterable[int]]]]] = [
    (LocalWindow(0, 0), 9, 12, lambda q: [q]),
    (LocalWindow(4, 2), 40, 33, lambda q: range(q - 4, q + 3)),
    (LocalWindow(0, 3), 20, 40, lambda q: range(q, q + 4)),
    (LocalWindow(100, 100), 30, 40, lambda q: range(40)),
    (DilatedWindow(1, 5), 20, 20, lambda q: [q]),
    (DilatedWindow(4, 1), 20, 30, last(4)),
    (DilatedWindow(4, 3), 40, 33, last(4, 3)),
    (DilatedWindow(99, 7), 33, 40, last(99, 7)),
    (DilatedWindow(4, 3, causal=False), 33, 40, both_sides(4, 3)),
    (DilatedWindow(1, 3, causal=False), 40, 33, both_sides(1)),
    (ChunkedCausal(1), 10, 12, lambda q: [q]),
    (ChunkedCausal(7), 40, 33, until_own(chunk_of(7))),
    (ChunkedCausal(64), 40, 50, lambda q: range(q + 1)),
    (BlockCausal(1), 40, 33, lambda q: range(q + 1)),
    (BlockCausal(6), 33, 40, lambda q: range(chunk_of(6)(q)[-1] + 1)),
    (BlockCausal(100), 20, 30, lambda q: range(30)),
    (SinkWindow(0, 5), 30, 30, last(5)),
    (SinkWindow(4, 1), 30, 33, lambda q: [*range(min(q, 4)), q]),
    (SinkWindow(3, 6), 40, 33, lambda q: [*range(min(q + 1, 3)), *last(6)(q)]),
    (BottomRightCausal(), 7, 20, lambda q: range(20 - (6 - q))),
    (BottomRightCausal(), 20, 7, lambda q: range(7 - (19 - q))),
    (OffsetCausal(0), 20, 30, lambda q: range(q + 1)),
    (OffsetCausal(9), 8, 30, lambda q: range(10 + q)),
    (OffsetCausal(-1), 20, 20, lambda q: range(q)),
    (OffsetCausal(torch.tensor(5)), 8, 30, lambda q: range(6 + q)),
    (DraftBlocks(0, 4), 22, 22, until_own(chunk_of(4))),
    (
        DraftBlocks(5, 4),
        22,
        30,
        lambda q: [*range(5), *(5 + key for key in until_own(chunk_of(4))(q))],
    ),
    (FoldedBatch(1), 6, 8, lambda q: [q]),
    (FoldedBatch(7), 33, 40, until_own(chunk_of(7))),
    (FoldedBatch(7, "kv < 2 or q == kv"), 30, 33, lambda q: [*chunk_of(7)(q)[:2], q]),
    (ByPosition(torch.arange(30)), 20, 30, lambda q: range(q + 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mask", "q_len", "kv_len", "keys"),
    WINDOWS,
    ids=[f"{mask}-{q_len}-{kv_len}" for mask, q_len, kv_len, _ in WINDOWS],
)
def test_a_mask_sees_the_keys_that_its_definition_lists(
    mask: Any, q_len: int, kv_len: int, keys: Callable[[int], Iterable[int]]
) -> None:
    assert torch.equal(seen(mask, q_len, kv_len), rows(q_len, kv_len, keys))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 9), st.integers(1, 30), st.integers(1, 4), st.integers(1, 25))
def test_windows_are_related_as_their_docstrings_say(
    sinks: int, window: int, dilation: int, length: int
) -> None:
    def same(a: Any, b: Any) -> bool:
        return torch.equal(seen(a, length, 25), seen(b, length, 25))

    assert same(
        SinkWindow(sinks, window), (flexfa4.mask(f"kv < {sinks}") | SlidingWindow(window)) & causal
    )
    assert same(SinkWindow(0, window), SlidingWindow(window))
    assert same(LocalWindow(window, 0), SlidingWindow(window + 1))
    assert same(DilatedWindow(window, 1), SlidingWindow(window))
    reach = DilatedWindow(window // dilation + 1, dilation, causal=False)
    assert same(reach, f"abs(q - kv) <= {window} and (q - kv) % {dilation} == 0")
    assert same(BlockCausal(window), causal | f"q // {window} == kv // {window}")


def test_each_batch_entry_has_its_own_offset() -> None:
    found = seen(OffsetCausal(torch.tensor([0, 7, -3])), 4, 12, batch=3)
    for entry, offset in zip(found[:, 0], (0, 7, -3), strict=True):
        assert torch.equal(entry, rows(4, 12, lambda q, o=offset: range(q + o + 1)))


@pytest.mark.parametrize(
    ("segment", "dilation", "is_causal"),
    [(8, 1, False), (8, 2, True), (10, 4, False), (3, 5, True)],
)
def test_longnet_selects_every_dilation_th_position_of_a_segment_with_a_shift_by_head(
    segment: int, dilation: int, is_causal: bool
) -> None:
    q_len, kv_len, heads = 37, 33, 6
    right = torch.zeros(heads, q_len, kv_len, dtype=torch.bool)
    for head in range(heads):
        for start in range(0, 40, segment):
            end = start + segment
            chosen = list(range(start, end))[head % dilation :: dilation]
            for q in chosen:
                for key in chosen:
                    if q < q_len and key < kv_len and (key <= q or not is_causal):
                        right[head, q, key] = True
    mask = LongNet(segment, dilation, causal=is_causal)
    assert torch.equal(seen(mask, q_len, kv_len, heads=heads)[0], right)


# ---- global and random keys ----------------------------------------------------------------------


@pytest.mark.parametrize(("window", "positions"), [(1, []), (1, [3]), (5, [0, 21]), (90, [2])])
def test_global_positions_see_and_are_seen_by_all(window: int, positions: list[int]) -> None:
    right = rows(24, 35, both_sides(window))
    for position in positions:
        right[position : position + 1] = True
        right[:, position] = True
    mask = GlobalWindow.from_positions(positions, length=35, window=window)
    assert torch.equal(seen(mask, 24, 35), right)


def test_global_positions_may_differ_by_batch() -> None:
    is_global = torch.eye(2, 20, dtype=torch.bool)
    found = seen(GlobalWindow(is_global, 2), 20, 20, batch=2)
    for b in range(2):
        assert torch.equal(found[b, 0], seen(GlobalWindow(is_global[b], 2), 20, 20))


@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize(("window", "leading"), [(1, 0), (3, 1), (5, 2)])
def test_big_bird_is_global_window_and_random_blocks(
    window: int, leading: int, by_head: bool
) -> None:
    q_len, kv_len, size = 38, 45, 4
    random = torch.tensor([[8, -1], [3, 7], [6, 6]]).repeat(4, 1)
    table = torch.stack((random, random.flip(0))) if by_head else random
    found = seen(BigBird(table, size, window, leading), q_len, kv_len, heads=2 if by_head else 1)[0]
    for head, matrix in enumerate(found):
        blocks = torch.zeros(12, 12, dtype=torch.bool)
        for i in range(12):
            for shift in range(window):
                j = i - window // 2 + shift
                if 0 <= j < 12:
                    blocks[i, j] = True
            for j in (table[head] if by_head else table)[i].tolist():
                if j >= 0:
                    blocks[i, j] = True
        blocks[:leading] = True
        blocks[:, :leading] = True
        right = blocks.repeat_interleave(size, 0).repeat_interleave(size, 1)[:q_len, :kv_len]
        assert torch.equal(matrix, right)


@pytest.mark.parametrize("length", [0, 7, 100, 403])
def test_a_seed_draws_distinct_blocks_that_would_not_be_seen_otherwise(length: int) -> None:
    shape = BigBird(block=8, global_blocks=1)
    drawn = BigBird.from_seed(5, length=length, random=3, shape=shape)
    again = BigBird.from_seed(5, length=length, random=3, shape=shape)
    other = BigBird.from_seed(6, length=length, random=3, shape=shape)
    assert drawn.random_blocks is not None and again.random_blocks is not None
    assert torch.equal(drawn.random_blocks, again.random_blocks)
    count = -(-length // 8)
    before = seen(shape, length, length)[::8, ::8].sum(1)
    after = seen(drawn, length, length)[::8, ::8].sum(1)
    assert torch.equal(after, torch.minimum(before + 3, torch.tensor(count)))
    if length > 100:
        assert not torch.equal(seen(other, length, length), seen(drawn, length, length))


# ---- packed documents ----------------------------------------------------------------------------

PACKED: Final = [[9, 0, 20, 1, 6], [40], [], [0, 0], [1] * 12]


@pytest.mark.parametrize("lengths", PACKED, ids=repr)
@pytest.mark.parametrize(("q_len", "kv_len"), [(44, 44), (20, 50), (44, 3)])
def test_packed_documents_are_causal_by_themselves_and_padding_is_alone(
    lengths: list[int], q_len: int, kv_len: int
) -> None:
    """Positions behind the last document see nothing and are seen by nothing."""
    right = diagonal([triangle(n) for n in lengths], q_len, kv_len)
    assert torch.equal(seen(PackedCausal.from_lengths(lengths), q_len, kv_len), right)
    assert torch.equal(seen(PackedDocuments.from_lengths(lengths), q_len, kv_len), right)


def test_positions_of_the_inner_mask_are_counted_from_the_start_of_each_document() -> None:
    lengths = [9, 0, 20, 1, 6]
    blocks = [seen(PrefixLM(3), n, n) if n else triangle(0) for n in lengths]
    right = diagonal(blocks, 40, 44)
    assert torch.equal(seen(PackedDocuments.from_lengths(lengths, PrefixLM(3)), 40, 44), right)
    text = PackedDocuments.from_lengths(lengths, "kv < 3 or kv <= q")
    assert torch.equal(seen(text, 40, 44), right)


def test_an_inner_mask_reads_its_tensors_inside_the_longest_document_only() -> None:
    allowed = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) > 0.5
    packed = PackedDocuments.from_lengths(
        [6, 4, 6], lambda b, h, q_idx, kv_idx: allowed[q_idx, kv_idx]
    )
    right = diagonal([allowed, allowed[:4, :4], allowed], 16, 16)
    assert torch.equal(seen(packed, 16, 16), right)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=6))
def test_offsets_lengths_and_ids_say_the_same(lengths: list[int]) -> None:
    total = sum(lengths)
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    by_ids = seen(Document.from_lengths(lengths) & causal, total, total) if total else None
    for mask in (PackedCausal(offsets), PackedDocuments(offsets)):
        padded = seen(mask, total + 3, total + 2)
        assert by_ids is None or torch.equal(padded[:total, :total], by_ids)
        assert not padded[total:].any() and not padded[:, total:].any()


@pytest.mark.parametrize(
    ("lengths", "prefix"),
    [
        ([5, 4, 0, 7], [-1, 0, 0, 0]),
        ([5, 4, 6, 7], [0, 0, -1, 2]),
        ([3, 4, 5], [2, 2, 2]),
        ([6, 3], [-1, -1]),
        ([4, 3, 2], [-1, 0, 1]),
    ],
)
def test_documents_see_their_prefix_document_as_a_whole(
    lengths: list[int], prefix: list[int]
) -> None:
    text, size = text_of(lengths), sum(lengths) + 3

    def keys(q: int) -> Iterable[int]:
        if q >= len(text):
            return []
        document, position = text[q]
        own = [k for k, (d, i) in enumerate(text) if d == document and i <= position]
        shared = prefix[document]
        if shared in (document, -1):
            return own
        return own + [k for k, (d, _) in enumerate(text) if d == shared]

    mask = SharedPrefix.from_lengths(lengths, prefix)
    assert torch.equal(seen(mask, size, size + 2), rows(size, size + 2, keys))


@pytest.mark.parametrize(
    ("lengths", "parents"),
    [
        ([4, 3, 2, 5, 1], [-1, 0, 1, 0, 3]),
        ([4, 3, 0, 5], [-1, -1, 1, 2]),
        ([2, 2, 2, 2], [-1, 0, 1, 2]),
        ([], []),
    ],
)
def test_pieces_see_the_line_of_their_ancestors(lengths: list[int], parents: list[int]) -> None:
    text, size = text_of(lengths), sum(lengths) + 3

    def keys(q: int) -> Iterable[int]:
        if q >= len(text):
            return []
        piece, position = text[q]
        found = [k for k, (p, i) in enumerate(text) if p == piece and i <= position]
        while (piece := parents[piece]) >= 0:
            found += [k for k, (p, _) in enumerate(text) if p == piece]
        return found

    mask = PrefixTree.from_lengths(lengths, parents)
    assert torch.equal(seen(mask, size, size), rows(size, size, keys))


def test_a_tree_of_one_level_is_a_shared_prefix() -> None:
    lengths, parents = [5, 4, 3, 6], [-1, 0, 0, 0]
    tree, shared = (kind.from_lengths(lengths, parents) for kind in (PrefixTree, SharedPrefix))
    assert torch.equal(seen(tree, 20, 20), seen(shared, 20, 20))


# ---- models with a pattern of their own ----------------------------------------------------------


@pytest.mark.parametrize(("length", "block"), [(12, 4), (12, 1), (12, 12), (13, 5), (1, 3)])
def test_block_diffusion_is_made_of_its_three_parts(length: int, block: int) -> None:
    """Block diagonal, offset block causal and block causal, as the paper draws them."""
    count = -(-length // block)
    ones = torch.ones(block, block)

    def part(blocks: torch.Tensor) -> torch.Tensor:
        return torch.kron(blocks, ones)[:length, :length] > 0

    full = torch.ones(count, count)
    top = torch.cat((part(torch.eye(count)), part(full.tril(-1))), dim=1)
    bottom = torch.cat((torch.zeros(length, length, dtype=torch.bool), part(full.tril())), dim=1)
    found = seen(BlockDiffusion(length, block), 2 * length, 2 * length)
    assert torch.equal(found, torch.cat((top, bottom)))


@pytest.mark.parametrize("positions", [[0], [4, 9, 9, 20], [29, 30]], ids=repr)
def test_text_sees_the_image_that_appeared_last_before_it(positions: list[int]) -> None:
    tokens, length = 5, 30

    def keys(q: int) -> Iterable[int]:
        before = [i for i, position in enumerate(positions) if position <= q]
        return range(before[-1] * tokens, (before[-1] + 1) * tokens) if before else []

    mask = ImageCrossAttention.from_image_positions(positions, length=length, tokens=tokens)
    kv_len = len(positions) * tokens + 3  # the last three are padding
    assert torch.equal(seen(mask, length, kv_len), rows(length, kv_len, keys))


def test_intervals_of_images_may_differ_by_batch_and_overlap() -> None:
    intervals = torch.tensor([[[0, 4], [2, 9]], [[5, 5], [0, 20]]])
    found = seen(ImageCrossAttention(intervals, 3), 12, 6, batch=2)
    for matrix, pairs in zip(found[:, 0], intervals.tolist(), strict=True):
        columns = [
            torch.tensor([a <= q < e for q in range(12)]) for a, e in pairs for _ in range(3)
        ]
        assert torch.equal(matrix, torch.stack(columns, dim=1))


PARENTS: Final = [-1, 0, 0, 1, 1, 2, 4]


@pytest.mark.parametrize("parents", [PARENTS, [-1, -1, 0, 1, 3]], ids=["tree", "two roots"])
@pytest.mark.parametrize("prefix", [0, 6])
@pytest.mark.parametrize(("q_len", "kv_len"), [(7, 13), (10, 20), (4, 9)])
def test_a_node_of_a_tree_sees_the_prefix_and_the_way_to_its_root(
    parents: list[int], prefix: int, q_len: int, kv_len: int
) -> None:
    def keys(q: int) -> Iterable[int]:
        if q >= len(parents):
            return []
        way = [q]
        while parents[way[-1]] >= 0:
            way.append(parents[way[-1]])
        return [*range(prefix), *(prefix + node for node in way)]

    mask = TreeAttention.from_parents(parents, prefix=prefix)
    assert torch.equal(seen(mask, q_len, kv_len), rows(q_len, kv_len, keys))


def test_paths_of_choices_are_numbered_by_depth_and_rank() -> None:
    by_paths = TreeAttention.from_paths([[1], [0, 1, 0], [0], [0, 0], [1, 0], [0, 1]], prefix=2)
    by_parents = TreeAttention.from_parents(PARENTS, prefix=2)
    assert torch.equal(seen(by_paths, 7, 9), seen(by_parents, 7, 9))


def test_trees_and_prefixes_may_differ_by_batch() -> None:
    trees = [TreeAttention.from_parents(p).ancestors for p in ([-1, 0, 1], [-1, 0, 0])]
    assert trees[0] is not None and trees[1] is not None
    both = TreeAttention(torch.stack((trees[0], trees[1])), torch.tensor([4, 2]))
    found = seen(both, 3, 8, batch=2)
    for matrix, tree, prefix in zip(found[:, 0], trees, (4, 2), strict=True):
        assert torch.equal(matrix, seen(TreeAttention(tree, prefix), 3, 8))


def test_padding_is_not_seen_and_padded_queries_see_nothing_if_asked() -> None:
    lengths, queries = [0, 3, 9], [2, 0, 7]
    keys_only = seen(KeyPadding(torch.tensor(lengths)), 7, 9, batch=3)[:, 0]
    both = seen(KeyPadding(torch.tensor(lengths), torch.tensor(queries)), 7, 9, batch=3)[:, 0]
    for b in range(3):
        assert torch.equal(keys_only[b], rows(7, 9, lambda q, n=lengths[b]: range(n)))
        right = rows(queries[b], 9, lambda q, n=lengths[b]: range(n))
        assert torch.equal(both[b, : queries[b]], right) and not both[b, queries[b] :].any()


@pytest.mark.parametrize("dtype", [torch.bool, torch.long])
def test_a_tokenizers_attention_mask_gives_the_lengths(dtype: torch.dtype) -> None:
    tokens = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=dtype)
    found = KeyPadding.from_attention_mask(tokens).lengths
    assert found is not None and found.tolist() == [3, 1, 0]


def test_keys_in_any_order_give_the_result_of_the_ordered_text() -> None:
    """pytorch/pytorch#175545: causal by captured positions, whatever slot a key lies in."""
    order = torch.randperm(30, generator=torch.Generator().manual_seed(3))
    queries = torch.tensor([29, 4, 17])
    found = seen(ByPosition(order, queries, inner=SinkWindow(2, 6)), 3, 30)
    right = seen(SinkWindow(2, 6), 30, 30)
    assert torch.equal(found, right[queries][:, order])


def test_pages_of_a_cache_are_seen_in_the_order_of_the_text() -> None:
    """meta-pytorch/attention-gym#189: pages in any order, reused, and half full."""
    pages, lengths = torch.tensor([[3, 0, -1], [1, 5, 4]]), torch.tensor([6, 9])
    queries = lengths[:, None] - 2 + torch.arange(2)
    mask = ByPosition.from_pages(pages, lengths, pages=6, page_size=4, q_positions=queries)
    slots = [[12, 13, 14, 15, 0, 1], [4, 5, 6, 7, 20, 21, 22, 23, 16]]
    found = seen(mask, 2, 24, batch=2)[:, 0]
    for b, text in enumerate(slots):
        for q in range(2):
            visible = found[b, q].nonzero()[:, 0].tolist()
            assert visible == sorted(text[: len(text) - 1 + q])


# ---- as others write them ------------------------------------------------------------------------

# What programs for FlexAttention write, with their own parameters, and the variant that says it.
OFFSETS: Final = torch.tensor([0, 3, 7])  # documents of 3 and 4
DOCUMENT: Final = torch.tensor([0, 0, 0, 1, 1, 1, 1])
GLOBAL: Final = torch.tensor([True] + [False] * 39)


def diffusion(b: Any, h: Any, q: Any, k: Any) -> Any:
    q_block, k_block, q_noised, k_noised = q % 12 // 4, k % 12 // 4, q < 12, k < 12
    return (
        ((q_block == k_block) & (q_noised == k_noised) & q_noised)
        | ((q_block > k_block) & q_noised & ~k_noised)
        | ((q_block >= k_block) & ~q_noised & ~k_noised)
    )


def draft_training(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k < 5) | ((k >= 5) & (q // 4 == (k - 5) // 4) & ((k - 5) % 4 <= q % 4))


def local_documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    q_start, k_start = OFFSETS[DOCUMENT[q]], OFFSETS[DOCUMENT[k]]
    return (DOCUMENT[q] == DOCUMENT[k]) & ((k - k_start < 2) | (k - k_start <= q - q_start))


PORTED: Final[dict[str, tuple[Any, Any, int]]] = {
    "sliding window, w + 1 keys": (
        lambda b, h, q, k: (q - k <= 5) & (q >= k),
        SlidingWindow(6),
        40,
    ),
    "global sliding window": (
        lambda b, h, q, k: ((q - k).abs() <= 5) | GLOBAL[q] | GLOBAL[k],
        GlobalWindow(GLOBAL, 6),
        40,
    ),
    "dilated sliding window": (
        lambda b, h, q, k: ((q - k).abs() <= 7) & ((q - k).abs() % 3 == 0),
        DilatedWindow(3, 3, causal=False),
        40,
    ),
    "batchify": (
        lambda b, h, q, k: (q // 9 == k // 9) & (q % 9 >= k % 9),
        FoldedBatch(9, causal),
        40,
    ),
    "block diffusion": (diffusion, BlockDiffusion(12, 4), 24),
    "draft training": (draft_training, DraftBlocks(5, 4), 25),
    "documents with an inner mask": (local_documents, PackedDocuments(OFFSETS, PrefixLM(2)), 7),
}


@pytest.mark.parametrize("name", PORTED)
def test_what_flexattention_programs_write_has_a_variant(name: str) -> None:
    function, variant, length = PORTED[name]
    assert torch.equal(seen(variant, length, length), seen(function, length, length))


def test_positions_behind_the_documents_are_padding_not_an_error() -> None:
    """meta-pytorch/attention-gym, generate_doc_mask_mod: documents of 7 positions, 10 queries."""
    for mask in (PackedCausal(OFFSETS), PackedDocuments(OFFSETS)):
        found = seen(mask, 10, 10)
        assert found[:7, :7].sum() == 3 * 4 // 2 + 4 * 5 // 2
        assert not found[7:].any() and not found[:, 7:].any()
        q = torch.ones(1, 1, 10, 4)
        out, lse = flexfa4.attention(q, q, q, block_mask=mask, return_lse=True)
        assert not out[..., 7:, :].any() and (lse[..., 7:] == -torch.inf).all()
