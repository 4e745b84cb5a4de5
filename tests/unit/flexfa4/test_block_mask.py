"""Block masks against masks computed in full, and what happens when their captures change."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flexfa4
from flexfa4 import BlockMask, create_block_mask
from flexfa4.counters import Stats, stats
from flexfa4.errors import (
    ArgumentError,
    MaskReadsBatchError,
    NoValuesError,
    StaleBlockMaskError,
)
from flexfa4.frontend.masks.grid import FULL, PARTIAL
from flexfa4.frontend.masks.structure import Lines
from flexfa4.frontend.tracing.trace import TRACES_PER_CODE
from flexfa4.variants import Document, SlidingWindow, causal
from tests.brute_force import kinds_of
from tests.masked_calls import attend, inputs, reference
from tests.random_masks import Space

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


def check(made: BlockMask, mask: Mask) -> None:
    expected = Space(*made.shape).dense(mask)
    assert torch.equal(made.to_dense(), expected)
    kinds = kinds_of(expected, made.block_size)
    assert made.block_kinds().dtype is torch.int8 and torch.equal(made.block_kinds(), kinds)
    share = float((kinds > 0).double().mean()) if kinds.numel() else 0.0
    assert made.density == pytest.approx(share, rel=1e-6)
    for by, along in (("rows", kinds), ("columns", kinds.transpose(2, 3))):
        check_lines(made, by, along)  # type: ignore[arg-type]


def check_lines(made: BlockMask, by: Lines, kinds: torch.Tensor) -> None:
    """Compare what a block mask says of lines with kinds ``(batch, heads, lines, width)``."""
    counts, lists = made.counts(by), made.lists(by)
    assert torch.equal(counts, (kinds > 0).sum(3))
    for priority, sign in (("lpt", -1), ("spt", 1)):
        expected = (counts * sign).argsort(dim=2, stable=True)
        assert torch.equal(made.order(priority, by), expected.int())  # type: ignore[arg-type]
    for blocks, kind in ((lists.partial, PARTIAL), (lists.full, FULL)):
        width = kinds.shape[3]
        lengths = blocks.offsets.diff(dim=1)
        line = torch.arange(lengths.numel()).repeat_interleave(lengths.flatten())
        place = line * width + blocks.indices
        assert bool((place.diff() > 0).all())  # ascending, none twice
        table = torch.zeros(*lengths.shape, width, dtype=torch.bool)
        table.view(-1)[place] = True
        assert torch.equal(table[lists.classes], kinds == kind)


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
        ({"kv_len": 2**48 + 1}, "kv_len is 281474976710657"),
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


# ---- the same mask otherwise ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["causal", "table", "documents_by_batch", "windows_by_head"])
@pytest.mark.parametrize("size", [16, 32, (48, 16), (32, 96), (512, 16)])
def test_another_block_size_gives_the_blocks_of_the_same_mask(name: str, size: Any) -> None:
    made = create_block_mask(
        MASKS[name], batch=2, heads=HEADS, q_len=130, kv_len=257, block_size=(16, 32)
    )
    other = made.with_block_size(size)
    assert other.block_size == (size if isinstance(size, tuple) else (size, size))
    check(other, MASKS[name])
    assert other.mask is made.mask and other.shape == made.shape


def test_larger_blocks_are_made_of_smaller_ones_without_evaluating_the_mask() -> None:
    made = create_block_mask(MASKS["table"], q_len=130, kv_len=257, block_size=(16, 32))
    before = stats()
    check(made.with_block_size((48, 128)), MASKS["table"])
    assert (stats() - before).block_lists == 0
    check(made.with_block_size((48, 16)), MASKS["table"])
    assert (stats() - before).block_lists == 1


def test_another_block_size_has_the_values_of_the_snapshot_and_is_refused_as_stale_too() -> None:
    ids = IDS.clone()
    mask: Mask = lambda b, h, q, kv: ids[q] == ids[kv]  # noqa: E731
    made = create_block_mask(mask, q_len=100, kv_len=100)
    ids.zero_()
    other = made.with_block_size(16)
    assert torch.equal(other.to_dense(), made.to_dense()) and not other.to_dense().all()
    with pytest.raises(StaleBlockMaskError):
        other.check_current()


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda m: m.with_block_size(100), "block_size is 100"),
        (lambda m: m.lists("row"), "by is 'row'"),
        (lambda m: m.counts(by="q"), "by is 'q'"),
        (lambda m: m.order(by=0), "by is 0"),
        (lambda m: m.order("longest"), "priority is 'longest'"),
        (lambda m: m.to("gpu"), "device is 'gpu'"),
    ],
)
def test_an_argument_of_a_method_out_of_its_range_is_named(call: Any, found: str) -> None:
    with pytest.raises(ArgumentError, match=found):
        call(create_block_mask(causal, q_len=8, kv_len=8))


def test_moving_to_where_it_is_changes_nothing_and_to_meta_is_refused() -> None:
    made = create_block_mask(MASKS["documents"], q_len=64, kv_len=64)
    assert made.to("cpu") is made and made.to(torch.device("cpu")) is made
    with pytest.raises(NoValuesError, match=r"block mask.*on meta"):
        made.to("meta")


# ---- closed forms at any length ------------------------------------------------------------------

LONG = 16 << 20


@pytest.mark.parametrize("name", ["causal", "band", "far"])
def test_nothing_is_found_for_a_mask_in_closed_form_before_it_is_asked_for(name: str) -> None:
    create_block_mask(MASKS[name], q_len=8, kv_len=8)
    before = stats()
    made = create_block_mask(MASKS[name], q_len=LONG, kv_len=LONG, block_size=256)
    again = made.with_block_size(128)[:, :, 5 : LONG - 7]
    for mask in (made, again):
        assert mask.nbytes == 0 and not mask.blocks_on(mask.device).has_runs
        assert repr(mask).endswith("in closed form)")
    assert stats() - before == Stats(closed_forms=1)  # of the part, which is one for all parts
    made[:, :, 3:4]
    assert stats() - before == Stats(closed_forms=1)


def test_the_closed_form_is_told_in_the_words_of_the_mask() -> None:
    w = 7
    made = create_block_mask(lambda b, h, q, kv: (kv <= q) & (q - kv < w), q_len=8, kv_len=8)
    assert made.closed_form is not None and made.closed_form.endswith("kv <= q")
    assert "q - w" in made.closed_form
    assert create_block_mask(MASKS["table"], q_len=8, kv_len=8).closed_form is None


def test_a_step_of_decoding_sees_what_its_query_sees() -> None:
    made = create_block_mask(MASKS["band"], q_len=LONG, kv_len=LONG)
    step = made[:, :, LONG - 1 : LONG]
    assert step.shape == (1, 1, 1, LONG)
    assert step.counts().tolist() == [[[1]]] and not step.blocks_on(step.device).has_runs
    assert step.lists().partial.indices.tolist() == [LONG // 128 - 1]


# ---- snapshots -----------------------------------------------------------------------------------


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


def test_captured_fp64_values_are_compared_in_fp64() -> None:
    seconds = 1.7e9 + torch.arange(300, dtype=torch.float64).flip(0)
    made = create_block_mask(
        lambda b, h, q, kv: seconds[kv] <= seconds[q], q_len=300, kv_len=300, block_size=16
    )
    dense = seconds <= seconds[:, None]
    assert torch.equal(made.to_dense()[0, 0], dense)
    index = torch.arange(300) // 16
    some = torch.zeros(19, 19, dtype=torch.bool)
    some[index[:, None].expand(300, 300)[dense], index.expand(300, 300)[dense]] = True
    assert torch.equal(made.block_kinds()[0, 0] != 0, some)
