"""The masks and score mods of attention-gym, with only the module changed.

Each function is one of them, written from its formula as users of FlexAttention write it, for a
module `flex` and at small sizes.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import Any

import pytest
import torch

from tests.ports import Draws, Tensors, differences, documented, programs_of


def attend(flex: Any, x: Draws, mask_mod: Any, size: int, **sizes: int) -> Tensors:
    """Attention with a mask, as the gym's benchmark runs it."""
    kv_len = sizes.get("kv_len", size)
    mask = flex.create_block_mask(mask_mod, 1, 1, size, kv_len, device="cpu", BLOCK_SIZE=16)
    q, k, v = x.qkv(2, 2, size, 16, kv_len=kv_len)
    out, aux = flex.flex_attention(q, k, v, block_mask=mask, return_aux=flex.AuxRequest(lse=True))
    return [out, aux.lse, mask.to_dense()]


def modified(flex: Any, x: Draws, score_mod: Any, size: int, heads: int = 2) -> Tensors:
    return [flex.flex_attention(*x.qkv(2, heads, size, 16), score_mod=score_mod)]


def causal_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def length_to_offsets(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def documents_of(offsets: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())


# ---- masks ---------------------------------------------------------------------------------------


def causal(flex: Any, x: Draws) -> Tensors:
    return attend(flex, x, causal_mask, 80)


def sliding_window(flex: Any, x: Draws) -> Tensors:
    def window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx - kv_idx <= 20

    return attend(flex, x, flex.and_masks(window, causal_mask), 80)


def dilated_sliding_window(flex: Any, x: Draws) -> Tensors:
    def dilated(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        diff = torch.abs(q_idx - kv_idx)
        return (diff <= 20) & ((diff % 3) == 0)

    return attend(flex, x, dilated, 64)


def prefix_lm(flex: Any, x: Draws) -> Tensors:
    def prefix(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx < 24

    return attend(flex, x, flex.or_masks(prefix, causal_mask), 64)


def global_sliding_window(flex: Any, x: Draws) -> Tensors:
    is_global = torch.zeros(64, dtype=torch.bool)
    is_global[[0, 30]] = True

    def longformer(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (torch.abs(q_idx - kv_idx) <= 8) | is_global[q_idx] | is_global[kv_idx]

    return attend(flex, x, longformer, 64)


def document_mask(flex: Any, x: Draws) -> Tensors:
    offsets = length_to_offsets([20, 7, 37])
    document = documents_of(offsets)

    def doc_mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        same = document[q_idx] == document[kv_idx]
        q_logical = q_idx - offsets[document[q_idx]]
        kv_logical = kv_idx - offsets[document[kv_idx]]
        return same & causal_mask(b, h, q_logical, kv_logical)

    return attend(flex, x, doc_mask_mod, 64)


def packed_causal_documents(flex: Any, x: Draws) -> Tensors:
    offsets = length_to_offsets([20, 7, 37])
    document = documents_of(offsets)

    def packed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx >= offsets[document[q_idx]]) & (q_idx >= kv_idx)

    return attend(flex, x, packed, 64)


def shared_prefix(flex: Any, x: Draws) -> Tensors:
    offsets = length_to_offsets([10, 12, 20, 22])
    document = documents_of(offsets)
    prefix_of = torch.tensor([0, 0, 0, 3])

    def shared(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        d = document[q_idx]
        p = prefix_of[d]
        own = (kv_idx >= offsets[d]) & (q_idx >= kv_idx)
        return own | ((d != p) & (offsets[p] <= kv_idx) & (kv_idx < offsets[p + 1]))

    return attend(flex, x, shared, 64)


def batch_in_one_sequence(flex: Any, x: Draws) -> Tensors:
    def batchify(inner: Any, n: int, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx // n == kv_idx // n) & inner(b, h, q_idx % n, kv_idx % n)

    return attend(flex, x, partial(batchify, causal_mask, 20), 60)


def block_diffusion(flex: Any, x: Draws) -> Tensors:
    n, length = 32, 8

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        q_block, kv_block = (q_idx % n) // length, (kv_idx % n) // length
        q_noised, kv_noised = q_idx < n, kv_idx < n
        diagonal = (q_block == kv_block) & (q_noised == kv_noised)
        offset = (q_block > kv_block) & q_noised & ~kv_noised
        return diagonal | offset | ((q_block >= kv_block) & ~q_noised & ~kv_noised)

    return attend(flex, x, mask, 2 * n)


def vision_cross_attention(flex: Any, x: Draws) -> Tensors:
    intervals, tokens = torch.tensor([[0, 7], [3, 30], [30, 40]]), 5
    image_of = torch.arange(15) // tokens

    def flamingo(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        image = image_of[kv_idx]
        return (q_idx >= intervals[image, 0]) & (q_idx < intervals[image, 1])

    return attend(flex, x, flamingo, 48, kv_len=15)  # rows beyond all intervals see nothing


def tree_of_drafts(flex: Any, x: Draws) -> Tensors:
    prefix, parents = 20, [-1, 0, 0, 1, 1, 2, 5, 5]
    ancestors = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            ancestors[node] |= ancestors[parent]

    def tree(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        node = torch.clamp(kv_idx - prefix, 0, len(parents) - 1)
        inside = (kv_idx >= prefix) & (kv_idx < prefix + len(parents))
        return (kv_idx < prefix) | (inside & ancestors[q_idx, node])

    return attend(flex, x, tree, len(parents), kv_len=prefix + len(parents))


def tree_training(flex: Any, x: Draws) -> Tensors:
    prefix, length = 10, 6

    def training(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        k = kv_idx - prefix
        same = (q_idx // length == k // length) & (k % length <= q_idx % length)
        return (kv_idx < prefix) | ((kv_idx >= prefix) & same)

    return attend(flex, x, training, 30, kv_len=40)


def near(
    q_place: tuple[Any, Any], kv_place: tuple[Any, Any], canvas: tuple[int, int], kernel: int
) -> Any:
    """Neighbourhood attention: the kernel is centred on the query, and stays on the canvas."""
    inside: Any = True
    for q, k, size in zip(q_place, kv_place, canvas, strict=True):
        centre = q.clamp(kernel // 2, (size - 1) - kernel // 2)
        inside = ((centre - k).abs() <= kernel // 2) & inside
    return inside


def natten(flex: Any, x: Draws) -> Tensors:
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return near((q_idx // 8, q_idx % 8), (kv_idx // 8, kv_idx % 8), (8, 8), 5)

    return attend(flex, x, mask, 64)


def tiled_natten(flex: Any, x: Draws) -> Tensors:
    width, tile = 8, 4

    def place(index: Any) -> tuple[Any, Any]:
        tile_id, inside = index // (tile * tile), index % (tile * tile)
        tile_x, tile_y = tile_id // (width // tile), tile_id % (width // tile)
        return tile_x * tile + inside // tile, tile_y * tile + inside % tile

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return near(place(q_idx), place(kv_idx), (width, width), 3)

    return attend(flex, x, mask, width * width)


def morton_natten(flex: Any, x: Draws) -> Tensors:
    def even_bits(index: Any) -> Any:
        index = index & 0x55555555
        index = (index | (index >> 1)) & 0x33333333
        index = (index | (index >> 2)) & 0x0F0F0F0F
        return (index | (index >> 4)) & 0x00FF00FF

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        query, key = ((even_bits(i >> 1), even_bits(i)) for i in (q_idx, kv_idx))
        return near(query, key, (8, 8), 3)

    return attend(flex, x, mask, 64)


def sliding_tiles(canvas: tuple[int, ...], tile: int, kernel: int, text: int) -> Any:
    """Sliding tile attention over a canvas of pixels in the order of its tiles, then text."""
    counts = [size // tile for size in canvas]
    pixels = tile ** len(canvas)
    total = math.prod(canvas)
    left = kernel // 2
    right = kernel // 2 + (kernel % 2 - 1)

    def tile_place(index: Any) -> list[Any]:
        tile_id, place = index // pixels, []
        for count in reversed(counts):
            place.append(tile_id % count)
            tile_id = tile_id // count
        return place[::-1]

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        inside: Any = (q_idx < total) & (kv_idx < total)
        for q, k, count in zip(tile_place(q_idx), tile_place(kv_idx), counts, strict=True):
            centre = q.clamp(left, count - 1 - right)
            inside = inside & (centre - left <= k) & (k <= centre + right)
        to_text = (q_idx < total) & (kv_idx >= total) & (kv_idx < total + text)
        return inside | to_text | (q_idx >= total)

    return mask


def sliding_tiles_2d(flex: Any, x: Draws) -> Tensors:
    return attend(flex, x, sliding_tiles((8, 8), 2, 3, 6), 70)


def sliding_tiles_3d(flex: Any, x: Draws) -> Tensors:
    return attend(flex, x, sliding_tiles((4, 4, 4), 2, 1, 0), 64)


def spatial_heads(flex: Any, x: Draws) -> Tensors:
    prompt, tokens = 10, 16
    width = 2 * tokens // 8 * 8

    def spatial(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx < prompt) | (kv_idx < prompt) | (torch.abs(q_idx - kv_idx) < width)

    return attend(flex, x, spatial, prompt + 4 * tokens)


def temporal_heads(flex: Any, x: Draws) -> Tensors:
    prompt, frames, tokens = 10, 4, 16

    def temporal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        q_place, kv_place = (q_idx - prompt) % tokens, (kv_idx - prompt) % tokens
        close = torch.abs(q_place - kv_place) < 2 * tokens // frames
        return (q_idx < prompt) | (kv_idx < prompt) | close

    return attend(flex, x, temporal, prompt + frames * tokens)


def membership_in_top_tiles(flex: Any, x: Draws) -> Tensors:
    tile, sizes = 16, torch.tensor([16, 16, 10, 16])
    top = torch.stack([torch.randperm(4, generator=x.generator)[:2] for _ in range(8)])
    top = top.view(1, 2, 4, 2)

    def vsa(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        chosen = (top[0, h, q_idx // tile] == kv_idx // tile).any()
        return chosen & (kv_idx % tile < sizes[kv_idx // tile])

    mask = flex.create_block_mask(vsa, 1, 2, 64, 64, "cpu", BLOCK_SIZE=tile)
    return [flex.flex_attention(*x.qkv(2, 2, 64, 16), block_mask=mask)]


# ---- score mods ----------------------------------------------------------------------------------


def alibi(flex: Any, x: Draws) -> Tensors:
    def alibi_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        scale = torch.exp2(-((h + 1) * 8.0 / 4))
        return score + (kv_idx - q_idx) * scale

    return modified(flex, x, alibi_mod, 48, heads=4)


def tanh_softcap(flex: Any, x: Draws) -> Tensors:
    soft_cap = 30

    def softcap(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return soft_cap * torch.tanh(score / soft_cap)

    return modified(flex, x, softcap, 48)


def sandwich(flex: Any, x: Draws) -> Tensors:
    heads, longest, dim = 4, 48, 16
    frequencies = 10000 ** (-2 * torch.arange(dim // 2) / dim)
    distances = torch.arange(-(longest - 1), longest).abs()
    table = torch.cos(distances[:, None] * frequencies).sum(-1)

    def sandwich_bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[q_idx - kv_idx + longest - 1] * heads / (8 * (h + 1))

    return modified(flex, x, sandwich_bias, longest, heads)


def graphormer_spatial(flex: Any, x: Draws) -> Tensors:
    bias, distances = x.normal(2, 6), x.integers(6, 2, 32, 32)

    def spatial(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + bias[h, distances[b, q_idx, kv_idx]]

    return modified(flex, x, spatial, 32)


def graphormer_edges(flex: Any, x: Draws) -> Tensors:
    bias = x.normal(2, 3, 5)
    types, lengths = x.integers(5, 2, 24, 24, 3), x.integers(4, 2, 24, 24)
    tables = [bias[:, n] for n in range(3)]

    def edges(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        length = lengths[b, q_idx, kv_idx]
        total: Any = 0.0
        for n, table in enumerate(tables):
            part = table[h, types[b, q_idx, kv_idx, n]]
            total = total + torch.where(length > n, part, 0.0)
        return score + total / torch.clamp(length, min=1)

    return modified(flex, x, edges, 24)


def latent_attention_with_rope(flex: Any, x: Draws) -> Tensors:
    heads, scale = 2, 0.25
    q_rope, k_rope = x.normal(2, heads, 32, 8), x.normal(2, 1, 32, 8)

    def mla_rope(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + scale * (q_rope[b, h, q_idx] * k_rope[b, h // heads, kv_idx]).sum(-1)

    q, latent = x.normal(2, heads, 32, 16), x.normal(2, 1, 32, 16)
    return [flex.flex_attention(q, latent, latent, mla_rope, scale=scale, enable_gqa=True)]


def activation_in_place_of_softmax(flex: Any, x: Draws) -> Tensors:
    offset = 1.0

    def activation(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.log(torch.nn.functional.gelu(score) + offset)

    q, k, v = x.qkv(2, 2, 48, 16)
    out, aux = flex.flex_attention(
        q, k, v, score_mod=activation, return_aux=flex.AuxRequest(lse=True)
    )
    return [out * torch.exp(aux.lse)[..., None] - offset * v.sum(-2, keepdim=True)]


PROGRAMS = programs_of(sys.modules[__name__])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_computes_the_same_with_only_the_module_changed(name: str) -> None:
    assert not differences(PROGRAMS[name])


def test_the_document_says_how_many_ran() -> None:
    assert documented(__file__) == f"{len(PROGRAMS)} of {len(PROGRAMS)}"
