"""Prefix tree mask: packed pieces of text that share their beginnings, on any number of levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod
from flexfa4.variants.ancestry import ancestor_matrix, require_parents
from flexfa4.variants.packing import document_of, entry, is_packed, require_offsets, to_offsets
from flexfa4.variants.parameters import given, require_wholes


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class PrefixTree(MaskMod):
    """Attend to ``kv <= q`` where the key's piece is the query's piece or one of its ancestors.

    Texts with common beginnings, packed without repeating these: each node of the tree is a piece
    of text, and a text is the line of pieces from a root to a node.  As a parent lies before its
    children, ``kv <= q`` holds for all of an ancestor.  Positions behind the last piece are
    padding: they see nothing (out = 0, lse = -inf) and nothing sees them.

    Source: Yao et al., "DeFT: Decoding with Flash Tree-Attention" (2024), section 3, for trees of
    pieces; with one level it is `SharedPrefix`.

    Attributes:
        offsets: (D + 1,), integers from 0 on: where each of the D pieces begins, then where the
            last one ends.  They are read once, when the mask is made.
        parents: D ints: the parent of each piece, which comes before it, or -1 for a root.  Without
            offsets and parents (the instance ``prefix_tree``) using the mask is an error that says
            so.
    """

    offsets: torch.Tensor | None = None
    parents: Sequence[int] = ()
    _numbers: torch.Tensor | None = field(init=False, repr=False, default=None)
    _descends: torch.Tensor | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        require_wholes("PrefixTree.parents", self.parents, at_least=-1)
        if self.offsets is None and not self.parents:
            return
        require_offsets("PrefixTree.offsets", self.offsets)
        assert self.offsets is not None
        require_parents("PrefixTree.parents", self.parents, count=self.offsets.shape[0] - 1)
        # one more piece, without relatives, stands for the padding
        matrix = ancestor_matrix([*self.parents, -1]).to(self.offsets.device)
        object.__setattr__(self, "_numbers", document_of(self.offsets))
        object.__setattr__(self, "_descends", matrix)

    @classmethod
    def from_lengths(
        cls,
        lengths: Sequence[int],
        parents: Sequence[int],
        *,
        device: torch.device | str | None = None,
    ) -> PrefixTree:
        """Return the mask of pieces that lie one behind the other.

        Args:
            lengths: positions of each piece, each at least 0: ``[2, 4, 3]`` makes the offsets
                ``[0, 2, 6, 9]``.
            parents: as the attribute.
            device: where the tensors live.
        """
        return cls(to_offsets("PrefixTree.from_lengths(lengths)", lengths, device), parents)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        numbers, descends = (
            given(
                "PrefixTree.offsets",
                table,
                expected="where each piece begins, shape (D + 1,), and the parent of each",
                rewrite="PrefixTree.from_lengths([4, 2, 3, 2], [-1, 0, 0, 2])",
            )
            for table in (self._numbers, self._descends)
        )
        related = descends[entry(numbers, q_idx), entry(numbers, kv_idx)]
        return related & (kv_idx <= q_idx) & is_packed(numbers, kv_idx)


prefix_tree: Final = PrefixTree()
