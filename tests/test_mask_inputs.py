"""Bad input of block masks: messages name what is wrong, its value, what is allowed, what to do.

The catalogue's own tests (`test_errors`) hold one message of each class against a golden text; here
are the many values that must lead to them, and that nothing has been computed when they do.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch

import flexfa4
from flexfa4 import BlockMask, create_block_mask, errors, stats
from flexfa4.errors import ArgumentError, FlexFA4Error
from flexfa4.variants import Document, causal

Mask = Callable[..., Any]


def message_of(kind: type[FlexFA4Error], call: Callable[[], Any]) -> str:
    """Return the message of an error, which says what was found, what is allowed, what to do."""
    before = stats()
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert (stats() - before).block_lists == 0, "blocks were looked for all the same"
    message = str(caught.value)
    for label in ("  allowed: ", "  instead: "):
        (text,) = re.findall(rf"^{label}(.+)$", message, re.MULTILINE)
        assert text.strip()
    return message


def qkv(q_len: int, kv_len: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs of one batch entry and two heads."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 16, generator=g) for n in (q_len, kv_len, kv_len))
    return q, k, v


# ---- lengths, counts and block sizes -------------------------------------------------------------

SIZES: Final[dict[str, Any]] = {"q_len": 8, "kv_len": 12}
NO_INTEGERS: Final = {
    "-1": -1, "-2**70": -(2**70), "12.0": 12.0, "nan": math.nan, "text": "12", "bool": True,
    "list": [12], "tensor of two": torch.tensor([3, 4]), "tensor of a float": torch.tensor(3.0),
}  # fmt: skip


@pytest.mark.parametrize("value", NO_INTEGERS.values(), ids=NO_INTEGERS)
@pytest.mark.parametrize(
    ("name", "low", "source"),
    [
        ("q_len", 0, "query.shape[2]"),
        ("kv_len", 0, "key.shape[2]"),
        ("batch", 0, "query.shape[0]"),
        ("heads", 1, "query.shape[1]"),
    ],
)
def test_a_length_or_count_that_is_no_integer_in_its_range_is_refused(
    name: str, low: int, source: str, value: Any
) -> None:
    message = message_of(ArgumentError, lambda: create_block_mask(causal, **{**SIZES, name: value}))
    assert message.startswith(f"{name} is {errors.describe(value)}\n")
    assert f"allowed: an integer, at least {low}" in message
    assert f"instead: {name}={source}" in message


@pytest.mark.parametrize("name", ["q_len", "kv_len"])
def test_a_length_of_none_is_refused_and_a_count_of_none_is_not(name: str) -> None:
    assert f"{name} is None" in message_of(
        ArgumentError, lambda: create_block_mask(causal, **{**SIZES, name: None})
    )
    made = create_block_mask(causal, batch=None, heads=None, **SIZES)
    assert made.shape == (1, 1, 8, 12)


def test_no_heads_are_refused_and_no_batch_entries_are_not() -> None:
    assert "heads is 0" in message_of(
        ArgumentError, lambda: create_block_mask(causal, heads=0, **SIZES)
    )
    made = create_block_mask(lambda b, h, q, kv: q >= kv + b, batch=0, **SIZES)
    assert made.block_kinds().shape == (0, 1, 1, 1) and made.density == 0.0


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 12), (8, 0), (0, 0)])
def test_lengths_of_zero_are_lengths_like_any_other(q_len: int, kv_len: int) -> None:
    ids = torch.zeros(12, dtype=torch.long)
    q, k, v = qkv(q_len, kv_len)
    for mask in (causal, Document(ids), lambda b, h, q, kv: (q * kv) % 3 == 0):
        made = create_block_mask(mask, q_len=q_len, kv_len=kv_len)
        assert made.block_kinds().shape == (1, 1, min(q_len, 1), min(kv_len, 1))
        assert not made.block_kinds().any() and made.density == 0.0
        assert made.to_dense().shape == (1, 1, q_len, kv_len)
        assert not flexfa4.attention(q, k, v, block_mask=made).any()


def test_integers_of_other_libraries_are_integers() -> None:
    numpy = pytest.importorskip("numpy")
    sizes = {"q_len": numpy.int64(8), "kv_len": torch.tensor(12), "block_size": numpy.int32(16)}
    made = create_block_mask(causal, **sizes)
    assert (made.q_len, made.kv_len, made.block_size) == (8, 12, (16, 16))


BLOCK_SIZES: Final = {
    "0": 0, "-16": -16, "8": 8, "100": 100, "128.0": 128.0, "nan": math.nan, "text": "128",
    "None": None, "bool": True, "three": (16, 16, 16), "one of them": (128, 24), "list": [16, 24],
    "floats": (16.0, 16), "tensor of two": torch.tensor([16, 16]),
}  # fmt: skip


@pytest.mark.parametrize("value", BLOCK_SIZES.values(), ids=BLOCK_SIZES)
def test_a_block_size_that_is_no_multiple_of_16_is_refused(value: Any) -> None:
    made = create_block_mask(causal, **SIZES)
    for call in (
        lambda: create_block_mask(causal, **SIZES, block_size=value),
        lambda: made.with_block_size(value),
    ):
        message = message_of(ArgumentError, call)
        assert message.startswith(f"block_size is {errors.describe(value)}\n")
        assert "allowed: a multiple of 16, or a pair of them (queries, keys)" in message
        assert "instead: block_size=128" in message


@pytest.mark.parametrize("value", [1 << 49, (16, 1 << 70)])
def test_a_block_size_beyond_any_length_is_refused(value: Any) -> None:
    for call in (
        lambda: create_block_mask(causal, **SIZES, block_size=value),
        lambda: create_block_mask(causal, **SIZES).with_block_size(value),
    ):
        message = message_of(ArgumentError, call)
        assert "allowed: a multiple of 16 and at most 2**48, or a pair of them" in message


@pytest.mark.parametrize("size", [1 << 20, 1 << 40])
def test_a_block_may_be_larger_than_the_mask(size: int) -> None:
    for mask in (causal, Document(torch.arange(12) // 5)):
        made = create_block_mask(mask, **SIZES, block_size=size)
        assert made.block_kinds().tolist() == [[[[1]]]]


# ---- loads ---------------------------------------------------------------------------------------


def ids_of(size: int) -> Mask:
    """Return the mask of documents whose ids are given for some positions only."""
    ids = torch.arange(size) // 4
    return lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx]


def bucketed(size: int) -> Mask:
    """Return a mask with a table of distances, clamped at one end only."""
    allowed = torch.ones(size, dtype=torch.bool)
    return lambda b, h, q_idx, kv_idx: allowed[(q_idx - kv_idx).clamp(min=0)]


def renamed(size: int) -> Mask:
    """Return a mask whose index is what another tensor holds."""
    ids, kinds = torch.tensor([0, 2, 5]).repeat(4), torch.arange(size)
    return lambda b, h, q_idx, kv_idx: kinds[ids[q_idx]] == kinds[ids[kv_idx]]


def by_head(size: int) -> Mask:
    width = torch.arange(size)
    return lambda b, h, q_idx, kv_idx: q_idx - kv_idx < width[h]


def pairs(size: int) -> Mask:
    table = torch.ones(8, size, dtype=torch.bool)
    return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & table[q_idx, kv_idx]


# A mask of captures of a size, a size that suffices for 8 queries, 12 keys and 4 heads, one that
# does not, and the name of the tensor, what is read where, and what is needed then.
LOADS: Final = {
    "documents": (ids_of, 12, 6, "ids", "has size 6 in dimension 0", "0 to 7"),
    "distances": (bucketed, 8, 5, "allowed", "has size 5 in dimension 0", "0 to 7"),
    "ids of ids": (renamed, 6, 5, "kinds", "has size 5 in dimension 0", "0 to 5"),
    "heads": (by_head, 4, 3, "width", "has size 3 in dimension 0", "0 to 3"),
    "hidden": (pairs, 12, 11, "table", "has size 11 in dimension 1", "0 to 11"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOADS)
def test_a_load_out_of_range_is_refused_with_tensor_size_and_the_indices_needed(name: str) -> None:
    make, enough, short, tensor, size, needed = LOADS[name]
    counts = {"batch": 1, "heads": 4, **SIZES}
    assert create_block_mask(make(enough), **counts).block_kinds().shape == (1, 4, 1, 1)
    message = message_of(
        errors.MaskOutOfRangeError, lambda: create_block_mask(make(short), **counts)
    )
    found = message.partition("\n")[0]
    assert f"captured tensor `{tensor}` {size}" in found
    assert f"indices {needed}" in message
    assert f"allowed: indices from {-short} to {short - 1}" in message
    assert "make the tensor long enough" in message or "one element for each" in message


def test_one_lane_out_of_range_among_millions_is_found() -> None:
    ids = torch.zeros(1_000_000, dtype=torch.long)
    mask = ids_of(1_000_000)
    create_block_mask(mask, q_len=1_000_000, kv_len=1_000_000)
    message = message_of(
        errors.MaskOutOfRangeError,
        lambda: create_block_mask(mask, q_len=1_000_000, kv_len=1_000_001),
    )
    assert "has size 1000000 in dimension 0, but was read at index 1000000" in message
    ids[777_777] = 5

    def jump(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return ids[ids[q_idx] * 200_000] <= kv_idx

    message = message_of(
        errors.MaskOutOfRangeError,
        lambda: create_block_mask(jump, q_len=1_000_000, kv_len=1_000_000),
    )
    assert "read at index 1000000" in message and "indices 0 to 1000000" in message


def test_a_variant_whose_tensor_is_too_short_is_named_with_its_parameter() -> None:
    message = message_of(
        errors.MaskOutOfRangeError,
        lambda: create_block_mask(Document(torch.zeros(10, dtype=torch.long)), **SIZES),
    )
    assert "Document.ids has size 10" in message and "give Document.ids a size of 12" in message


# ---- arithmetic that 64 bits do not hold ---------------------------------------------------------


@pytest.mark.parametrize(
    "mask",
    [
        lambda b, h, q, kv: q * 2**57 >= kv * 2**57,
        lambda b, h, q, kv: q + (2**63 - 50) >= kv,
        lambda b, h, q, kv: kv - 2**62 - 2**62 <= q - 5,
        lambda b, h, q, kv: (q - 2**62) * 2 <= kv - 3,
        lambda b, h, q, kv: (kv << 58) > (q << 57),
        lambda b, h, q, kv: (q * 2**56).abs() < (kv * 2**57).abs(),
    ],
)
def test_sums_and_products_beyond_64_bits_wrap_as_in_torch(mask: Mask) -> None:
    made = create_block_mask(mask, q_len=200, kv_len=170, block_size=16)
    index = torch.arange(200)[:, None], torch.arange(170)
    dense = torch.as_tensor(mask(0, 0, *index)).expand(200, 170)
    assert torch.equal(made.to_dense()[0, 0], dense)
    found = [(not tile.all()) + 2 * bool(tile.all()) if tile.any() else 0 for tile in
             (t for row in dense.split(16) for t in row.split(16, 1))]  # fmt: skip
    assert made.block_kinds().flatten().tolist() == found


@pytest.mark.parametrize("name", ["q_len", "kv_len"])
def test_a_length_near_the_end_of_64_bits_is_refused(name: str) -> None:
    for value in (2**48 + 1, 2**62, 2**63 - 1, 2**64):
        message = message_of(
            ArgumentError,
            lambda value=value: create_block_mask(causal, **{**SIZES, name: value}),
        )
        assert f"{name} is {errors.describe(value)}\n" in message
        assert "at least 0 and at most 2**48" in message


def test_products_beyond_64_bits_wrap_at_lengths_where_they_come_to_that() -> None:
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx * 2**51 >= kv_idx * 2**51

    n, block = 1 << 13, 256
    made = create_block_mask(mask, q_len=n, kv_len=n, block_size=block)
    first = torch.arange(0, n, block)
    low = torch.where(first < n // 2, first, first - n)  # what the products order by
    high = low + block - 1
    kinds = (high[:, None] >= low).to(torch.int8) + (low[:, None] >= high)
    assert torch.equal(made.block_kinds()[0, 0], kinds)
    short = create_block_mask(mask, q_len=n // 2, kv_len=n // 2, block_size=block)
    half = len(kinds) // 2
    assert torch.equal(short.block_kinds()[0, 0], kinds[:half, :half])


# ---- more than can be computed -------------------------------------------------------------------

LONG: Final = 1 << 48
TOO_MUCH: Final[dict[str, tuple[Callable[[BlockMask], Any], str, str]]] = {
    "lists": (lambda m: m.lists(), f"{LONG // 128:,}", "a larger block_size"),
    "counts": (lambda m: m.counts(), f"{LONG // 128:,}", "a larger block_size"),
    "order": (lambda m: m.order(), f"{LONG // 128:,}", "a larger block_size"),
    "density": (lambda m: m.density, f"{LONG // 128:,}", "a larger block_size"),
    "few blocks of many positions": (
        lambda m: m.with_block_size(1 << 40).counts(), f"{LONG:,}", "first:last"
    ),
    "table of blocks": (lambda m: m.block_kinds(), f"{(LONG // 128) ** 2:,}", "lists()"),
    "table of scores": (lambda m: m.to_dense(), f"{LONG**2:,}", "block_kinds()"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_no_machine_can_hold_is_refused_and_the_block_mask_itself_is_not(name: str) -> None:
    ask, found, rewrite = TOO_MUCH[name]
    made = create_block_mask(causal, q_len=LONG, kv_len=LONG)
    message = message_of(ArgumentError, lambda: ask(made))
    assert f" is {found}\n" in message and rewrite in message
    part = made[:, :, LONG - 10 :].with_block_size((16, 1 << 40))
    assert part.block_kinds().flatten().tolist() == [2] * 255 + [1]


def test_lists_of_a_mask_without_a_closed_form_are_refused_before_it_is_analysed() -> None:
    ids = torch.zeros(9, dtype=torch.long)
    message = message_of(
        ArgumentError,
        lambda: create_block_mask(
            lambda b, h, q, kv: (q * kv) % 7 < ids[(q + kv) % 9], q_len=LONG, kv_len=LONG
        ),
    )
    assert "the number of rows or columns of blocks" in message and f"{LONG // 128:,}" in message


# ---- block masks for something else --------------------------------------------------------------


def test_a_block_mask_for_other_lengths_is_refused_with_both() -> None:
    made = create_block_mask(causal, q_len=8, kv_len=12)
    for other in ((7, 12), (8, 13), (9, 12), (0, 12), (12, 8)):
        message = message_of(
            errors.BlockMaskLengthsError,
            lambda other=other: flexfa4.attention(*qkv(*other), block_mask=made),
        )
        assert "made for q_len=8, kv_len=12" in message
        assert f"query has length {other[0]} and key {other[1]}" in message
        assert f"create_block_mask(mask, q_len={other[0]}, kv_len={other[1]})" in message


def test_a_part_of_a_block_mask_is_one_for_other_lengths() -> None:
    part = create_block_mask(causal, q_len=8, kv_len=12)[:, :, 2:5]
    q, k, v = qkv(8, 12)
    assert "made for q_len=3, kv_len=12" in message_of(
        errors.BlockMaskLengthsError, lambda: flexfa4.attention(q, k, v, block_mask=part)
    )
    found = flexfa4.attention(q[:, :, 2:5], k, v, block_mask=part)
    same = flexfa4.attention(q[:, :, 2:5], k, v, block_mask=lambda b, h, i, j: i + 2 >= j)
    assert torch.equal(found, same)


def test_a_block_mask_on_another_device_is_refused_where_it_has_tensors() -> None:
    ids = torch.arange(12) // 5
    elsewhere = torch.empty(1, 2, 8, 16, device="meta"), torch.empty(1, 2, 12, 16, device="meta")
    made = create_block_mask(Document(ids), **SIZES)
    message = message_of(errors.DeviceError, lambda: made.check_fits(*elsewhere))
    assert "the block mask is on cpu, query on meta" in message
    assert "one device for all tensors of a call" in message
    create_block_mask(causal, **SIZES).check_fits(*elsewhere)  # holds no tensor


# ---- block masks of values that have changed -----------------------------------------------------


class Model:
    """What a mask may capture: a number, a choice, a list, a tensor."""

    def __init__(self) -> None:
        self.window = 4
        self.causal = True
        self.sinks = [0, 3]
        self.ids = torch.arange(12) // 5

    def mask(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        seen = (self.ids[q_idx] == self.ids[kv_idx]) & (q_idx - kv_idx < self.window)
        seen = seen | (kv_idx == self.sinks[0]) | (kv_idx == self.sinks[1])
        return seen & (q_idx >= kv_idx) if self.causal else seen


def _in_place(model: Model) -> None:
    model.ids[3] = 7


CHANGES: Final[dict[str, tuple[Callable[[Model], None], str]]] = {
    "a number": (lambda m: setattr(m, "window", 5), "window` (4 then, 5 now)"),
    "a choice": (lambda m: setattr(m, "causal", False), "that the mask was specialised for"),
    "an element": (lambda m: m.sinks.__setitem__(1, 2), "(3 then, 2 now)"),
    "a tensor in place": (_in_place, "the captured tensor `ids`"),
    "another tensor": (lambda m: setattr(m, "ids", m.ids + 1), "the captured tensor `ids`"),
    "another length": (lambda m: setattr(m, "ids", m.ids[:-1]), "the captured tensor `ids`"),
    "another dtype": (lambda m: setattr(m, "ids", m.ids.int()), "the captured tensor `ids`"),
    "through numpy": (lambda m: m.ids.numpy().__setitem__(3, 7), "the captured tensor `ids`"),
    "its data": (lambda m: setattr(m.ids, "data", m.ids.flip(0)), "the captured tensor `ids`"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_block_mask_is_refused_once_what_it_captured_has_changed(name: str) -> None:
    change, says = CHANGES[name]
    model = Model()
    made = create_block_mask(model.mask, **SIZES)
    q, k, v = qkv(8, 12)
    before = flexfa4.attention(q, k, v, block_mask=made)
    kinds, copied = made.block_kinds(), pickle.loads(pickle.dumps(made))
    change(model)
    message = message_of(
        errors.StaleBlockMaskError, lambda: flexfa4.attention(q, k, v, block_mask=made)
    )
    assert says in message.partition("\n")[0]
    assert "changed after this BlockMask was made from it" in message
    assert "instead: block_mask = create_block_mask(mask, q_len=8, kv_len=12)" in message
    assert torch.equal(made.block_kinds(), kinds)  # the snapshot stays what it was
    assert torch.equal(flexfa4.attention(q, k, v, block_mask=copied), before)


@pytest.mark.parametrize(
    "derive",
    [lambda made: made.with_block_size(16), lambda made: made[0], lambda made: made[:, :, 0:8]],
    ids=["other blocks", "a batch entry", "all queries"],
)
def test_what_is_made_from_a_block_mask_has_the_values_that_it_had(
    derive: Callable[[BlockMask], BlockMask],
) -> None:
    model = Model()
    made = create_block_mask(model.mask, **SIZES)
    dense = made.to_dense()
    model.window, model.ids = 1, model.ids.flip(0)
    assert torch.equal(derive(made).to_dense(), dense)


# ---- parts ---------------------------------------------------------------------------------------

PARTS: Final = {
    "a float": (1.5, "1.5"),
    "a bool": (True, "True"),
    "None": (None, "None"),
    "a text": ("0", "'0'"),
    "a list": ([0, 1], "a list"),
    "an ellipsis": (..., "an ellipsis"),
    "a tensor": (torch.tensor([0, 1]), "a Tensor of shape (2,)"),
    "a step": (slice(0, 2, 2), "a slice with a step of 2"),
    "backwards": ((0, 0, slice(None, None, -1)), "a slice with a step of -1"),
    "ends that are no integers": (slice(0.0, 2.0), "0.0"),
    "keys": ((0, 0, slice(0, 4), slice(0, 4)), "4 indices"),
}


@pytest.mark.parametrize("name", PARTS)
def test_an_index_that_picks_no_part_is_refused(name: str) -> None:
    index, found = PARTS[name]
    made = create_block_mask(lambda b, h, q, kv: q >= kv + b + h, batch=2, heads=4, **SIZES)
    message = message_of(ArgumentError, lambda: made[index])
    assert message.startswith("the index of a block mask is ") and found in message
    assert "up to three of int and slice without a step: batch, head, query" in message
    assert "instead: block_mask[batch, head, first:last]" in message


@pytest.mark.parametrize(
    ("index", "things", "count"),
    [(2, "batches", 2), (-3, "batches", 2), ((0, 4), "heads", 4), ((0, 0, 8), "queries", 8),
     ((0, 0, -9), "queries", 8)],
)  # fmt: skip
def test_a_part_that_is_not_there_is_refused(index: Any, things: str, count: int) -> None:
    made = create_block_mask(lambda b, h, q, kv: q >= kv + b + h, batch=2, heads=4, **SIZES)
    message = message_of(errors.BlockMaskIndexError, lambda: made[index])
    assert message.startswith(f"the block mask has {count} {things}, but was indexed with ")
    assert f"allowed: indices from {-count} to {count - 1}" in message
    assert "instead: block_mask[batch, head, first:last]" in message


@pytest.mark.parametrize("heads", [slice(3, 3), slice(3, 1), slice(4, None)])
def test_a_part_without_heads_is_refused_as_no_call_has_none(heads: slice) -> None:
    made = create_block_mask(lambda b, h, q, kv: q >= kv + b + h, batch=2, heads=4, **SIZES)
    message = message_of(errors.BlockMaskIndexError, lambda: made[:, heads])
    assert "the block mask has 4 heads, but was indexed with " in message
    assert "allowed: slices of at least one head" in message
    assert made[2:].shape == (0, 4, 8, 12) and made[:, :, 5:2].shape == (2, 4, 0, 12)


@pytest.mark.parametrize("call", ["lists", "counts"])
@pytest.mark.parametrize("by", ["diagonals", "row", None, 0])
def test_lines_of_blocks_are_rows_or_columns(call: str, by: Any) -> None:
    made = create_block_mask(causal, **SIZES)
    message = message_of(ArgumentError, lambda: getattr(made, call)(by=by))
    assert f"by is {errors.describe(by)}\n" in message
    assert "rows" in message and "columns" in message


@pytest.mark.parametrize("priority", ["fifo", "LPT", None, 1])
def test_an_order_is_longest_or_shortest_first(priority: Any) -> None:
    made = create_block_mask(causal, **SIZES)
    message = message_of(ArgumentError, lambda: made.order(priority))
    assert errors.describe(priority) in message and "lpt" in message and "spt" in message
