"""Learned relative positions with clipped distances: as a number, and as vectors of the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import ScoreMod
from flexfa4.errors import ArgumentError, DTypesDifferError
from flexfa4.variants.parameters import given, require_float_tensor, require_positive


def _require_odd(name: str, table: torch.Tensor) -> None:
    if table.shape[0] % 2 == 0:
        raise ArgumentError(
            name=name,
            found_value=f"a tensor of {table.shape[0]} rows",
            expected="2 * k + 1 rows: one for each distance from -k to k",
            rewrite=f"a table of {table.shape[0] + 1} rows",
        )


def require_one_dtype(name: str, **tensors: torch.Tensor) -> None:
    """Refuse tensors of several dtypes, which torch does not multiply.

    Raises:
        DTypesDifferError: they differ.
    """
    if len({t.dtype for t in tensors.values()}) > 1:
        raise DTypesDifferError(
            dtypes=", ".join(f"{n}: {str(t.dtype)[6:]}" for n, t in tensors.items()),
            names=f"the tensors of {name}",
            rewrite=" and ".join(tensors) + " converted with .to(dtype)",
        )


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class RelativeBias(ScoreMod):
    """Add ``table[clip(kv - q, -k, k) + k, h]``: a learned number for each distance up to k.

        table = torch.nn.Parameter(torch.zeros(2 * 128 + 1, heads))
        out = flexfa4.attention(q, k, v, score_mod=RelativeBias(table))

    Source: the clipping of Shaw et al., "Self-Attention with Relative Position Representations"
    (2018), section 3.2, with a scalar for each head as in Raffel et al. (2019), section 2.1.

    Attributes:
        table: (2 * k + 1, H), learnable.
    """

    table: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.table is not None:
            require_float_tensor("RelativeBias.table", self.table, ("2 * k + 1", "H"))
            _require_odd("RelativeBias.table", self.table)

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        table: Any = given(
            "RelativeBias.table",
            self.table,
            expected="a number for each distance and head, a tensor of shape (2 * k + 1, H)",
            rewrite="RelativeBias(torch.nn.Parameter(torch.zeros(2 * 128 + 1, heads)))",
        )
        k = table.shape[0] // 2
        return score + table[(kv_idx - q_idx).clamp(-k, k) + k, h]


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class ShawRelative(ScoreMod):
    """Add ``scale * dot(query[b, h, q], table[clip(kv - q, -k, k) + k])``.

    The keys gain a learned vector for each distance up to k.  Its products with the queries are
    made once for each call, ``Lq * (2 * k + 1)`` of them for each head, and looked up by distance.
    The paper's vectors of the values are no part of the scores, and not of this.

        table = torch.nn.Parameter(torch.randn(2 * 16 + 1, dim))
        out = flexfa4.attention(q, k, v, score_mod=ShawRelative(q, table))

    Source: Shaw et al., "Self-Attention with Relative Position Representations" (2018), section
    3.2, equation 4.

    Attributes:
        query: (B, Hq, Lq, D): the queries of the call; they get gradients from here too.
        table: (2 * k + 1, D), or (Hq, 2 * k + 1, D) for one of each head, learnable; of query's
            dtype.
        scale: that of the call; None is ``1/sqrt(D)``, as there.
    """

    query: torch.Tensor | None = None
    table: torch.Tensor | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.scale is not None:
            require_positive("ShawRelative.scale", self.scale)
        if self.query is None:
            return
        query = require_float_tensor("ShawRelative.query", self.query, ("B", "Hq", "Lq", "D"))
        rows, heads, dim = "2 * k + 1", query.shape[1], query.shape[3]
        table = require_float_tensor(
            "ShawRelative.table", self.table, (rows, dim), (heads, rows, dim)
        )
        _require_odd("ShawRelative.table", table if table.dim() == 2 else table[0])
        require_one_dtype("ShawRelative", query=query, table=table)

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        rewrite = "ShawRelative(query, table)"
        query = given(
            "ShawRelative.query",
            self.query,
            expected="the queries of the call, a tensor of shape (B, Hq, Lq, D)",
            rewrite=rewrite,
        )
        table = given(
            "ShawRelative.table",
            self.table,
            expected="a vector for each distance, a tensor of shape (2 * k + 1, D)",
            rewrite=rewrite,
        )
        scale: Any = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        products = torch.matmul(query, table.mT)
        k = products.shape[-1] // 2
        return score + scale * products[b, h, q_idx, (kv_idx - q_idx).clamp(-k, k) + k]


relative_bias: Final = RelativeBias()
shaw_relative: Final = ShawRelative()
