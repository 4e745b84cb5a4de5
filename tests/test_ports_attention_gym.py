"""The example programs of attention-gym, with only the module changed.

Each function is one of them, written from its formula as users of FlexAttention write it, for a
module `flex` and at small sizes.  docs/from_flexattention.md lists what is not here, and why.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest
import torch

from tests.ports import Draws, Tensors, differences, documented, programs_of

# Programs whose mask is in the lists of blocks: torch computes them right on GPUs only, for eagerly
# it looks at mask_mod alone.
LISTS_ONLY = {"video_sparse_attention", "lists_without_a_mask_function"}


def modified(flex: Any, x: Draws, score_mod: Any, size: int, heads: int = 2) -> Tensors:
    return [flex.flex_attention(*x.qkv(2, heads, size, 16), score_mod=score_mod)]


def causal_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


# ---- example programs ----------------------------------------------------------------------------


def merged(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Attention over all keys from attention over parts of them."""
    lse = torch.stack([part_lse for _, part_lse in parts])
    weights = torch.softmax(lse, 0)[..., None]
    return (torch.stack([out for out, _ in parts]) * weights).sum(0)


def shared_prefix_split(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(1, 2, 9, 16)

    def part(queries: slice, keys: slice, *, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
        mask = None
        if causal:
            n = queries.stop - queries.start
            mask = flex.create_block_mask(causal_mask, 1, 1, n, n, device="cpu", BLOCK_SIZE=128)
        tensors = (q[:, :, queries], k[:, :, keys], v[:, :, keys])
        request = flex.AuxRequest(lse=True)
        out, aux = flex.flex_attention(*tensors, block_mask=mask, return_aux=request)
        return out, aux.lse

    prefix, outs = slice(0, 3), []
    for response in (slice(3, 5), slice(5, 7), slice(7, 9)):
        first, _ = part(prefix, prefix, causal=True)
        both = [part(response, prefix, causal=False), part(response, response, causal=True)]
        outs.append(torch.cat([first, merged(both)], -2))
    return outs


def ring_attention(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(1, 2, 64, 16)
    shard, outs = 16, []
    for rank in range(4):
        q_start, parts = rank * shard, []
        for kv_start in range(0, q_start + shard, shard):

            def shifted(
                b: Any, h: Any, q_idx: Any, kv_idx: Any, q0: int = q_start, kv0: int = kv_start
            ) -> Any:
                return q_idx + q0 >= kv_idx + kv0

            mask = flex.create_block_mask(shifted, 1, 2, shard, shard, device="cpu")
            out, aux = flex.flex_attention(
                q[:, :, q_start : q_start + shard],
                k[:, :, kv_start : kv_start + shard],
                v[:, :, kv_start : kv_start + shard],
                block_mask=mask,
                scale=0.25,
                kernel_options=None,
                return_aux=flex.AuxRequest(lse=True),
            )
            parts.append((out, aux.lse))
        outs.append(merged(parts))
    return [torch.cat(outs, -2)]


def rows_guaranteed_safe(flex: Any, x: Draws) -> Tensors:
    def subtle(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.where((q_idx == 0) & ~(kv_idx >= 32), False, True)

    tokens = flex.create_mask(subtle, B=1, H=1, Q_LEN=32, KV_LEN=64, device="cpu")
    mask = flex.create_block_mask(
        subtle, B=1, H=1, Q_LEN=32, KV_LEN=64, BLOCK_SIZE=32, device="cpu"
    )
    q, k, v = x.qkv(1, 1, 32, 16, kv_len=64)
    options = {"ROWS_GUARANTEED_SAFE": True, "FORCE_USE_FLEX_ATTENTION": True}
    out = flex.flex_attention(q, k, v, block_mask=mask, kernel_options=options)
    assert not out.isnan().any()
    return [out, tokens.int(), mask.to_dense()]


def debugging_a_score_mod(flex: Any, x: Draws) -> Tensors:
    def anti_window(score: Any, batch: Any, head: Any, q_idx: Any, kv_idx: Any) -> Any:
        distance = torch.abs(q_idx - kv_idx)
        return torch.where(distance <= 4, score - 1.0, score + distance)

    return modified(flex, x, anti_window, 16)


def sweep_of_kernel_options(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(1, 2, 32, 16)
    options: list[dict[str, Any]] = [
        {"fwd_BLOCK_M": m, "fwd_BLOCK_N": 64, "fwd_num_stages": 3, "fwd_num_warps": 4}
        for m in (16, 128)
    ]
    options.append({"bwd_BLOCK_M1": 32, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 32})
    return [flex.flex_attention(q, k, v, kernel_options=one) for one in options]


def flash_and_triton(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(1, 2, 64, 16)
    mask = flex.create_block_mask(causal_mask, 1, 2, 64, 64, device="cpu", BLOCK_SIZE=(256, 128))
    calls = [
        partial(flex.flex_attention, kernel_options={"BACKEND": b}) for b in ("FLASH", "TRITON")
    ]
    return [call(q, k, v, block_mask=mask) for call in calls]


def determinism(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(2, 4, 32, 16, kv_heads=2)
    mask = flex.create_block_mask(
        mask_mod=causal_mask,
        B=2,
        H=4,
        Q_LEN=32,
        KV_LEN=32,
        device="cpu",
        compute_dq_write_order=True,
    )
    outs = [
        flex.flex_attention(query=q, key=k, value=v, block_mask=mask, enable_gqa=True)
        for _ in range(2)
    ]
    assert torch.equal(*outs)
    return outs


def batch_invariance(flex: Any, x: Draws) -> Tensors:
    q, k, v = x.qkv(4, 2, 32, 16)
    outs = []
    for split in ((4,), (1, 3), (1, 1, 1, 1)):
        start, parts = 0, []
        for n in split:
            mask = flex.create_block_mask(causal_mask, n, 2, 32, 32, device="cpu")
            rows = slice(start, start + n)
            parts.append(flex.flex_attention(q[rows], k[rows], v[rows], block_mask=mask))
            start += n
        outs.append(torch.cat(parts))
    return outs


def masks_as_score_mods(flex: Any, x: Draws) -> Tensors:
    def score_from(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        allowed = causal_mask(b, h, q_idx, kv_idx).to(dtype=torch.bool)
        return score.masked_fill(~allowed, float("-inf"))

    return modified(flex, x, score_from, 32)


def exclusive_self_attention(flex: Any, x: Draws) -> Tensors:
    def alibi_mod(score: Any, b: Any, h: Any, q_idx: Any, k_idx: Any) -> Any:
        slope = 1.0 / (2 ** (h.float() + 1))
        return score - slope * (q_idx - k_idx).abs().float()

    q, k, v = x.qkv(2, 4, 32, 16)
    out = flex.flex_attention(q, k, v, score_mod=alibi_mod)
    along = (out * v).sum(-1, keepdim=True) / v.square().sum(-1, keepdim=True)
    return [out - along * v]


def exported_module(flex: Any, x: Draws) -> Tensors:
    class Forward(torch.nn.Module):
        def forward(self, query: Any, key: Any, value: Any, block_mask: Any) -> Any:
            output, aux = flex.flex_attention(
                query, key, value, block_mask=block_mask, return_aux=flex.AuxRequest(lse=True)
            )
            return output, aux.lse

    mask = flex.create_block_mask(causal_mask, 2, 2, 32, 32, device="cpu")
    return list(Forward()(*x.qkv(2, 2, 32, 16), block_mask=mask))


def latent_attention_decode(flex: Any, x: Draws) -> Tensors:
    """One step of multi-head latent attention: the latent is key and value, 2 parts of the key."""
    heads, rank, rope = 4, 24, 8
    q = x.normal(2, heads, 1, rank + rope)
    latent, k_rope = x.normal(2, 1, 40, rank), x.normal(2, 1, 40, rope)
    options = {"BLOCK_M": 32, "BLOCK_N": 32, "num_stages": 2, "FORCE_USE_FLEX_ATTENTION": True}
    key = torch.cat([latent, k_rope], -1)
    return [flex.flex_attention(q, key, latent, enable_gqa=True, scale=0.2, kernel_options=options)]


class Pages:
    """A cache of keys in pages: page tables, and the maps of masks and score mods to them."""

    def __init__(self, flex: Any, pages: int, size: int, table: torch.Tensor) -> None:
        self.flex, self.pages, self.size, self.table = flex, pages, size, table
        self.logical = torch.full((len(table), pages), -1)
        for b, row in enumerate(table.tolist()):
            for page, physical in enumerate(row):
                if physical >= 0:
                    self.logical[b, physical] = page

    def store(self, values: torch.Tensor) -> torch.Tensor:
        """Return ``(B, H, S, D)`` as one cache ``(1, H, pages * size, D)``."""
        b, h, s, d = values.shape
        token = torch.arange(s)
        place = self.table[:, token // self.size] * self.size + token % self.size
        cache = values.new_zeros(1, h, self.pages * self.size, d)
        flat = values.permute(1, 0, 2, 3).reshape(1, h, b * s, d)
        return cache.index_copy(2, place.flatten(), flat)

    def mask_mod(self, inner: Any) -> Any:
        def paged(b: Any, h: Any, q_idx: Any, physical_kv_idx: Any) -> Any:
            page, offset = physical_kv_idx // self.size, physical_kv_idx % self.size
            logical = self.logical[b, page]
            kv_idx = logical * self.size + offset
            return torch.where(logical >= 0, inner(b, h, q_idx, kv_idx), False)

        return paged

    def score_mod(self, inner: Any) -> Any:
        def paged(score: Any, b: Any, h: Any, q_idx: Any, physical_kv_idx: Any) -> Any:
            page, offset = physical_kv_idx // self.size, physical_kv_idx % self.size
            logical = self.logical[b, page]
            kv_idx = logical * self.size + offset
            return torch.where(logical >= 0, inner(score, b, h, q_idx, kv_idx), float("-inf"))

        return paged

    def block_mask(self, logical: Any) -> Any:
        def physical(indices: torch.Tensor) -> torch.Tensor:
            wide = torch.zeros(*indices.shape[:-1], self.pages, dtype=torch.int32)
            pages = torch.gather(self.table, 1, indices.reshape(len(indices), -1).long())
            wide[..., : indices.shape[-1]] = pages.view(indices.shape).int()
            return wide

        return self.flex.BlockMask.from_kv_blocks(
            logical.kv_num_blocks.clone(),
            physical(logical.kv_indices),
            logical.full_kv_num_blocks.clone(),
            physical(logical.full_kv_indices),
            logical.BLOCK_SIZE,
            self.mask_mod(logical.mask_mod),
            seq_lengths=(logical.seq_lengths[0], self.pages * self.size),
        )


def paged_attention(flex: Any, x: Draws) -> Tensors:
    table = torch.tensor([[5, 1, 7, -1], [0, 6, 2, -1]])  # out of order, with a page to spare
    pages = Pages(flex, 8, 16, table)
    q, k, v = x.qkv(2, 2, 48, 16)

    def relative(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + 0.05 * (q_idx - kv_idx)

    logical = flex.create_block_mask(causal_mask, 2, 1, 48, 48, "cpu", BLOCK_SIZE=16)
    return [
        flex.flex_attention(q, k, v, relative, logical),
        flex.flex_attention(
            q, pages.store(k), pages.store(v), pages.score_mod(relative), pages.block_mask(logical)
        ),
    ]


def paged_decoding(flex: Any, x: Draws) -> Tensors:
    table = torch.tensor([[3, 1], [0, 2]])
    pages = Pages(flex, 4, 16, table)
    q, k, v = x.qkv(2, 2, 32, 16)
    positions = torch.tensor([9, 30])

    def up_to_now(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx <= positions[b]

    logical = flex.create_block_mask(up_to_now, 2, 1, 1, 32, "cpu", BLOCK_SIZE=16)
    last = q[torch.arange(2), :, positions][:, :, None]
    cache = (pages.store(k), pages.store(v))
    return [flex.flex_attention(last, *cache, block_mask=pages.block_mask(logical))]


def video_sparse_attention(flex: Any, x: Draws) -> Tensors:
    """The fine pass: each query tile sees its top tiles, chosen by the coarse pass."""
    tile, sizes = 16, torch.tensor([16, 10, 16, 16])
    q, k, v = x.qkv(1, 2, 64, 16)
    coarse_q, coarse_k = (t.unflatten(2, (4, tile)).mean(3) for t in (q, k))
    coarse_v = v.unflatten(2, (4, tile)).mean(3)
    scores = coarse_q @ coarse_k.transpose(-1, -2) / 4
    top = scores.topk(2, -1).indices.sort(-1).values.int()
    whole = sizes[top.long()] == tile

    def listed(chosen: torch.Tensor) -> torch.Tensor:
        order = torch.argsort((~chosen).int(), dim=-1, stable=True)
        wide = torch.zeros(1, 2, 4, 4, dtype=torch.int32)
        wide[..., :2] = torch.gather(top, -1, order)
        return wide

    def padding(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx % tile < sizes[kv_idx // tile]

    mask = flex.BlockMask.from_kv_blocks(
        kv_num_blocks=(~whole).sum(-1).int(),
        kv_indices=listed(~whole),
        full_kv_num_blocks=whole.sum(-1).int(),
        full_kv_indices=listed(whole),
        BLOCK_SIZE=tile,
        mask_mod=padding,
        seq_lengths=(64, 64),
    )
    fine = flex.flex_attention(q, k, v, block_mask=mask)
    coarse = (scores.softmax(-1) @ coarse_v).repeat_interleave(tile, 2)
    return [0.75 * coarse + fine]


def lists_without_a_mask_function(flex: Any, x: Draws) -> Tensors:
    indices = torch.tensor([[[2, 0, 1, 3], [1, 3, 0, 2], [0, 1, 2, 3], [3, 0, 1, 2]]]).int()
    counts = torch.tensor([[2, 2, 4, 1]]).int()
    mask = flex.BlockMask.from_kv_blocks(counts[None], indices[None], BLOCK_SIZE=16, mask_mod=None)
    return [flex.flex_attention(*x.qkv(1, 2, 64, 16), block_mask=mask), mask.to_dense()]


PROGRAMS = programs_of(sys.modules[__name__])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_computes_the_same_with_only_the_module_changed(name: str) -> None:
    assert not differences(PROGRAMS[name], torch_reads_lists=name not in LISTS_ONLY)


def test_the_document_says_how_many_ran() -> None:
    assert documented(__file__) == f"{len(PROGRAMS)} of {len(PROGRAMS)}"
