"""Shared prefix mask: packed documents that all see one document, such as a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.packing import document_of, entry, is_packed, require_offsets, to_offsets
from flexfa4.variants.parameters import (
    given,
    require_index_tensor,
    require_values,
    require_wholes,
)


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class SharedPrefix(MaskMod):
    """Attend where key and query belong to the same document and ``kv <= q``, or where the key
    belongs to the prefix document of the query's document.

    For several answers to one prompt: the prompt is packed once, and each answer names it as its
    prefix.  All of the prefix is visible, wherever it lies; the prefix of a prefix is not
    (`PrefixTree` has whole lines of ancestors).  Positions behind the last document are padding:
    they see nothing (out = 0, lse = -inf) and nothing sees them.

    Source: Juravsky et al., "Hydragen: High-Throughput LLM Inference with Shared Prefixes" (2024),
    section 3, as a mask over packed documents.

    Attributes:
        offsets: (D + 1,), integers from 0 on: where each of the D documents begins, then where the
            last one ends; also called ``cu_seqlens``.
        prefix: (D,), integers: the prefix document of each document; its own number, or -1, where
            it has none.  Both tensors are read once, when the mask is made.  Without them (the
            instance ``shared_prefix``) using the mask is an error that says so.
    """

    offsets: torch.Tensor | None = None
    prefix: torch.Tensor | None = None
    _numbers: torch.Tensor | None = field(init=False, repr=False, default=None)
    _prefixes: torch.Tensor | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if self.offsets is None and self.prefix is None:
            return
        require_offsets("SharedPrefix.offsets", self.offsets)
        require_index_tensor("SharedPrefix.prefix", self.prefix, dims=(1,))
        assert self.offsets is not None and self.prefix is not None
        require_values("SharedPrefix.prefix", self.prefix)
        count, prefix = self.offsets.shape[0] - 1, self.prefix.to(self.offsets.device).long()
        named = prefix.tolist()
        if len(named) != count or not all(-1 <= number < count for number in named):
            raise ArgumentError(
                name="SharedPrefix.prefix",
                found_value=repr(named[:8] + ["..."] * (len(named) > 8)),
                expected=f"the number of a document, below {count}, or -1 for each of {count}",
                rewrite="torch.tensor([-1, 0, 0]) for two documents that share the first one",
            )
        numbers = document_of(self.offsets)
        # a document that names itself has no prefix, and padding neither
        own = prefix == torch.arange(count, device=prefix.device)
        prefix = torch.nn.functional.pad(prefix.masked_fill(own, -1), (0, 1), value=-1)
        object.__setattr__(self, "_numbers", numbers)
        object.__setattr__(self, "_prefixes", prefix[numbers])

    @classmethod
    def from_lengths(
        cls,
        lengths: Sequence[int],
        prefix: Sequence[int],
        *,
        device: torch.device | str | None = None,
    ) -> SharedPrefix:
        """Return the mask of documents that lie one behind the other.

        Args:
            lengths: positions of each document, each at least 0: ``[2, 4, 3]`` makes the offsets
                ``[0, 2, 6, 9]``.
            prefix: the number of each document's prefix, -1 for none.
            device: where the tensors live.
        """
        offsets = to_offsets("SharedPrefix.from_lengths(lengths)", lengths, device)
        require_wholes("SharedPrefix.from_lengths(prefix)", prefix, at_least=-1)
        return cls(offsets, torch.tensor(prefix, dtype=torch.long, device=device))

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        numbers, prefixes = (
            given(
                "SharedPrefix.offsets",
                table,
                expected="where documents begin, shape (D + 1,), and their prefixes, shape (D,)",
                rewrite="SharedPrefix(offsets, prefix), or "
                "SharedPrefix.from_lengths([4, 2, 3], [-1, 0, 0])",
            )
            for table in (self._numbers, self._prefixes)
        )
        document = entry(numbers, kv_idx)
        own = (document == entry(numbers, q_idx)) & (kv_idx <= q_idx)
        return (own | (document == entry(prefixes, q_idx))) & is_packed(numbers, kv_idx)


shared_prefix: Final = SharedPrefix()
