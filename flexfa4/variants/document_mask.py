"""Document mask: sequences packed into one row do not see each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import require_index_tensor, require_wholes


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class Document(MaskMod):
    """Attend where query and key belong to the same document.

    Positions are absolute: the same ids serve queries and keys.  Combine it with a causal mask for
    language models: ``Document(ids) & causal``.

    Source: Krell et al., "Efficient Sequence Packing without Cross-contamination" (2021).

    Attributes:
        ids: (S,) or (B, S), integers: the document of each position, with S at least the number of
            queries and of keys (`OutOfRangeError` otherwise, when the blocks are found).  Without
            ids (the instance ``document``) using the mask is an error that says so.
    """

    ids: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.ids is not None:
            require_index_tensor("Document.ids", self.ids, dims=(1, 2))

    @classmethod
    def from_lengths(
        cls, lengths: Sequence[int], *, device: torch.device | str | None = None
    ) -> Document:
        """Return the mask of documents that lie one behind the other.

        Args:
            lengths: positions of each document, each at least 0: ``[2, 4, 3]`` makes the ids
                ``[0, 0, 1, 1, 1, 1, 2, 2, 2]``.
            device: where the ids live.

        Raises:
            ArgumentError: they are no list of ints of at least 0.
        """
        require_wholes("Document.from_lengths(lengths)", lengths, at_least=0)
        counts = torch.tensor(lengths, dtype=torch.long, device=device)
        return cls(torch.repeat_interleave(counts))

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        if self.ids is None:
            raise ArgumentError(
                name="Document.ids",
                found_value="None",
                expected="the document of each position, a tensor of shape (S,) or (B, S)",
                rewrite="Document(ids), or Document.from_lengths([2, 4, 3])",
            )
        if self.ids.dim() == 2:
            return self.ids[b, q_idx] == self.ids[b, kv_idx]
        return self.ids[q_idx] == self.ids[kv_idx]


document: Final = Document()
