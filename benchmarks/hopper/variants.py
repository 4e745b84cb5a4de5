"""What the cases compute: their mods, and how many scores are visible.

A variant's mods are plain functions, and FlexFA4 and FlexAttention are given the same ones.  Peers
without mods are told what they need to compute the same: flash-attn-4 its keyword arguments or the
lengths of documents, torch's ``scaled_dot_product_attention`` whether it is causal.  Visible scores
are counted by formula, for FLOPs, and tests hold the formulas against the masks themselves.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.variants.t5_relative_bias import bucket_by_distance

Mod = Callable[..., Any]


@dataclass(frozen=True)
class Shape:
    """Sizes of a self-attention call."""

    batch: int
    heads: int
    kv_heads: int
    length: int
    dim: int
    value_dim: int

    def flops(self, visible: int) -> int:
        """Return the floating point operations of both products.

        Args:
            visible: scores that the mask lets through, of all batches, of one head.
        """
        return 2 * visible * self.heads * (self.dim + self.value_dim)

    def backward_flops(self, visible: int) -> int:
        """Return those of the five products of the backward pass, the scores again among them."""
        return 2 * visible * self.heads * (3 * self.dim + 2 * self.value_dim)


@dataclass(frozen=True)
class Mods:
    """What a variant is, on a device.

    Attributes:
        score: the score mod.
        mask: the mask function.
        mask_by_batch: it differs between batch entries.
        flash: keyword arguments of ``flash_attn_func`` that mean the same; None where none do.
        documents: lengths of the documents of each batch entry, for ``flash_attn_varlen_func``.
        sdpa: keyword arguments of ``scaled_dot_product_attention``; None where none do.
        learnable: tensors of the score mod that a model could learn.
    """

    score: Mod | None = None
    mask: Mod | None = None
    mask_by_batch: bool = False
    flash: dict[str, Any] | None = None
    documents: list[list[int]] | None = None
    sdpa: dict[str, Any] | None = None
    learnable: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A variant of attention.

    Attributes:
        make: its mods for a shape, on a device.
        visible: scores that its mask lets through, of all batches, of one head.
    """

    make: Callable[[Shape, torch.device], Mods]
    visible: Callable[[Shape], int]


def causal_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Return where a query sees a key that is not behind it."""
    return q_idx >= kv_idx


# ---- how many scores are visible -----------------------------------------------------------------


def triangle(rows: int) -> int:
    """Return the visible scores of a causal mask."""
    return rows * (rows + 1) // 2


def all_scores(shape: Shape) -> int:
    """Return those of no mask."""
    return int(shape.batch * shape.length**2)


def causal_scores(shape: Shape) -> int:
    """Return those of a causal mask."""
    return shape.batch * triangle(shape.length)


def document_scores(shape: Shape) -> int:
    """Return those of causal documents."""
    return sum(triangle(n) for lengths in document_lengths(shape) for n in lengths)


def document_lengths(shape: Shape) -> list[list[int]]:
    """Return the lengths of documents that fill each batch entry, the last one cut: the same ones
    whenever they are asked for."""
    draw = random.Random(0)
    found = []
    for _ in range(shape.batch):
        lengths, left = [], shape.length
        while left:
            lengths.append(min(left, draw.randint(512, 3584)))
            left -= lengths[-1]
        found.append(lengths)
    return found


# ---- variants ------------------------------------------------------------------------------------


def full() -> Variant:
    """Return attention without mask."""
    return Variant(lambda shape, device: Mods(flash={}, sdpa={}), all_scores)


def causal() -> Variant:
    """Return causal attention."""

    def make(shape: Shape, device: torch.device) -> Mods:
        return Mods(mask=causal_mask, flash={"causal": True}, sdpa={"is_causal": True})

    return Variant(make, causal_scores)


def window(distance: int) -> Variant:
    """Return causal attention to keys at most this far back."""

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= distance)

    def visible(shape: Shape) -> int:
        hidden = max(0, shape.length - 1 - distance)
        return shape.batch * (triangle(shape.length) - triangle(hidden))

    return Variant(
        lambda shape, device: Mods(mask=mask, flash={"window_size": (distance, 0)}), visible
    )


def prefix(length: int) -> Variant:
    """Return causal attention with a prefix that all see."""

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx < length) | (q_idx >= kv_idx)

    def visible(shape: Shape) -> int:
        seen = min(length, shape.length)
        return shape.batch * (triangle(shape.length) + triangle(seen - 1))

    return Variant(lambda shape, device: Mods(mask=mask), visible)


def alibi() -> Variant:
    """Return causal attention with a bias that falls with the distance, at each head's slope."""

    def make(shape: Shape, device: torch.device) -> Mods:
        head = torch.arange(1, shape.heads + 1, device=device, dtype=torch.float32)
        slopes = torch.exp2(-8.0 * head / shape.heads)

        def score(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score + slopes[h] * (kv_idx - q_idx)

        return Mods(score=score, mask=causal_mask, learnable=(slopes,))

    return Variant(make, causal_scores)


def key_bias() -> Variant:
    """Return full attention with a bias for each head and key."""

    def make(shape: Shape, device: torch.device) -> Mods:
        draw = torch.Generator().manual_seed(1)
        bias = torch.randn(shape.heads, shape.length, generator=draw).to(device)

        def score(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score + bias[h, kv_idx]

        return Mods(score=score, learnable=(bias,))

    return Variant(make, all_scores)


def softcap(cap: float) -> Variant:
    """Return causal attention whose scores stay within plus and minus `cap`."""

    def score(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return cap * torch.tanh(score / cap)

    def make(shape: Shape, device: torch.device) -> Mods:
        return Mods(score=score, mask=causal_mask, flash={"causal": True, "softcap": cap})

    return Variant(make, causal_scores)


def documents() -> Variant:
    """Return causal attention inside packed documents of 512 to 3584 tokens."""

    def make(shape: Shape, device: torch.device) -> Mods:
        lengths = document_lengths(shape)
        rows = [torch.arange(len(n)).repeat_interleave(torch.tensor(n)) for n in lengths]
        ids = torch.stack(rows).to(torch.int32).to(device)

        def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return (q_idx >= kv_idx) & (ids[b, q_idx] == ids[b, kv_idx])

        return Mods(mask=mask, mask_by_batch=True, documents=lengths)

    return Variant(make, document_scores)


def t5(buckets: int, max_distance: int) -> Variant:
    """Return causal attention with T5's bias: of a bucket of distances, for each head."""

    def make(shape: Shape, device: torch.device) -> Mods:
        draw = torch.Generator().manual_seed(1)
        table = torch.randn(buckets, shape.heads, generator=draw).to(device)
        near = torch.tensor(bucket_by_distance(buckets, max_distance))
        bucket = near[torch.arange(shape.length).clamp(max=max_distance)].to(device)

        def score(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score + table[bucket[(q_idx - kv_idx).clamp(min=0)], h]

        return Mods(score=score, mask=causal_mask, learnable=(table,))

    return Variant(make, causal_scores)


VARIANTS: Final[dict[str, Variant]] = {
    "full": full(),
    "causal": causal(),
    "window-128": window(128),
    "window-1024": window(1024),
    "window-4096": window(4096),
    "prefix-2048": prefix(2048),
    "alibi": alibi(),
    "key-bias": key_bias(),
    "softcap-30": softcap(30.0),
    "documents": documents(),
    "t5-table": t5(32, 128),
}
