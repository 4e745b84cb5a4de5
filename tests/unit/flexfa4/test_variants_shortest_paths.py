"""Shortest paths against a search from each node, and paths read edge by edge."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.errors import ArgumentError
from flexfa4.variants.shortest_paths import path_edges, path_lengths


def searched(adjacency: torch.Tensor, start: int) -> dict[int, int]:
    """The distance of each node that can be reached, by a queue."""
    found, queue = {start: 0}, [start]
    for node in queue:
        for after in adjacency[node].nonzero().flatten().tolist():
            if after not in found:
                found[after] = found[node] + 1
                queue.append(after)
    return found


@given(st.integers(0, 9), st.integers(1, 6), st.integers(0, 4), st.integers(0, 10**6))
def test_lengths_are_those_of_a_search_from_each_node(
    nodes: int, one_in: int, largest: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    adjacency = torch.randint(0, one_in, (2, nodes, nodes), generator=g) == 0
    found = path_lengths(adjacency, largest=largest)
    for b in range(2):
        for i in range(nodes):
            exact = searched(adjacency[b], i)
            right = [min(exact[j], largest) if j in exact else largest + 1 for j in range(nodes)]
            assert found[b, i].tolist() == right


@given(st.integers(0, 8), st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_edges_lead_along_a_shortest_path(nodes: int, one_in: int, most: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    adjacency = torch.randint(0, one_in, (1, nodes, nodes), generator=g)
    adjacency = (adjacency == 0).int()
    names = torch.arange(nodes * nodes).reshape(1, nodes, nodes)  # each edge is a type of its own
    edges, lengths = path_edges(adjacency, names, most=most)
    for i in range(nodes):
        exact = searched(adjacency[0], i)
        for j in range(nodes):
            count = int(lengths[0, i, j])
            assert count == min(exact.get(j, 0), most)
            here = i
            for edge in edges[0, i, j, :count].tolist():
                assert edge // nodes == here and adjacency[0, here, edge % nodes]
                here = edge % nodes
            assert count == most or here == j or j not in exact
            assert not edges[0, i, j, count:].any()


def test_of_several_paths_the_nodes_of_the_lowest_numbers_count() -> None:
    adjacency = torch.zeros(1, 4, 4)
    adjacency[0, 0, 1] = adjacency[0, 0, 2] = adjacency[0, 1, 3] = adjacency[0, 2, 3] = 1
    edges, _ = path_edges(adjacency, torch.arange(16).reshape(1, 4, 4), most=2)
    assert edges[0, 0, 3].tolist() == [1, 7]  # by node 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: path_lengths([[0]], largest=2), r"adjacency is \[\[0\]\]"),  # type: ignore[arg-type]
        (lambda: path_lengths(torch.ones(1, 2, 3), largest=2), "adjacency is a tensor of shape"),
        (lambda: path_lengths(torch.ones(1, 2, 2), largest=-1), "largest.* is -1"),
        (lambda: path_edges(torch.ones(1, 2, 2), torch.ones(1, 2, 2), most=1), "types.* is a tens"),
        (
            lambda: path_edges(torch.ones(1, 2, 2), torch.ones(1, 3, 3).long(), most=1),
            r"types.* is a tensor of shape \(1, 3, 3\)",
        ),
        (
            lambda: path_edges(torch.ones(1, 2, 2), torch.ones(1, 2, 2).long(), most=0),
            "most.* is 0",
        ),
    ],
)
def test_what_is_no_graph_is_refused(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ArgumentError, match=message):
        call()
