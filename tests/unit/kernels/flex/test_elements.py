"""Vectors taken apart have the value of the vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.eager import result_on
from flexfa4.frontend.ir import topological
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.flex.elements import LONGEST, without_vectors
from flexfa4.kernels.flex.function import plain
from flexfa4.testing import agrees

TABLE = torch.randn(10, LONGEST)
MODS: dict[str, Any] = {
    "sum": lambda s, b, h, q, kv: s + (TABLE[q] * TABLE[kv]).sum(-1),
    "amax of a sum": lambda s, b, h, q, kv: s + (TABLE[q] - TABLE[kv].sum(-1)).amax(-1),
    "count": lambda s, b, h, q, kv: s + ((TABLE[q] > 0) & (TABLE[kv] > 0)).sum(-1),
    "any and all": lambda s, b, h, q, kv: (
        torch.where((TABLE[q] > 1).any(-1), s, s * 2)
        + torch.where((TABLE[kv] < 1).all(-1), 1.0, 0.0)
    ),
}


def value(bound: BoundGraph, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    at = torch.arange(10)
    inputs = {"score": torch.ones(10, 10, dtype=dtype), "b": 0, "h": 0, "q": at[:, None], "kv": at}
    return result_on(bound, inputs, lambda: None)


@pytest.mark.parametrize("name", MODS)
def test_a_graph_without_vectors_has_the_same_value(name: str) -> None:
    bound = resolve(MODS[name], "score")
    made = plain(bound)
    assert all(node.length is None for node in topological(made.graph.root))
    exact = value(bound, torch.float64)
    assert agrees(value(made), exact, value(bound), terms=LONGEST)


def test_a_graph_of_numbers_is_returned_as_it_is() -> None:
    graph = flexfa4.trace(lambda s, b, h, q, kv: s + q).graph
    assert without_vectors(graph) is graph


def test_long_vectors_are_refused() -> None:
    rows = torch.zeros(10, LONGEST + 1)
    with pytest.raises(KernelLimitError, match=f"{LONGEST + 1} elements"):
        plain(resolve(lambda s, b, h, q, kv: s + rows[q].sum(-1), "score"))
