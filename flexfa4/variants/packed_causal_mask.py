"""Packed causal mask: documents packed into one row, each causal by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod
from flexfa4.variants.packing import entry, is_packed, require_offsets, start_of, to_offsets
from flexfa4.variants.parameters import given


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class PackedCausal(MaskMod):
    """Attend to ``start <= kv <= q``, where `start` is the first position of the query's document.

    Each query sees one interval of keys.  The result is that of ``Document(ids) & causal``; here
    the documents are given by offsets, and positions behind the last one are padding: they see
    nothing (out = 0, lse = -inf) and nothing sees them, so the sequence may be longer than its
    documents.

    Source: Krell et al., "Efficient Sequence Packing without Cross-contamination" (2021).

    Attributes:
        offsets: (D + 1,), integers from 0 on: where each of the D documents begins, then where the
            last one ends; also called ``cu_seqlens``.  They are read once, when the mask is made.
            Without offsets (the instance ``packed_causal``) using the mask is an error that says
            so.
    """

    offsets: torch.Tensor | None = None
    _starts: torch.Tensor | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if self.offsets is not None:
            require_offsets("PackedCausal.offsets", self.offsets)
            object.__setattr__(self, "_starts", start_of(self.offsets))

    @classmethod
    def from_lengths(
        cls, lengths: Sequence[int], *, device: torch.device | str | None = None
    ) -> PackedCausal:
        """Return the mask of documents that lie one behind the other.

        Args:
            lengths: positions of each document, each at least 0: ``[2, 4, 3]`` makes the offsets
                ``[0, 2, 6, 9]``.
            device: where the offsets live.
        """
        return cls(to_offsets("PackedCausal.from_lengths(lengths)", lengths, device))

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        starts = given(
            "PackedCausal.offsets",
            self._starts,
            expected="where each document begins and the last one ends, shape (D + 1,)",
            rewrite="PackedCausal(offsets), or PackedCausal.from_lengths([2, 4, 3])",
        )
        return (kv_idx >= entry(starts, q_idx)) & (kv_idx <= q_idx) & is_packed(starts, kv_idx)


packed_causal: Final = PackedCausal()
