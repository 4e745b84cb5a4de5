"""The examples of torch's FlexAttention documentation and blog, with only the module changed.

Each function is one example, written for a module `flex` and at small sizes.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import pytest
import torch

from tests.ports import Draws, Tensors, differences, documented, programs_of


def causal_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


# ---- score mods ----------------------------------------------------------------------------------


def no_modification(flex: Any, x: Draws) -> Tensors:
    def noop(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score

    return [flex.flex_attention(*x.qkv(2, 2, 64, 16), score_mod=noop)]


def relative_positions(flex: Any, x: Draws) -> Tensors:
    def relative_positional(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + (q_idx - kv_idx)

    return [flex.flex_attention(*x.qkv(2, 2, 64, 16), score_mod=relative_positional)]


def checkerboard(flex: Any, x: Draws) -> Tensors:
    def checkerboard(score: Any, batch: Any, head: Any, token_q: Any, token_kv: Any) -> Any:
        score = torch.where(torch.abs(token_kv - token_q) % 2 == 1, score * 0.5, score)
        return torch.where(torch.abs(token_kv - token_q) % 2 == 0, score * 2.0, score)

    return [flex.flex_attention(*x.qkv(2, 2, 64, 16), score_mod=checkerboard)]


def alibi(flex: Any, x: Draws) -> Tensors:
    slopes = torch.exp2(-torch.arange(1, 5) * 8.0 / 4)

    def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + slopes[h] * (kv_idx - q_idx)

    return [flex.flex_attention(*x.qkv(2, 4, 64, 16), score_mod=alibi)]


def alibi_from_the_head_index(flex: Any, x: Draws) -> Tensors:
    def alibi_and_causal(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        scale = torch.exp2(-((h + 1) * 8.0 / 4))
        return score + (kv_idx - q_idx) * scale

    block_mask = flex.create_block_mask(causal_mask, None, None, 64, 64, device="cpu")
    q, k, v = x.qkv(2, 4, 64, 16)
    return [flex.flex_attention(q, k, v, alibi_and_causal, block_mask)]


def soft_capping(flex: Any, x: Draws) -> Tensors:
    softcap = 20

    def tanh_softcap(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        score = score / softcap
        score = torch.tanh(score)
        return score * softcap

    return [flex.flex_attention(*x.qkv(2, 2, 64, 16), score_mod=tanh_softcap)]


def causal_as_a_score_mod(flex: Any, x: Draws) -> Tensors:
    def causal(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.where(q_idx >= kv_idx, score, -float("inf"))

    q, k, v = x.qkv(2, 2, 64, 16)
    mask = flex.create_mask(causal, 1, 1, 64, 64, device="cpu")
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return [flex.flex_attention(q, k, v, score_mod=causal), dense]


def trainable_biases(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(2, 2, 64, 16)
    bias = x.normal(2, 127)

    def bias_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + bias[h, q_idx - kv_idx + 63]

    return [flex.flex_attention(q, k, v, bias_mod)]


def bias_of_pairs(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(2, 2, 32, 16)
    bias = x.normal(2, 2, 32, 32)

    def pair(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + bias[b, h, q_idx, kv_idx]

    return [flex.flex_attention(q, k, v, score_mod=pair, scale=0.5)]


def partials_and_objects(flex: Any, x: Draws) -> Tensors:
    def windowed(window: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx - kv_idx).abs() <= window

    class Scaled:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score * self.factor

    mask = flex.create_block_mask(functools.partial(windowed, 12), 1, 1, 64, 64, "cpu", 32)
    return [flex.flex_attention(*x.qkv(1, 2, 64, 16), score_mod=Scaled(1.5), block_mask=mask)]


# ---- masks ---------------------------------------------------------------------------------------


def causal_block_mask(flex: Any, x: Draws) -> Tensors:
    block_mask = flex.create_block_mask(causal_mask, 1, 1, 160, 160, device="cpu")
    query, key, value = x.qkv(1, 1, 160, 16)
    return [flex.flex_attention(query, key, value, block_mask=block_mask)]


def sliding_window(flex: Any, x: Draws) -> Tensors:
    window_size = 24

    def sliding_window_causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= window_size)

    block_mask = flex.create_block_mask(
        sliding_window_causal, B=None, H=None, Q_LEN=96, KV_LEN=96, BLOCK_SIZE=32, device="cpu"
    )
    return [flex.flex_attention(*x.qkv(2, 2, 96, 16), block_mask=block_mask)]


def window_and_causal(flex: Any, x: Draws) -> Tensors:
    def sliding_window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx - kv_idx <= 24

    both = flex.and_masks(causal_mask, sliding_window)
    block_mask = flex.create_block_mask(both, None, None, 96, 96, device="cpu", BLOCK_SIZE=(16, 32))
    return [flex.flex_attention(*x.qkv(2, 2, 96, 16), block_mask=block_mask)]


def prefix_lm(flex: Any, x: Draws) -> Tensors:
    prefix_length = torch.tensor([8, 40])

    def prefix_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx <= prefix_length[b]

    prefix_lm_causal = flex.or_masks(prefix_mask, causal_mask)
    block_mask = flex.create_block_mask(prefix_lm_causal, 2, None, 64, 64, "cpu", BLOCK_SIZE=16)
    return [flex.flex_attention(*x.qkv(2, 2, 64, 16), block_mask=block_mask)]


def documents(flex: Any, x: Draws) -> Tensors:
    document_id = torch.repeat_interleave(torch.arange(4), torch.tensor([10, 30, 5, 51]))

    def document_masking(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & (document_id[q_idx] == document_id[kv_idx])

    block_mask = flex.create_block_mask(document_masking, None, None, 96, 96, "cpu", BLOCK_SIZE=16)
    return [flex.flex_attention(*x.qkv(1, 2, 96, 16), block_mask=block_mask)]


def neighborhoods(flex: Any, x: Draws) -> Tensors:
    height, width, kernel = 8, 8, 5

    def get_x_y(idx: Any) -> Any:
        return idx // width, idx % width

    def natten_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        q_x, q_y = get_x_y(q_idx)
        kv_x, kv_y = get_x_y(kv_idx)
        kernel_x = q_x.clamp(kernel // 2, (width - 1) - kernel // 2)
        kernel_y = q_y.clamp(kernel // 2, (height - 1) - kernel // 2)
        return ((kernel_x - kv_x).abs() <= kernel // 2) & ((kernel_y - kv_y).abs() <= kernel // 2)

    block_mask = flex.create_block_mask(natten_mask, 1, 1, 64, 64, "cpu", BLOCK_SIZE=16)
    return [flex.flex_attention(*x.qkv(2, 2, 64, 16), block_mask=block_mask)]


def stand_alone_self_attention(flex: Any, x: Draws) -> Tensors:
    width, window = 8, 2

    def sasa_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        q_x, q_y = q_idx // width, q_idx % width
        kv_x, kv_y = kv_idx // width, kv_idx % width
        return ((q_x - kv_x).abs() <= window) & ((q_y - kv_y).abs() <= window)

    block_mask = flex.create_block_mask(sasa_mask, 1, 1, 64, 64, "cpu", BLOCK_SIZE=16)
    return [flex.flex_attention(*x.qkv(1, 2, 64, 16), block_mask=block_mask)]


def jagged_sequences(flex: Any, x: Draws) -> Tensors:
    offsets = torch.tensor([0, 17, 40, 64])
    seq_idx = torch.searchsorted(offsets, torch.arange(64), right=True) - 1

    def njt_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        q_nested = q_idx - offsets[seq_idx[q_idx]]
        kv_nested = kv_idx - offsets[seq_idx[kv_idx]]
        return causal_mask(b, h, q_nested, kv_nested) & (seq_idx[q_idx] == seq_idx[kv_idx])

    def njt_score(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + 0.1 * (kv_idx - offsets[seq_idx[kv_idx]])

    block_mask = flex.create_block_mask(njt_mask, None, None, 64, 64, "cpu", BLOCK_SIZE=16)
    q, k, v = x.qkv(1, 2, 64, 16)
    return [flex.flex_attention(q, k, v, score_mod=njt_score, block_mask=block_mask)]


def images_in_text(flex: Any, x: Draws) -> Tensors:
    image_of = torch.repeat_interleave(torch.arange(3), 3)
    intervals = torch.tensor([[0, 7], [1, 7], [7, 12]])

    def vision_x_attention_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        interval = intervals[image_of[kv_idx]]
        return (q_idx >= interval[0]) & (q_idx < interval[1])

    mask = flex.create_mask(vision_x_attention_mask, 1, 1, 12, 9, "cpu")
    block_mask = flex.create_block_mask(vision_x_attention_mask, 1, 1, 12, 9, "cpu")
    q, k, v = x.qkv(1, 2, 12, 16, kv_len=9)
    return [mask.int(), flex.flex_attention(q, k, v, block_mask=block_mask)]


def a_mask_that_differs_by_head(flex: Any, x: Draws) -> Tensors:
    def dilated(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & ((q_idx - kv_idx) % (h + 1) == 0)

    block_mask = flex.create_block_mask(dilated, 1, 4, 64, 64, "cpu", BLOCK_SIZE=16)
    return [flex.flex_attention(*x.qkv(2, 4, 64, 16), block_mask=block_mask)]


def padded_batch(flex: Any, x: Draws) -> Tensors:
    lengths = torch.tensor([20, 48])

    def padding(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx < lengths[b]) & (q_idx < lengths[b])

    block_mask = flex.create_block_mask(padding, 2, None, 48, 48, "cpu", BLOCK_SIZE=16)
    out, aux = flex.flex_attention(
        *x.qkv(2, 2, 48, 16), block_mask=block_mask, return_aux=flex.AuxRequest(lse=True)
    )
    return [out, aux.lse]


# ---- block masks as objects ----------------------------------------------------------------------


def indexing_a_block_mask(flex: Any, x: Draws) -> Tensors:
    block_mask = flex.create_block_mask(causal_mask, 4, 2, 512, 512, device="cpu")
    parts = [
        block_mask,
        block_mask[0],
        block_mask[0, 1],
        block_mask[0:2, 1:2],
        block_mask[0:2, 1:2, torch.tensor([1], dtype=torch.int32)],
        block_mask[-1, :, 2:],
    ]
    return [t for part in parts for t in (part.kv_num_blocks, part.full_kv_num_blocks)]


def lists_of_a_block_mask(flex: Any, x: Draws) -> Tensors:
    block_mask = flex.create_block_mask(causal_mask, 1, 2, 96, 96, "cpu", BLOCK_SIZE=(16, 32))
    again = flex.BlockMask.from_kv_blocks(
        block_mask.kv_num_blocks,
        block_mask.kv_indices,
        block_mask.full_kv_num_blocks,
        block_mask.full_kv_indices,
        BLOCK_SIZE=block_mask.BLOCK_SIZE,
        mask_mod=block_mask.mask_mod,
    )
    lists = [t for t in again.as_tuple() if isinstance(t, torch.Tensor)]
    numbers = torch.tensor([block_mask.sparsity(), again.numel(), *again.shape, *again.BLOCK_SIZE])
    out = flex.flex_attention(*x.qkv(1, 2, 96, 16), block_mask=again)
    return [out, again.to_dense(), numbers, *lists]


def a_block_mask_as_text(flex: Any, x: Draws) -> Tensors:
    block_mask = flex.create_block_mask(causal_mask, 1, 2, 1024, 1024, "cpu")
    texts = (str(block_mask), block_mask.to_string((4, 3), limit=9), block_mask.to_string(-1))
    return [torch.tensor(list(text.strip().encode())) for text in texts]


def adjusting_a_block_mask(flex: Any, x: Draws) -> Tensors:
    longest = flex.create_block_mask(causal_mask, 1, 1, 128, 128, "cpu", BLOCK_SIZE=32)
    block_mask = longest._adjust(60, 90)
    q, k, v = x.qkv(1, 2, 60, 16, kv_len=90)
    lists = [block_mask.kv_num_blocks, torch.tensor(block_mask.seq_lengths)]
    return [flex.flex_attention(q, k, v, block_mask=block_mask.to("cpu")), *lists]


def without_full_blocks(flex: Any, x: Draws) -> Tensors:
    block_mask = flex.create_block_mask(
        causal_mask, None, None, 64, 64, "cpu", BLOCK_SIZE=16, separate_full_blocks=False
    )
    assert block_mask.full_kv_indices is None
    return [flex.flex_attention(*x.qkv(1, 2, 64, 16), block_mask=block_mask)]


def no_masks_combined(flex: Any, x: Draws) -> Tensors:
    every = flex.create_mask(flex.and_masks(), 1, 1, 4, 4, "cpu")
    none = flex.create_mask(flex.or_masks(), 1, 1, 4, 4, "cpu")
    some = flex.create_mask(flex.and_masks(flex.noop_mask, causal_mask), 1, 1, 4, 4, "cpu")
    return [mask.int() for mask in (every.expand(1, 1, 4, 4), none.expand(1, 1, 4, 4), some)]


# ---- calls ---------------------------------------------------------------------------------------


def grouped_heads(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(2, 6, 48, 16, kv_heads=2)
    return [flex.flex_attention(q, k, v, enable_gqa=True)]


def log_sum_exp(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(1, 2, 48, 16)
    out, aux = flex.flex_attention(q, k, v, return_aux=flex.AuxRequest(lse=True))
    assert aux.max_scores is None
    none, empty = flex.flex_attention(q, k, v, return_aux=flex.AuxRequest())
    assert empty == flex.AuxOutput(lse=None, max_scores=None)
    return [out, aux.lse, none]


def kernel_options(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(1, 2, 48, 16)
    plain: dict[str, Any] = {"BLOCK_M": 64, "BLOCK_N": 64, "PRESCALE_QK": True}
    typed = flex.FlexKernelOptions(fwd_BLOCK_M=64, bwd_BLOCK_M1=32, PRESCALE_QK=False)
    return [flex.flex_attention(q, k, v, kernel_options=options) for options in (plain, typed)]


def one_sequence_of_keys_for_all(flex: Any, x: Draws) -> Tensors:
    block_mask = flex.create_block_mask(causal_mask, 3, None, 32, 32, "cpu", BLOCK_SIZE=16)
    q, k, v = x.normal(3, 2, 32, 16), x.normal(1, 2, 32, 16), x.normal(1, 2, 32, 8)
    return [flex.flex_attention(q, k, v, block_mask=block_mask)]


def decoding_with_an_offset(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(1, 2, 64, 16)
    outs = []
    for position in (0, 17, 63):
        offset = torch.tensor(position)

        def shifted(b: Any, h: Any, q_idx: Any, kv_idx: Any, offset: Any = offset) -> Any:
            return causal_mask(b, h, q_idx + offset, kv_idx)

        block_mask = flex.create_block_mask(shifted, 1, 1, 1, 64, "cpu")
        outs.append(flex.flex_attention(q[:, :, position, None], k, v, block_mask=block_mask))
    return outs


def decoding_with_a_row_of_a_block_mask(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(1, 2, 64, 16)
    block_mask = flex.create_block_mask(causal_mask, 1, 1, 64, 64, "cpu", BLOCK_SIZE=16)
    outs = []
    for position in (torch.tensor([5]), torch.tensor([40])):

        def shifted(b: Any, h: Any, q_idx: Any, kv_idx: Any, position: Any = position) -> Any:
            return causal_mask(b, h, q_idx + position[0], kv_idx)

        row = block_mask[:, :, position // block_mask.BLOCK_SIZE[0]]
        row.mask_mod = shifted
        row.seq_lengths = (1, 64)
        outs.append(flex.flex_attention(q[:, :, position], k, v, block_mask=row))
    return outs


def sinks_by_the_log_sum_exp(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(1, 2, 48, 16)
    sink = x.normal(2)
    out, aux = flex.flex_attention(q, k, v, return_aux=flex.AuxRequest(lse=True))
    return [out * torch.sigmoid(aux.lse - sink[:, None])[..., None]]


PROGRAMS = programs_of(sys.modules[__name__])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_example_computes_the_same_with_only_the_module_changed(name: str) -> None:
    assert not differences(PROGRAMS[name])


def test_the_document_says_how_many_ran() -> None:
    assert documented(__file__) == f"{len(PROGRAMS)} of {len(PROGRAMS)}"


def test_the_comparison_sees_values_gradients_and_shapes_that_differ() -> None:
    def off(flex: Any, x: Draws, *, ours: str) -> Tensors:
        out = no_modification(flex, x)[0]
        changed = {
            "value": out + 1e-4,
            "gradient": out + 1e-3 * (x.leaves[0] - x.leaves[0].detach()),
            "shape": out[:1],
            "infinity": out.masked_fill(torch.ones_like(out, dtype=torch.bool), float("inf")),
            "nothing": out,
        }
        return [changed[ours] if flex.__name__ == "flexfa4.flex" else out]

    for change in ("value", "gradient", "shape", "infinity"):
        assert differences(functools.partial(off, ours=change))
    assert not differences(functools.partial(off, ours="nothing"))
