"""DeBERTa: what a query or key says about relative positions joins the scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import ScoreMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.clipped_relative_bias import require_one_dtype
from flexfa4.variants.parameters import given, require_float_tensor


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class Deberta(ScoreMod):
    """Add ``scale * (dot(query[q], k_pos[d(q, kv)]) + dot(key[kv], q_pos[d(kv, q)]))``.

    ``d(i, j) = clip(i - j + k, 0, 2 * k - 1)`` and ``scale = 1 / sqrt(3 * D)``, three being the
    number of terms; attention itself computes the third, and needs that scale too:

        mod = Deberta(q, k, q_pos, k_pos)
        out = flexfa4.attention(q, k, v, score_mod=mod, scale=(3 * dim) ** -0.5)

    The products with the position vectors are made once for each call and looked up by distance.

    Source: He et al., "DeBERTa: Decoding-enhanced BERT with Disentangled Attention" (2020), section
    3.1, equations 3 and 4.

    Attributes:
        query: (B, H, Lq, D): the queries of the call; they get gradients from here too.
        key: (B, H, Lk, D): the keys of the call, likewise.
        q_pos: (H, 2 * k, D): the position vectors by the projection of the queries, learnable.
        k_pos: (H, 2 * k, D): those by the projection of the keys, learnable.
    """

    query: torch.Tensor | None = None
    key: torch.Tensor | None = None
    q_pos: torch.Tensor | None = None
    k_pos: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.query is None:
            return
        query = require_float_tensor("Deberta.query", self.query, ("B", "H", "Lq", "D"))
        batch, heads, _, dim = query.shape
        key = require_float_tensor("Deberta.key", self.key, (batch, heads, "Lk", dim))
        q_pos = require_float_tensor("Deberta.q_pos", self.q_pos, (heads, "2 * k", dim))
        k_pos = require_float_tensor("Deberta.k_pos", self.k_pos, (heads, q_pos.shape[1], dim))
        require_one_dtype("Deberta", query=query, key=key, q_pos=q_pos, k_pos=k_pos)
        if q_pos.shape[1] % 2 or not q_pos.shape[1]:
            raise ArgumentError(
                name="Deberta.q_pos",
                found_value=f"a tensor of {q_pos.shape[1]} positions",
                expected="2 * k positions, for the distances from -k to k - 1",
                rewrite="an even number of them",
            )

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the score of all three terms."""
        query, key, q_pos, k_pos = (
            given(
                f"Deberta.{name}",
                value,
                expected="queries, keys and position vectors, a tensor each",
                rewrite="Deberta(query, key, q_pos, k_pos)",
            )
            for name, value in (
                ("query", self.query),
                ("key", self.key),
                ("q_pos", self.q_pos),
                ("k_pos", self.k_pos),
            )
        )
        of_query, of_key = torch.matmul(query, k_pos.mT), torch.matmul(key, q_pos.mT)
        last = q_pos.shape[1] - 1
        k = q_pos.shape[1] // 2
        added = (
            of_query[b, h, q_idx, (q_idx - kv_idx + k).clamp(0, last)]
            + of_key[b, h, kv_idx, (kv_idx - q_idx + k).clamp(0, last)]
        )
        return score + added * (3 * query.shape[-1]) ** -0.5


deberta: Final = Deberta()
