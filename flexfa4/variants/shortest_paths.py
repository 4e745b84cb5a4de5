"""Shortest paths between all nodes of small graphs, for biases that read them.

Breadth first, in plain torch on whole matrices: N matrix products of (N, N) for graphs of N nodes
in one chain, which is what preparing a batch of molecules or scenes needs.  No weights of edges,
and no use of sparseness.
"""

from __future__ import annotations

import torch

from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import require_index_tensor, require_whole


def path_lengths(adjacency: torch.Tensor, *, largest: int) -> torch.Tensor:
    """Return the number of edges between each pair of nodes.

    Args:
        adjacency: (B, N, N), bools or numbers, not zero at [b, i, j] where an edge leads from i to
            j; the diagonal is not read.
        largest: longer paths count as this long, at least 0.

    Returns:
        (B, N, N), int64: 0 on the diagonal, ``largest + 1`` where there is no path.

    Raises:
        ArgumentError: the arguments are none of these.
    """
    require_whole("path_lengths(largest)", largest, at_least=0)
    exact = _exact_lengths(_edges(adjacency))
    return torch.where(exact < 0, largest + 1, exact.clamp(max=largest))


def path_edges(
    adjacency: torch.Tensor, types: torch.Tensor, *, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the types of the edges along a shortest path between each pair of nodes.

    Of several paths, each step takes the node of the lowest number.

    Args:
        adjacency: as for `path_lengths`.
        types: (B, N, N), integers: the type of the edge from i to j at [b, i, j].
        most: edges of a path to return, from its start, at least 1.

    Returns:
        types (B, N, N, most), 0 beyond the end of a path, and how many of them count (B, N, N),
        int64, 0 where there is no path.

    Raises:
        ArgumentError: the arguments are none of these.
    """
    require_index_tensor("path_edges(types)", types, dims=(3,))
    require_whole("path_edges(most)", most, at_least=1)
    edges = _edges(adjacency)
    if types.shape != edges.shape:
        raise ArgumentError(
            name="path_edges(types)",
            found_value=f"a tensor of shape {tuple(types.shape)}",
            expected=f"one type for each edge, of adjacency's shape {tuple(edges.shape)}",
            rewrite="torch.zeros_like(adjacency, dtype=torch.long) where there are no types",
        )
    lengths = _exact_lengths(edges)
    batch, nodes, _ = edges.shape
    step = _first_steps(edges, lengths)
    here = torch.arange(nodes, device=edges.device)[:, None].expand(batch, nodes, nodes)
    target = torch.arange(nodes, device=edges.device).expand(batch, nodes, nodes)
    entry = torch.arange(batch, device=edges.device)[:, None, None]
    found = []
    for place in range(most):
        there = step[entry, here, target]
        on_path = lengths > place
        found.append(torch.where(on_path, types[entry, here, there], 0))
        here = torch.where(on_path, there, here)
    return torch.stack(found, -1), lengths.clamp(0, most)


def _edges(adjacency: object) -> torch.Tensor:
    if not isinstance(adjacency, torch.Tensor):
        found = repr(adjacency)
    elif adjacency.dim() != 3 or adjacency.shape[1] != adjacency.shape[2]:
        found = f"a tensor of shape {tuple(adjacency.shape)}"
    else:
        return adjacency != 0
    raise ArgumentError(
        name="adjacency",
        found_value=found,
        expected="a tensor of shape (B, N, N)",
        rewrite="stack the graphs: torch.stack(adjacencies)",
    )


def _exact_lengths(edges: torch.Tensor) -> torch.Tensor:
    """Return the length of each shortest path, -1 where there is none."""
    nodes = edges.shape[-1]
    reached = torch.eye(nodes, dtype=torch.bool, device=edges.device).expand_as(edges)
    lengths = reached.long() - 1
    for length in range(1, nodes):
        # counts of at most `nodes` walks: exact in fp32
        new = (reached.float() @ edges.float() > 0) & ~reached
        if not new.any():
            break
        lengths = torch.where(new, length, lengths)
        reached = reached | new
    return lengths


def _first_steps(edges: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the node after i on the path from i to j, (B, N, N); anything where there is none."""
    steps = [
        # over k: an edge leads from i to k, and k is one edge closer to j
        (edges[:, i, :, None] & (lengths == lengths[:, i, None, :] - 1) & (lengths >= 0))
        .byte()
        .argmax(1)
        for i in range(edges.shape[-1])
    ]
    return torch.stack(steps, 1) if steps else lengths
