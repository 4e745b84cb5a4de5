"""What a row of the case table is: a named variant that builds its mods for given sizes.

The rows lie in modules by subject (`general`, `sequence_masks`, ...); this one holds none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Sizes:
    """Sizes of a case.

    Attributes:
        batch, heads, kv_heads, q_len, kv_len: as in `flexfa4.attention`.
        dim, value_dim: head dimensions of query and key, and of value.
        kv_batch: batch of key and value, None for `batch`.
    """

    batch: int = 2
    heads: int = 4
    kv_heads: int = 2
    q_len: int = 67
    kv_len: int = 83
    dim: int = 16
    value_dim: int = 16
    kv_batch: int | None = None


@dataclass(frozen=True)
class Mods:
    """The mods of a case, made for given sizes.

    Attributes:
        score_mod, mask: what the user passes (None: absent).
        learned: captured tensors that require gradients, in the order in which tests compare them.
        eager_score_mod, eager_mask: the same on index tensors, where the user's form cannot be
            called eagerly (text, or symbols such as ``flexfa4.num_heads``).
    """

    score_mod: Any = None
    mask: Any = None
    learned: tuple[torch.Tensor, ...] = ()
    eager_score_mod: Callable[..., Any] | None = None
    eager_mask: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Draw:
    """Where a case takes its captured tensors from: the same values in any dtype."""

    generator: torch.Generator
    dtype: torch.dtype = torch.float32

    def learned(self, *shape: int) -> torch.Tensor:
        """Return a normally distributed tensor that requires gradients."""
        return torch.randn(shape, generator=self.generator).to(self.dtype).requires_grad_()

    def fixed(self, *shape: int) -> torch.Tensor:
        """Return a uniformly distributed tensor."""
        return torch.rand(shape, generator=self.generator).to(self.dtype)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return integers, `high` excluded."""
        return torch.randint(low, high, shape, generator=self.generator)


Factory = Callable[[Sizes, Draw], Mods]


@dataclass(frozen=True)
class Case:
    """One row of the case table.

    Attributes:
        name: identifies it in test ids and tables.
        make: builds the mods for given sizes.
    """

    name: str
    make: Factory

    @classmethod
    def of(cls, score_mod: Any = None, mask: Any = None, *, name: str = "given") -> Case:
        """Return a case of mods that are the same for all sizes."""
        return cls(name, lambda sizes, draw: Mods(score_mod, mask))
