"""Tree attention mask (Medusa): drafted tokens in a tree, verified in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.ancestry import ancestor_matrix, parents_by_paths, require_parents
from flexfa4.variants.parameters import (
    element,
    given,
    of_batch,
    require_bool_tensor,
    require_whole_or_per_batch,
)


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class TreeAttention(MaskMod):
    """Attend to ``kv < prefix``, and to ``kv = prefix + j`` where ``ancestors[q, j]``.

    The queries are the N nodes of a tree of drafted tokens, the keys a prefix of `prefix` positions
    and then the same nodes: each node sees the whole prefix, its ancestors and itself.  Queries
    from N on see nothing (out = 0, lse = -inf), and keys from ``prefix + N`` on are not seen, so
    both may be padded and the key cache may be longer than what is valid in it.

    Source: Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding
    Heads" (2024), section 2.1.2, "Tree Attention".

    Attributes:
        ancestors: (N, N) or (B, N, N), bools, N at least 1: whether node j is node q or an ancestor
            of it.  Without it (the instance ``tree_attention``) using the mask is an error that
            says so.
        prefix: keys before the tree, at least 0; or integers () or (B,), for each batch entry.
    """

    ancestors: torch.Tensor | None = None
    prefix: int | torch.Tensor = 0

    def __post_init__(self) -> None:
        name = "TreeAttention.ancestors"
        require_whole_or_per_batch("TreeAttention.prefix", self.prefix, at_least=0)
        if self.ancestors is None:
            return
        require_bool_tensor(name, self.ancestors, dims=(2, 3))
        rows, columns = self.ancestors.shape[-2:]
        if rows != columns or rows < 1:
            raise ArgumentError(
                name=name,
                found_value=f"a tensor of shape {tuple(self.ancestors.shape)}",
                expected="a row and a column for each of one node or more",
                rewrite="TreeAttention.from_parents([-1, 0, 0, 1])",
            )

    @classmethod
    def from_parents(
        cls,
        parents: Sequence[int],
        *,
        prefix: int | torch.Tensor = 0,
        device: torch.device | str | None = None,
    ) -> TreeAttention:
        """Return the mask of a tree given by the parent of each node.

        Args:
            parents: for each node the number of its parent, which comes before it, or -1 for a
                root: ``[-1, 0, 0, 1]`` is a root with two children and a child of the first.
            prefix: as the attribute.
            device: where the matrix lives.
        """
        require_parents("TreeAttention.from_parents(parents)", parents)
        return cls(ancestor_matrix(parents).to(device), prefix)

    @classmethod
    def from_paths(
        cls,
        paths: Sequence[Sequence[int]],
        *,
        prefix: int | torch.Tensor = 0,
        device: torch.device | str | None = None,
    ) -> TreeAttention:
        """Return the mask of a tree given by the path to each node, as Medusa's choices.

        Args:
            paths: for each node but the root the ranks of the choices that lead to it:
                ``[[0], [1], [0, 0]]``.  Node 0 is the root, the others follow in the order of depth
                and then of ranks, whatever their order here.
            prefix: as the attribute.
            device: where the matrix lives.
        """
        parents = parents_by_paths("TreeAttention.from_paths(paths)", paths)
        return cls.from_parents(parents, prefix=prefix, device=device)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        table = given(
            "TreeAttention.ancestors",
            self.ancestors,
            expected="which nodes are ancestors of which, bools of shape (N, N) or (B, N, N)",
            rewrite="TreeAttention(ancestors), or TreeAttention.from_parents([-1, 0, 0, 1])",
        )
        count = table.shape[-1]
        node = kv_idx - of_batch(self.prefix, b)
        related = element(table, b, q_idx.clamp(max=count - 1), node.clamp(0, count - 1))
        return (q_idx < count) & ((node < 0) | (node < count) & related)


tree_attention: Final = TreeAttention()
