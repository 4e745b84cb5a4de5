"""Block masks against masks computed in full, and what happens when their captures change."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flexfa4
from flexfa4 import BlockMask, create_block_mask
from flexfa4.block_mask import _CACHE
from flexfa4.counters import Stats, stats
from flexfa4.errors import ArgumentError, DeviceError, MaskReadsBatchError, StaleBlockMaskError
from flexfa4.frontend.tracing.trace import TRACES_PER_CODE
from flexfa4.variants import Document, SlidingWindow, causal

Mask = Callable[..., Any]
BATCH, HEADS, LONGEST = 3, 4, 300
G = torch.Generator().manual_seed(0)
IDS = torch.randint(0, 5, (LONGEST,), generator=G).sort().values
IDS_BY_BATCH = torch.randint(0, 3, (BATCH, LONGEST), generator=G)
WINDOWS = torch.tensor([1, 17, 64, 300])
TABLE = torch.rand(LONGEST, LONGEST, generator=G) < 0.01

MASKS: dict[str, Mask] = {
    "everything": lambda b, h, q, kv: q >= 0,
    "nothing": lambda b, h, q, kv: q < 0,
    "causal": lambda b, h, q, kv: q >= kv,
    "anticausal": lambda b, h, q, kv: q < kv,
    "band": lambda b, h, q, kv: (q - kv).abs() <= 20,
    "far": lambda b, h, q, kv: (q - kv) > 150,
    "stripes": lambda b, h, q, kv: kv // 32 % 2 == 0,
    "rows": lambda b, h, q, kv: q % 48 < 16,
    "dilated": lambda b, h, q, kv: (q - kv) % 7 == 0,
    "first_batch": lambda b, h, q, kv: b == 0,
    "heads": lambda b, h, q, kv: h * 32 + q >= kv,
    "batch_and_head": lambda b, h, q, kv: (b + h) % 2 * 64 + q >= kv,
    "documents": lambda b, h, q, kv: IDS[q] == IDS[kv],
    "documents_by_batch": lambda b, h, q, kv: IDS_BY_BATCH[b, q] == IDS_BY_BATCH[b, kv],
    "windows_by_head": lambda b, h, q, kv: (q - kv).abs() < WINDOWS[h],
    "table": lambda b, h, q, kv: TABLE[q, kv],
    "variants": causal & ~SlidingWindow(5) | Document(IDS),
}
LENGTHS = [(1, 1), (16, 16), (17, 33), (100, 77), (130, 257), (40, 300), (300, 40), (256, 128)]
BLOCKS: list[int | tuple[int, int]] = [16, 32, 128, 256, (16, 64), (128, 32)]


def dense(mask: Mask, shape: tuple[int, int, int, int]) -> torch.Tensor:
    """Return the mask as a bool tensor, by calling it on index tensors."""
    index = [torch.arange(n).view([-1] + [1] * (3 - i)) for i, n in enumerate(shape)]
    return torch.as_tensor(mask(*index)).expand(shape)


def kinds_of(mask: torch.Tensor, block_size: tuple[int, int]) -> torch.Tensor:
    """Return 0, 1, 2 for empty, partial and full blocks, one block at a time."""
    b, h, q, kv = mask.shape
    rows, columns = (range(0, n, size) for n, size in zip((q, kv), block_size, strict=True))
    kinds = torch.zeros(b, h, len(rows), len(columns), dtype=torch.int8)
    for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
        block = mask[:, :, row : row + block_size[0], column : column + block_size[1]].flatten(2)
        kinds[:, :, i, j] = block.any(-1).to(torch.int8) + block.all(-1).to(torch.int8)
    return kinds


def check(made: BlockMask, mask: Mask) -> None:
    expected = dense(mask, made.shape)
    assert torch.equal(made.to_dense(), expected)
    kinds = kinds_of(expected, made.block_size)
    assert made.block_kinds().dtype is torch.int8 and torch.equal(made.block_kinds(), kinds)
    share = float((kinds > 0).double().mean()) if kinds.numel() else 0.0
    assert made.density == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize("name", MASKS)
@given(
    lengths=st.sampled_from(LENGTHS),
    block_size=st.sampled_from(BLOCKS),
    counts=st.sampled_from([(BATCH, HEADS), (1, 1), (2, HEADS)]),
)
def test_blocks_are_those_of_the_whole_mask(
    name: str, lengths: tuple[int, int], block_size: Any, counts: tuple[int, int]
) -> None:
    made = create_block_mask(
        MASKS[name],
        batch=counts[0],
        heads=counts[1],
        q_len=lengths[0],
        kv_len=lengths[1],
        block_size=block_size,
    )
    assert made.shape == (*counts, *lengths)
    check(made, MASKS[name])


@pytest.mark.parametrize("name", ["causal", "band", "table", "documents", "variants"])
def test_without_batch_and_heads_one_mask_stands_for_all(name: str) -> None:
    made = create_block_mask(MASKS[name], q_len=100, kv_len=77, block_size=32)
    assert made.batch is None and made.heads is None and made.shape == (1, 1, 100, 77)
    check(made, MASKS[name])


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 40), (40, 0), (0, 0)])
def test_a_mask_of_no_scores_has_no_blocks(q_len: int, kv_len: int) -> None:
    made = create_block_mask(causal, batch=0, heads=2, q_len=q_len, kv_len=kv_len)
    assert made.shape == (0, 2, q_len, kv_len) and made.density == 0.0
    assert made.block_kinds().shape[:2] == (0, 2)


def test_what_it_was_made_for_can_be_read() -> None:
    made = create_block_mask(causal, heads=4, q_len=256, kv_len=512, block_size=(64, 128))
    assert (made.batch, made.heads, made.q_len, made.kv_len) == (None, 4, 256, 512)
    assert made.block_size == (64, 128) and made.mask is causal
    assert made.device == torch.device("cpu") and not made.captures_tensors
    assert repr(made) == (
        "BlockMask(batch=1, heads=4, q_len=256, kv_len=512, "
        "block_size=64x128, 37.5% of the blocks not empty)"
    )


def test_what_is_returned_can_be_changed_without_harm() -> None:
    made = create_block_mask(causal, q_len=64, kv_len=64, block_size=32)
    made.block_kinds().zero_()
    made.to_dense().zero_()
    check(made, MASKS["causal"])


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), None])
def test_the_device_may_be_named(device: Any) -> None:
    made = create_block_mask(MASKS["documents"], q_len=64, kv_len=64, device=device)
    assert made.device == IDS.device and made.captures_tensors


def test_a_mask_without_captures_serves_every_device_and_one_with_captures_its_own() -> None:
    other = torch.device("meta")
    made = create_block_mask(causal, q_len=64, kv_len=64)
    moved = made.blocks_on(other)
    assert moved.values.device == other and moved is made.blocks_on(other)
    assert moved.kinds is made.blocks_on(made.device).kinds
    assert made.blocks_on(made.device).values.device == made.device
    assert moved.caches is not made.blocks_on(made.device).caches
    captured = create_block_mask(MASKS["documents"], q_len=64, kv_len=64)
    assert captured.blocks_on(other).values.device == IDS.device


def test_a_mask_that_reads_the_sizes_of_the_call_gets_them() -> None:
    heads: Any = flexfa4.num_heads
    made = create_block_mask(
        lambda b, h, q, kv: q + flexfa4.kv_len - flexfa4.q_len >= kv + heads,
        heads=HEADS,
        q_len=50,
        kv_len=80,
    )
    check(made, lambda b, h, q, kv: q + 30 >= kv + HEADS)
    assert made.counts_heads and not create_block_mask(causal, q_len=8, kv_len=8).counts_heads


def test_every_count_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(MaskReadsBatchError, match=r"batch=query.shape\[0\], heads=query.shape\[1"):
        create_block_mask(MASKS["batch_and_head"], q_len=8, kv_len=8)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"batch": -1}, "batch is -1"),
        ({"heads": 2.0}, "heads is 2.0"),
        ({"heads": 0}, "heads is 0"),
        ({"q_len": True}, "q_len is True"),
        ({"kv_len": "12"}, "kv_len is '12'"),
        ({"block_size": 8}, "block_size is 8"),
        ({"block_size": (16, 24)}, "block_size is a tuple"),
        ({"block_size": (16, 16, 16)}, "block_size is a tuple"),
        ({"block_size": True}, "block_size is True"),
        ({"device": 3.5}, "device is 3.5"),
        ({"mask": 7}, "mask is 7"),
        ({"mask": TABLE}, r"mask is a Tensor of shape \(300, 300\)"),
    ],
)
def test_an_argument_out_of_its_range_is_named(arguments: dict[str, Any], found: str) -> None:
    with pytest.raises(ArgumentError, match=found):
        create_block_mask(**{"mask": causal, "q_len": 8, "kv_len": 8, **arguments})


def test_sizes_may_be_numbers_of_other_libraries() -> None:
    made = create_block_mask(causal, q_len=torch.tensor(40), kv_len=torch.tensor(30))  # type: ignore[arg-type]
    check(made, MASKS["causal"])


# ---- snapshots -----------------------------------------------------------------------------------


def inputs(batch: int = 1, heads: int = 2, length: int = 40) -> list[torch.Tensor]:
    return [torch.randn(batch, heads, length, 16, generator=G) for _ in range(3)]


def attend(tensors: list[torch.Tensor], mask: Any) -> torch.Tensor:
    out = flexfa4.attention(*tensors, block_mask=mask)
    assert isinstance(out, torch.Tensor)
    return out


def reference(tensors: list[torch.Tensor], mask: Mask) -> torch.Tensor:
    q, k, v = tensors
    shape = (*q.shape[:3], k.shape[2])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, dense(mask, shape))


def test_layers_and_calls_share_a_block_mask() -> None:
    made = create_block_mask(MASKS["band"], q_len=40, kv_len=40)
    attend(inputs(), made)
    before = stats()
    for batch, heads in ((1, 2), (3, 2), (2, 5)):
        tensors = inputs(batch, heads)
        torch.testing.assert_close(attend(tensors, made), reference(tensors, MASKS["band"]))
    assert stats() - before == Stats(calls=3)


class Holder:
    """An object whose attributes a mask reads."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def holder(**values: Any) -> Any:
    return Holder(**values)


def reads_ids(c: Any) -> Mask:
    return lambda b, h, q, kv: c.ids[q] == c.ids[kv]


def change_ids(c: Any) -> None:
    c.ids[7] += 1


def replace_ids(c: Any) -> None:
    c.ids = c.ids.flip(0)


def swap_data(c: Any) -> None:
    c.ids.data = c.ids.data + torch.arange(40) % 2


CHANGES: dict[str, tuple[Callable[[Any], Mask], Callable[[Any], None]]] = {
    "a number": (
        lambda c: lambda b, h, q, kv: q - kv < c.window,
        lambda c: setattr(c, "window", 9),
    ),
    "a number among tensors": (
        lambda c: lambda b, h, q, kv: (q - kv < c.window) & (c.ids[q] == c.ids[kv]),
        lambda c: setattr(c, "window", 9),
    ),
    "a choice": (
        lambda c: lambda b, h, q, kv: q >= kv if c.causal else q <= kv,
        lambda c: setattr(c, "causal", False),
    ),
    "a function": (
        lambda c: lambda b, h, q, kv: c.inner(q, kv),
        lambda c: setattr(c, "inner", lambda q, kv: q > kv),
    ),
    "a tensor in place": (reads_ids, change_ids),
    "another tensor": (reads_ids, replace_ids),
    "a tensor of another length": (reads_ids, lambda c: setattr(c, "ids", torch.arange(64) // 9)),
    "the memory of a tensor": (reads_ids, swap_data),
    "the base of a view": (lambda c: lambda b, h, q, kv: c.ids[:40][q] == c.ids[kv], change_ids),
    "the base of a view made before": (
        lambda c: reads_ids(holder(ids=c.ids.view(-1))),
        change_ids,
    ),
    "what a tensor is computed of": (
        lambda c: lambda b, h, q, kv: (c.ids % 3)[q] == (c.ids % 3)[kv],
        change_ids,
    ),
    "a list": (lambda c: lambda b, h, q, kv: q - kv < c.list[0], lambda c: c.list.insert(0, 2)),
}


def captures() -> Any:
    return holder(
        window=5,
        causal=True,
        inner=lambda q, kv: q >= kv,
        ids=torch.arange(40) // 7,
        list=[5, 6],
    )


@pytest.mark.parametrize("what", CHANGES)
def test_a_block_mask_is_refused_after_its_captures_changed(what: str) -> None:
    make, change = CHANGES[what]
    c = captures()
    made = create_block_mask(make(c), q_len=40, kv_len=40)
    tensors = inputs()
    attend(tensors, made)
    change(c)
    with pytest.raises(
        StaleBlockMaskError, match=r"create_block_mask\(mask, q_len=40, kv_len=40\)"
    ):
        attend(tensors, made)
    again = create_block_mask(made.mask, q_len=40, kv_len=40)
    torch.testing.assert_close(attend(tensors, again), reference(tensors, make(c)))


@pytest.mark.parametrize("what", ["inference tensor", "numpy array"])
def test_changes_that_torch_does_not_count_are_found_by_content(what: str) -> None:
    with torch.inference_mode():
        ids: Any = torch.arange(40) // 7
    if what == "numpy array":
        ids = pytest.importorskip("numpy").arange(40) // 7
    c = holder(ids=ids)
    made = create_block_mask(reads_ids(c), q_len=40, kv_len=40)
    tensors = inputs()
    attend(tensors, made)
    with torch.inference_mode():
        c.ids[3] = 9
    with pytest.raises(StaleBlockMaskError, match="captured tensor"):
        attend(tensors, made)


def test_a_capture_that_was_changed_and_has_its_value_again_is_current() -> None:
    c = captures()
    made = create_block_mask(CHANGES["a number among tensors"][0](c), q_len=40, kv_len=40)
    c.window, c.ids = 8, c.ids + 1
    with pytest.raises(StaleBlockMaskError):
        made.check_current()
    c.window, c.ids = 5, c.ids - 1
    made.check_current()


def test_a_captured_nan_stays_what_it_is() -> None:
    c = holder(limit=float("nan"))
    made = create_block_mask(lambda b, h, q, kv: ~(q - kv > c.limit), q_len=8, kv_len=8)
    made.check_current()
    c.limit = 1.0
    with pytest.raises(StaleBlockMaskError, match=r"nan then, 1\.0 now"):
        made.check_current()


def test_a_trace_that_was_dropped_and_made_again_is_the_same_mask() -> None:
    c = holder(kind="causal")
    made = create_block_mask(
        lambda b, h, q, kv: q >= kv if c.kind == "causal" else q < kv, q_len=8, kv_len=8
    )
    for i in range(TRACES_PER_CODE + 1):
        c.kind = f"other {i}"
        with pytest.raises(StaleBlockMaskError, match="specialised"):
            made.check_current()
    c.kind = "causal"
    before = stats()
    made.check_current()
    assert (stats() - before).traces == 1


def test_a_text_is_a_snapshot_by_itself() -> None:
    ids = torch.arange(40) // 7
    made = create_block_mask(flexfa4.parse("ids[q] == ids[kv]", ids=ids), q_len=40, kv_len=40)
    made.check_current()
    ids[3] = 9
    with pytest.raises(StaleBlockMaskError):
        made.check_current()


def test_the_backward_pass_sees_the_mask_of_its_forward_pass() -> None:
    ids = torch.arange(40) // 7
    tensors = [t.requires_grad_() for t in inputs()]
    out = attend(tensors, lambda b, h, q, kv: ids[q] == ids[kv])
    expected = torch.autograd.grad(
        reference(tensors, lambda b, h, q, kv: ids[q] == ids[kv]).sum(), tensors
    )
    ids.zero_()
    torch.testing.assert_close(torch.autograd.grad(out.sum(), tensors), expected)


def test_the_stale_error_is_raised_in_other_processes_as_well() -> None:
    made = create_block_mask(reads_ids(c := captures()), q_len=40, kv_len=40)
    c.ids[0] = 5
    with pytest.raises(StaleBlockMaskError) as caught:
        made.check_current()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# ---- masks given to attention as functions -------------------------------------------------------


def classified(tensors: list[torch.Tensor], mask: Mask) -> int:
    """Return how often a call evaluated the mask to find its blocks; check what it computed."""
    before = stats()
    out = attend(tensors, mask)
    made = (stats() - before).block_masks
    torch.testing.assert_close(out, reference(tensors, mask))
    return made


def test_a_function_is_classified_once_and_again_only_when_a_capture_changes() -> None:
    c = captures()
    mask: Mask = lambda b, h, q, kv: (c.ids[q] == c.ids[kv]) & (q - kv < c.window)  # noqa: E731
    tensors = inputs()
    assert [classified(tensors, mask) for _ in range(3)] == [1, 0, 0]
    c.window = 3
    assert [classified(tensors, mask) for _ in range(2)] == [1, 0]
    c.window = 5  # still known from before
    assert classified(tensors, mask) == 0
    c.ids[4] = 8
    assert [classified(tensors, mask) for _ in range(2)] == [1, 0]
    c.ids = torch.arange(40) // 11
    assert [classified(tensors, mask) for _ in range(2)] == [1, 0]
    c.ids.data = torch.arange(40) // 3
    assert [classified(tensors, mask) for _ in range(2)] == [1, 0]


def test_a_view_made_by_the_mask_is_the_same_tensor_on_each_call() -> None:
    ids = torch.arange(120).view(3, 40) // 7
    mask: Mask = lambda b, h, q, kv: ids[1][q] == ids[1][kv]  # noqa: E731
    tensors = inputs()
    assert [classified(tensors, mask) for _ in range(2)] == [1, 0]
    ids[1, 5] = 30
    assert [classified(tensors, mask) for _ in range(2)] == [1, 0]
    assert classified(tensors, lambda b, h, q, kv: ids[2][q] == ids[2][kv]) == 1


def test_nothing_is_kept_for_tensors_whose_changes_torch_does_not_count() -> None:
    with torch.inference_mode():
        ids = torch.arange(40) // 7
    mask: Mask = lambda b, h, q, kv: ids[q] == ids[kv]  # noqa: E731
    tensors = inputs()
    assert [classified(tensors, mask) for _ in range(2)] == [1, 1]
    with torch.inference_mode():
        ids[5] = 9
    assert classified(tensors, mask) == 1


def test_a_tensor_that_the_mask_computes_is_seen_anew_on_each_call() -> None:
    ids = torch.arange(40) // 7
    mask: Mask = lambda b, h, q, kv: (ids % 3)[q] == (ids % 3)[kv]  # noqa: E731
    tensors = inputs()
    assert classified(tensors, mask) == 1
    ids[5] = 9
    assert classified(tensors, mask) == 1


def test_a_mask_is_classified_again_for_other_sizes_only_if_it_can_differ() -> None:
    mask: Mask = lambda b, h, q, kv: q - kv < 11  # noqa: E731
    assert classified(inputs(), mask) == 1
    assert classified(inputs(batch=3), mask) == 0
    assert classified(inputs(heads=5), mask) == 0
    assert classified(inputs(length=41), mask) == 1
    by_head: Mask = lambda b, h, q, kv: q - kv < 3 + h  # noqa: E731
    assert classified(inputs(), by_head) == 1
    assert classified(inputs(batch=3), by_head) == 0
    assert classified(inputs(heads=5), by_head) == 1


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 1), (4, 4)])
def test_a_function_may_read_the_number_of_key_heads(heads: int, kv_heads: int) -> None:
    q = torch.randn(2, heads, 40, 16, generator=G)
    k, v = (torch.randn(2, kv_heads, 40, 16, generator=G) for _ in range(2))
    count: Any = flexfa4.num_kv_heads
    found = attend([q, k, v], lambda b, h, q, kv: q - kv >= h // (flexfa4.num_heads // count))
    k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
    shape = (2, heads, 40, 40)
    seen = dense(lambda b, h, q, kv: q - kv >= h // (heads // kv_heads), shape)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen)
    torch.testing.assert_close(found, expected.nan_to_num(0.0))


def test_captures_of_a_function_must_be_where_the_call_is() -> None:
    ids = torch.arange(40, device="meta")
    with pytest.raises(DeviceError, match=r"captured tensor `ids` is on meta, the mask on cpu"):
        attend(inputs(), lambda b, h, q, kv: ids[q] == ids[kv])


# ---- changes that torch does not count -----------------------------------------------------------


@pytest.mark.parametrize("through", ["numpy", "data"])
def test_a_change_that_torch_does_not_count_is_seen(through: str) -> None:
    ids = torch.zeros(16, dtype=torch.int64)

    def change() -> None:
        new = torch.arange(16) // 4
        if through == "numpy":
            ids.numpy()[:] = new.numpy()
        else:
            ids.data.copy_(new)

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return ids[q_idx] == ids[kv_idx]

    x = torch.randn(1, 1, 16, 4, generator=torch.Generator().manual_seed(0))
    made = flexfa4.create_block_mask(mask, q_len=16, kv_len=16)
    before = flexfa4.attention(x, x, x, block_mask=mask)
    change()
    after = flexfa4.attention(x, x, x, block_mask=mask)
    assert not torch.equal(before, after)
    fresh = flexfa4.create_block_mask(mask, q_len=16, kv_len=16)
    assert torch.equal(after, flexfa4.attention(x, x, x, block_mask=fresh))
    with pytest.raises(flexfa4.errors.StaleBlockMaskError):
        flexfa4.attention(x, x, x, block_mask=made)


def test_the_sign_of_zero_is_part_of_a_captured_number() -> None:
    w = 0.0

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.where(q_idx >= 0, 1.0, 1.0) / w > 0

    x = torch.randn(1, 1, 4, 4)
    made = flexfa4.create_block_mask(mask, q_len=4, kv_len=4)
    assert flexfa4.attention(x, x, x, block_mask=mask).any()
    w = -0.0
    assert not flexfa4.attention(x, x, x, block_mask=mask).any()
    with pytest.raises(flexfa4.errors.StaleBlockMaskError):
        made.check_current()


def test_views_that_differ_in_strides_only_do_not_share_a_mask() -> None:
    table = torch.eye(4, dtype=torch.bool)
    table[0, 3] = True

    def of(t: torch.Tensor) -> torch.Tensor:
        x = torch.randn(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        out = flexfa4.attention(x, x, x, block_mask=lambda b, h, q_idx, kv_idx: t[q_idx, kv_idx])
        assert isinstance(out, torch.Tensor)
        return out

    assert not torch.equal(of(table.view(4, 4)), of(table.T))


def test_the_cache_of_masks_is_bounded() -> None:
    x = torch.randn(1, 1, 4, 4)
    for i in range(_CACHE.size + 5):
        ids = torch.full((4,), i)
        flexfa4.attention(x, x, x, block_mask=lambda b, h, q, kv, ids=ids: ids[q] == ids[kv])
    assert len(_CACHE) == _CACHE.size


def test_a_default_device_elsewhere_does_not_matter() -> None:
    x = torch.randn(1, 1, 64, 4)
    expected = flexfa4.attention(x, x, x, block_mask=causal)
    with torch.device("meta"):
        assert torch.equal(flexfa4.attention(x, x, x, block_mask=causal), expected)
