"""A small byte-level transformer whose attention can be exchanged, and the two attentions.

Both compute the same function: ALiBi's bias on the scores, and a mask that keeps every position
within its document and a window of the keys before it.  `Sparse` asks flexfa4 for it; `Dense` is
what one writes without it: the whole score matrix, a masked softmax, plain torch.

Pre-norm blocks, grouped-query attention, and no position embedding: ALiBi carries the positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

import flexfa4
from flexfa4.block_mask import BlockMask
from flexfa4.demo.corpus import VOCABULARY
from flexfa4.variants import Document, SlidingWindow, alibi


@dataclass(frozen=True)
class Shape:
    """Sizes of the model.

    Attributes:
        layers: blocks of attention and feed-forward.
        heads: query heads.
        kv_heads: key and value heads, a divisor of `heads`.
        head_dim: width of a head.
        window: keys that a query sees at most, its own included.
    """

    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    window: int = 256

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        return self.heads * self.head_dim


class Attention(Protocol):
    """What the model needs of an attention: told of the documents once a step, then called."""

    def prepare(self, documents: torch.Tensor) -> None:
        """Take the document (B, S) of each position, the same for all layers."""

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return (B, H, S, D) for q (B, H, S, D), k and v (B, Hkv, S, D)."""


class Sparse:
    """Attention by flexfa4: blocks that the mask empties are never computed."""

    def __init__(self, shape: Shape) -> None:
        self.window = shape.window
        self.block_mask: BlockMask | None = None

    def prepare(self, documents: torch.Tensor) -> None:
        """Make the block mask of this step's documents."""
        batch, length = documents.shape
        self.block_mask = flexfa4.create_block_mask(
            Document(documents) & SlidingWindow(self.window),
            batch=batch,
            q_len=length,
            kv_len=length,
        )

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return the output of attention, (B, H, S, D)."""
        return flexfa4.attention(q, k, v, score_mod=alibi, block_mask=self.block_mask)

    def skipped(self) -> float:
        """Return the share of blocks that the current mask skips."""
        assert self.block_mask is not None
        return 1.0 - self.block_mask.density


class Dense:
    """Attention in plain torch: all S x S scores of every head, then a masked softmax."""

    def __init__(self, shape: Shape) -> None:
        self.window = shape.window
        self.slopes = torch.exp2(-8.0 * torch.arange(1, shape.heads + 1) / shape.heads)

    def prepare(self, documents: torch.Tensor) -> None:
        """Make the (B, 1, S, S) mask and the (H, S, S) bias of this step."""
        position = torch.arange(documents.shape[1])
        distance = position[:, None] - position
        window = (distance >= 0) & (distance < self.window)
        self.visible = (window & (documents[:, :, None] == documents[:, None, :])).unsqueeze(1)
        self.bias = -self.slopes[:, None, None] * distance

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return the output of attention, (B, H, S, D)."""
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + self.bias.to(q.dtype)
        out: torch.Tensor = scores.masked_fill(~self.visible, -torch.inf).softmax(-1) @ v
        return out


class Block(nn.Module):
    """Attention and a feed-forward network, each on the normalised residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, kv_width = shape.width, shape.kv_heads * shape.head_dim
        self.head_dim = shape.head_dim
        self.split = [width, kv_width, kv_width]
        self.before_attention = nn.LayerNorm(width)
        self.project_in = nn.Linear(width, width + 2 * kv_width)
        self.project_out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, attention: Attention) -> torch.Tensor:
        """Return the residual stream (B, S, width) after this block."""
        q, k, v = (
            part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for part in self.project_in(self.before_attention(x)).split(self.split, -1)
        )
        x = x + self.project_out(attention(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.feed_forward(x)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY)

    def loss(
        self, tokens: torch.Tensor, targets: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        """Return the mean cross entropy in nats, of the (B, S) targets given the (B, S) tokens."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, attention)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
