"""Packed documents mask: a mask inside each document, with positions counted from its start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod, mask
from flexfa4.variants.causal_mask import causal
from flexfa4.variants.packing import (
    document_of,
    entry,
    is_packed,
    require_offsets,
    to_offsets,
)
from flexfa4.variants.parameters import given


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class PackedDocuments(MaskMod):
    """Attend where query and key belong to the same document and `inner` lets them, with positions
    counted from the start of the document: ``inner(b, h, q - start, kv - start)``.

    So ``PackedDocuments(offsets, PrefixLM(16))`` gives a prefix of 16 to each document.  Positions
    behind the last document are padding: they see nothing (out = 0, lse = -inf) and nothing sees
    them, so the sequence may be longer than its documents.

    Source: Krell et al., "Efficient Sequence Packing without Cross-contamination" (2021).

    Attributes:
        offsets: (D + 1,), integers from 0 on: where each of the D documents begins, then where the
            last one ends; also called ``cu_seqlens``.  They are read once, when the mask is made.
            Without offsets (the instance ``packed_documents``) using the mask is an error that says
            so.
        inner: mask function or text.
    """

    offsets: torch.Tensor | None = None
    inner: Callable[..., Any] | str = causal
    _numbers: torch.Tensor | None = field(init=False, repr=False, default=None)
    _starts: torch.Tensor | None = field(init=False, repr=False, default=None)
    _inner: MaskMod = field(init=False, repr=False, default=causal)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_inner", mask(self.inner))
        if self.offsets is not None:
            require_offsets("PackedDocuments.offsets", self.offsets)
            object.__setattr__(self, "_numbers", document_of(self.offsets))
            object.__setattr__(self, "_starts", self.offsets.long())

    @classmethod
    def from_lengths(
        cls,
        lengths: Sequence[int],
        inner: Callable[..., Any] | str = causal,
        *,
        device: torch.device | str | None = None,
    ) -> PackedDocuments:
        """Return the mask of documents that lie one behind the other.

        Args:
            lengths: positions of each document, each at least 0: ``[2, 4, 3]`` makes the offsets
                ``[0, 2, 6, 9]``.
            inner: as the attribute.
            device: where the offsets live.
        """
        return cls(to_offsets("PackedDocuments.from_lengths(lengths)", lengths, device), inner)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        numbers, starts = (
            given(
                "PackedDocuments.offsets",
                table,
                expected="where each document begins and the last one ends, shape (D + 1,)",
                rewrite="PackedDocuments(offsets), or PackedDocuments.from_lengths([2, 4, 3])",
            )
            for table in (self._numbers, self._starts)
        )
        same = (entry(numbers, q_idx) == entry(numbers, kv_idx)) & is_packed(numbers, kv_idx)
        # Each its own start, so that `inner` reads its tensors at positions of documents only; and
        # through the number, by which analysis sees that within a document the start is the same.
        q_local, kv_local = (at - starts[entry(numbers, at)] for at in (q_idx, kv_idx))
        return same & self._inner(b, h, q_local, kv_local)


packed_documents: Final = PackedDocuments()
