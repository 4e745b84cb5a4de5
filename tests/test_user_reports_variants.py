"""What variants mean, to the element: public reports on other systems, right values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.combine import MaskMod
from flexfa4.errors import UnknownNameError
from flexfa4.testing import (
    Case,
    Inputs,
    Mods,
    Sizes,
    Trial,
    agrees,
    attend,
    dense_reference,
    excess,
    make_inputs,
)
from flexfa4.variants import (
    Document,
    SlidingWindow,
    Softcap,
    SpatialHead,
    TemporalHead,
    causal,
)


def dense_mask(mask: Any, q_len: int, kv_len: int) -> torch.Tensor:
    return flexfa4.create_block_mask(mask, q_len=q_len, kv_len=kv_len).to_dense()[0, 0]


@pytest.mark.parametrize(("window", "length"), [(1, 20), (7, 20), (2048, 4096)])
def test_a_window_of_w_keeps_w_keys_the_own_one_among_them(window: int, length: int) -> None:
    """huggingface/transformers#29623, vllm-project/vllm#3385: w here, w + 1 there."""
    kept = dense_mask(SlidingWindow(window), length, length).sum(1)
    assert torch.equal(kept, torch.arange(1, length + 1).clamp(max=window))


def test_queries_and_keys_are_aligned_at_their_first_elements() -> None:
    """Dao-AILab/flash-attention#2199, Dao-AILab/flash-attention#1778,
    facebookresearch/xformers#931: bottom-right alignment leaves rows empty."""
    assert torch.equal(dense_mask(causal, 4, 2), torch.ones(4, 2, dtype=torch.bool).tril())
    inputs = make_inputs(Sizes(1, 1, 1, 2048, 1024, 8, 8))
    _, lse = attend(inputs, Mods(None, causal))
    assert lse.isfinite().all()


def test_bottom_right_alignment_is_written_with_the_lengths_of_the_call() -> None:
    """Dao-AILab/flash-attention#2199, Dao-AILab/flash-attention#1778: windows (32, 64), 129."""

    def window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        distance = kv_idx - (q_idx + flexfa4.kv_len - flexfa4.q_len)
        return (distance >= -32) & (distance <= 64)

    for q_len, kv_len in ((129, 129), (129, 200), (1, 200), (200, 129)):
        q = torch.arange(q_len)[:, None] + kv_len - q_len
        right = (torch.arange(kv_len) - q >= -32) & (torch.arange(kv_len) - q <= 64)
        assert torch.equal(dense_mask(window, q_len, kv_len), right)


def test_a_sink_equals_the_output_times_a_sigmoid_of_lse_minus_sink() -> None:
    """huggingface/transformers#41026, huggingface/transformers#41083."""
    inputs = make_inputs(Sizes(1, 2, 2, 4, 4, 16, 16), sink=True)
    assert inputs.sink is not None
    plain, plain_lse = attend(Inputs(inputs.q, inputs.k, inputs.v), Mods(None, causal))
    gate = torch.sigmoid(plain_lse - inputs.sink[:, None])
    right = plain * gate[..., None]
    out, lse = attend(inputs, Mods(None, causal))
    torch.testing.assert_close(out, right)
    torch.testing.assert_close(lse, torch.logaddexp(plain_lse, inputs.sink[:, None]))
    weights = torch.randn_like(out)
    found = torch.autograd.grad((out * weights).sum(), inputs.leaves())
    wanted = torch.autograd.grad((right * weights).sum(), inputs.leaves())
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_a_sink_is_neither_scaled_nor_changed_by_the_score_mod() -> None:
    """huggingface/transformers#41026, the kind."""
    inputs = make_inputs(Sizes(1, 2, 2, 4, 4, 16, 16), sink=True)
    mods = Mods(Softcap(1.0))
    for scale in (0.0, 0.25, -2.0):
        out = flexfa4.attention(
            inputs.q, inputs.k, inputs.v, score_mod=mods.score_mod, sink=inputs.sink, scale=scale
        )
        assert isinstance(out, torch.Tensor)
        (right, _), (rounded, _) = (
            dense_reference(inputs, mods, scale=scale, dtype=dtype)
            for dtype in (torch.float64, torch.float32)
        )
        assert agrees(out, right, rounded, terms=16)


def test_softcap_is_cap_times_tanh_of_score_over_cap() -> None:
    """Dao-AILab/flash-attention#2396: computed as score * tanh."""

    def capped(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return 5.0 * torch.tanh(score / 5.0)

    case = Case("reported", lambda s, d: Mods(Softcap(5.0), eager_score_mod=capped))
    assert not excess(Trial(case, Sizes(1, 2, 2, 30, 30, 16, 16)))


def test_a_score_mod_has_no_effect_outside_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    """flashinfer-ai/flashinfer#1971, flashinfer-ai/flashinfer#3890: a hook that ran past the end
    of a chunk. The function runs once, on symbols, whatever the number of tiles."""

    def spy(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        print("called")
        return score + kv_idx

    inputs = make_inputs(Sizes(2, 2, 2, 600, 700, 8, 8))
    with torch.no_grad():
        attend(inputs, Mods(spy, causal))
        attend(inputs, Mods(spy, causal))
    assert capsys.readouterr().out == "called\n"


def test_no_mask_is_kept_from_one_call_to_the_next() -> None:
    """flashinfer-ai/flashinfer#1028: an old custom mask stayed after switching to causal."""
    inputs = make_inputs(Sizes(1, 1, 1, 40, 40, 8, 8))
    plain = attend(inputs, Mods())[0]
    window = attend(inputs, Mods(None, SlidingWindow(3)))[0]
    assert torch.equal(attend(inputs, Mods())[0], plain)
    assert not torch.equal(attend(inputs, Mods(None, causal))[0], window)
    assert torch.equal(attend(inputs, Mods(None, SlidingWindow(3)))[0], window)


def test_a_mask_through_a_captured_batch_map_follows_its_rows() -> None:
    """meta-pytorch/attention-gym#189: batch_idx [3, 7, 1] reads rows 3, 7 and 1."""
    batch_idx = torch.tensor([3, 7, 1])
    lengths = torch.arange(8) * 4 + 2

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx < lengths[batch_idx[b]]

    dense = flexfa4.create_block_mask(mask, batch=3, q_len=1, kv_len=40).to_dense()
    assert dense.sum((1, 2, 3)).tolist() == [14, 30, 6]


@pytest.mark.parametrize(
    "mask",
    [
        SpatialHead(text=0, frames=4, frame_tokens=32, width=2),
        SpatialHead(text=0, frames=4, frame_tokens=32, width=0.01),
        SpatialHead(text=3, frames=4, frame_tokens=32, width=0.5, multiple=16),
        TemporalHead(text=0, frames=4, frame_tokens=32, width=2),
        TemporalHead(text=0, frames=4, frame_tokens=32, width=0.01),
    ],
    ids=str,
)
def test_a_video_head_always_sees_its_own_token(mask: Any) -> None:
    """meta-pytorch/attention-gym, the SVG spatial mask: with prompt 0, 32 tokens and width 2, all
    of 128 rows are empty, since the width is rounded down to blocks of 128."""
    length = mask.text + 128
    assert dense_mask(mask, length, length).diagonal().all()


def test_a_window_below_one_block_of_a_video_is_one_block() -> None:
    """The same report, the right value: 64 positions round to 128, and not to none."""
    mask = SpatialHead(text=0, frames=8, frame_tokens=32, width=2)
    distance = torch.arange(256)[:, None] - torch.arange(256)
    assert torch.equal(dense_mask(mask, 256, 256), distance.abs() < 128)


@dataclass(frozen=True, eq=False)
class ByTwoTables(MaskMod):
    """A user's variant with named tensors."""

    first: torch.Tensor
    last: torch.Tensor

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where the key lies between the tables' entries."""
        return (kv_idx >= self.first[q_idx]) & (kv_idx <= self.last[q_idx])


def test_the_tensors_of_a_users_variant_need_no_list_of_their_names() -> None:
    """flashinfer-ai/flashinfer#1044, flashinfer-ai/flashinfer#2855: a variant's named buffers
    were not passed on, and nothing said so."""
    first = torch.arange(20) // 2
    last = first + 3
    keys = torch.arange(24)
    right = (keys >= first[:, None]) & (keys <= last[:, None])
    assert torch.equal(dense_mask(ByTwoTables(first, last), 20, 24), right)
    text = "kv >= first[q] and kv <= last[q]"
    bound = flexfa4.parse(text, first=first, last=last)
    assert torch.equal(dense_mask(bound, 20, 24), right)
    with pytest.raises(UnknownNameError, match="`last`"):
        flexfa4.parse(text, first=first)


def test_packed_sequences_see_only_themselves_in_each_batch() -> None:
    """pytorch/pytorch#177378, pytorch/pytorch#143788: lengths 3 and 5, no leak between them."""
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]])
    inputs = make_inputs(Sizes(2, 2, 2, 8, 8, 4, 4))
    packed, _ = attend(inputs, Mods(None, Document(documents) & causal))
    for batch, split in ((0, 3), (1, 5)):
        for part in (slice(0, split), slice(split, 8)):
            q, k, v = (x[batch : batch + 1, :, part] for x in (inputs.q, inputs.k, inputs.v))
            alone, _ = attend(Inputs(q, k, v), Mods(None, causal))
            torch.testing.assert_close(packed[batch : batch + 1, :, part], alone)


def test_a_mask_may_be_a_partial_of_a_function() -> None:
    """meta-pytorch/attention-gym, batchify_mask_mod: it fails on partial in other tools."""

    def window(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, width: int) -> Any:
        return (q_idx >= kv_idx) & (q_idx - kv_idx < width)

    assert torch.equal(
        dense_mask(partial(window, width=4), 20, 20), dense_mask(SlidingWindow(4), 20, 20)
    )
