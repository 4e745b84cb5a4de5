"""Graphormer: biases by the shortest path between two nodes of a graph, and by its edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import ScoreMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import given, require_float_tensor, require_index_tensor
from flexfa4.variants.shortest_paths import path_edges, path_lengths


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class GraphormerSpatial(ScoreMod):
    """Add ``table[distances[b, q, kv], h]``: a learned number for each distance in the graph.

        table = torch.nn.Parameter(torch.zeros(5 + 2, heads))
        mod = GraphormerSpatial.from_adjacency(table, adjacency)

    Source: Ying et al., "Do Transformers Really Perform Bad for Graph Representation?" (2021),
    section 3.1.2.

    Attributes:
        table: (distances, H), learnable, such as the weight of a `torch.nn.Embedding`.
        distances: (B, N, N), integers: the row of `table` for each pair of nodes, with N at least
            the number of queries and of keys.
    """

    table: torch.Tensor | None = None
    distances: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.table is not None:
            require_float_tensor("GraphormerSpatial.table", self.table, ("distances", "H"))
            require_index_tensor("GraphormerSpatial.distances", self.distances, dims=(3,))

    @classmethod
    def from_adjacency(cls, table: torch.Tensor, adjacency: torch.Tensor) -> GraphormerSpatial:
        """Return the bias for graphs that are given by their edges.

        Args:
            table: as in the class, of at least 2 rows: row d is for nodes d edges apart, the last
                but one also for all that are further apart, the last for nodes without a path.
            adjacency: (B, N, N), bools or numbers, not zero where an edge leads from the query's
                node (second axis) to the key's.
        """
        rows = require_float_tensor("GraphormerSpatial.table", table, ("distances", "H")).shape[0]
        if rows < 2:
            raise ArgumentError(
                name="GraphormerSpatial.table",
                found_value=f"a tensor of {rows} rows",
                expected="2 rows or more: distances from 0, and nodes without a path",
                rewrite="a table of shape (largest distance + 2, H)",
            )
        return cls(table, path_lengths(adjacency, largest=rows - 2))

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        rewrite = "GraphormerSpatial.from_adjacency(table, adjacency)"
        table: Any = given(
            "GraphormerSpatial.table",
            self.table,
            expected="a number for each distance and head, a tensor of shape (distances, H)",
            rewrite=rewrite,
        )
        distances: Any = given(
            "GraphormerSpatial.distances",
            self.distances,
            expected="the distance of each pair, a tensor of shape (B, N, N)",
            rewrite=rewrite,
        )
        return score + table[distances[b, q_idx, kv_idx], h]


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class GraphormerEdge(ScoreMod):
    """Add the mean of ``table[n, edges[b, q, kv, n], h]`` over the edges n of a shortest path.

    Pairs without a path, and a node with itself, get nothing.  The paper multiplies an embedding of
    the edge's type by a weight of its place on the path; both are one table here, and the product
    made outside, ``torch.einsum("ed,khd->keh", types, weights)``, passes its gradients on to both.

    Source: Ying et al., "Do Transformers Really Perform Bad for Graph Representation?" (2021),
    section 3.1.3.

    Attributes:
        table: (K, types, H), learnable: by place on the path, type of the edge, and query head.
        edges: (B, N, N, K), integers: the types along a shortest path, and any valid type beyond
            its end (`OutOfRangeError` where one is not from 0 to ``types - 1``); N is at least the
            number of queries and of keys.
        lengths: (B, N, N), integers: the number of edges on it, 0 for none; more than K count as K.
    """

    table: torch.Tensor | None = None
    edges: torch.Tensor | None = None
    lengths: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.table is not None:
            require_float_tensor("GraphormerEdge.table", self.table, ("K", "types", "H"))
            require_index_tensor("GraphormerEdge.edges", self.edges, dims=(4,))
            require_index_tensor("GraphormerEdge.lengths", self.lengths, dims=(3,))
            assert self.edges is not None
            if self.edges.shape[-1] != self.table.shape[0]:
                raise ArgumentError(
                    name="GraphormerEdge.edges",
                    found_value=f"a tensor of shape {tuple(self.edges.shape)}",
                    expected=f"K = {self.table.shape[0]} edges, as many as table has places",
                    rewrite="edges[..., :K], or a longer table",
                )

    @classmethod
    def from_adjacency(
        cls, table: torch.Tensor, adjacency: torch.Tensor, types: torch.Tensor
    ) -> GraphormerEdge:
        """Return the bias for graphs that are given by their edges.

        Of several shortest paths, the one through the nodes of the lowest numbers counts; of a path
        with more than K edges, the first K.

        Args:
            table: as in the class.
            adjacency: (B, N, N), bools or numbers, not zero where an edge leads from the query's
                node (second axis) to the key's.
            types: (B, N, N), integers: the type of each edge.
        """
        require_float_tensor("GraphormerEdge.table", table, ("K", "types", "H"))
        edges, lengths = path_edges(adjacency, types, most=table.shape[0])
        return cls(table, edges, lengths)

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        rewrite = "GraphormerEdge.from_adjacency(table, adjacency, types)"
        table, edges, lengths = (
            given(f"GraphormerEdge.{name}", value, expected=expected, rewrite=rewrite)
            for name, value, expected in (
                ("table", self.table, "numbers by place, type and head, of shape (K, types, H)"),
                ("edges", self.edges, "the types along each path, of shape (B, N, N, K)"),
                ("lengths", self.lengths, "the edges of each path, of shape (B, N, N)"),
            )
        )
        place = torch.arange(table.shape[0], device=table.device)
        length: Any = lengths[b, q_idx, kv_idx].clamp(max=table.shape[0])
        types = table.shape[1]
        edge = edges[b, q_idx, kv_idx]
        is_type = (edge >= 0) & (edge < types)
        # a type that the table lacks would read the row of another place: it is out of range here
        row = torch.where(is_type, edge + place * types, table.shape[0] * types)
        terms = table.flatten(0, 1)[row, h.unsqueeze(-1)]
        on_path = place < length.unsqueeze(-1)
        return score + torch.where(on_path, terms, 0.0).sum(-1) / length.clamp(min=1)


graphormer_spatial: Final = GraphormerSpatial()
graphormer_edge: Final = GraphormerEdge()
