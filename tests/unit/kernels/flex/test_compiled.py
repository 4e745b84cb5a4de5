"""FlexAttention's compiled functions: as many kinds of calls as a plan needs, with any torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.kernels.flex.compiled import often_compiled

COMPILE = torch.compile


def of_an_older_torch(function: Any, *, fullgraph: bool, dynamic: bool, backend: Any) -> Any:
    """Take what torch 2.11 takes."""
    return COMPILE(function, fullgraph=fullgraph, dynamic=dynamic, backend=backend)


@pytest.mark.parametrize("older", [False, True])
def test_more_kinds_of_calls_are_compiled_than_torch_allows_by_itself(
    older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def backend(graph: Any, _inputs: Any) -> Any:
        seen.append(graph)
        return graph.forward

    if older:
        monkeypatch.setattr(torch, "compile", of_an_older_torch)
    usual = torch._dynamo.config.recompile_limit
    scope: dict[str, Any] = {}
    exec("def double(x): return x * 2", scope)  # code that no other test has compiled
    double = often_compiled(scope["double"], fullgraph=True, dynamic=False, backend=backend)
    for length in range(2, usual + 5):
        assert torch.equal(double(torch.ones(length)), torch.full((length,), 2.0))
    assert len(seen) == usual + 3
    assert torch._dynamo.config.recompile_limit == usual
