"""A repeated call reads no value of a tensor off the CPU, so that a CUDA graph may record it.

Tensors on the meta device stand for those of a GPU: they have no values, and asking is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend import lanes
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.cpu import schedule
from flexfa4.kernels.cpu.function import CPU
from flexfa4.kernels.request import Inputs, Request, Results
from flexfa4.variants import causal

B, H, HKV, L, D = 1, 4, 2, 300, 8
DEVICE = torch.device("meta")
SIZES = Sizes(B, H, HKV, L, L)


@pytest.fixture(autouse=True)
def _no_indices_without_values_are_kept() -> Iterator[None]:
    kept = dict(lanes._ARANGES)
    yield
    lanes._ARANGES.clear()
    lanes._ARANGES.update(kept)


def scheduled(mask: Any) -> Any:
    """Return the blocks of a mask, evaluated off the CPU, with the schedule of a first call."""
    block_mask = flexfa4.create_block_mask(mask, heads=H, q_len=L, kv_len=L)
    assert block_mask.blocks_on(torch.device("cpu")).runs.counts().any()  # found where values exist
    blocks = block_mask.blocks_on(DEVICE)
    for at_once in (schedule.SCORES_AT_ONCE, schedule.SCORES_AT_ONCE_WITH_CORE):
        for bands in (False, True):
            schedule.mask_schedule(schedule.Problem(SIZES, False, at_once, bands=bands), blocks)
    return blocks


SCORES: dict[str, Any] = {
    "none": None,
    "no captures": "score * 2 + kv",
    "captures": lambda t: lambda s, b, h, i, j: s * s * t[0] + t[h] * (j - i),
    "unproved index": lambda t: lambda s, b, h, i, j: s + t[(i - j) // 64],
}
MASKS: dict[str, Any] = {
    "none": None,
    "causal": causal,
    "window": "q - kv < 150 and q >= kv",
    "of heads": lambda b, h, i, j: i >= j - h,
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_neither_forward_nor_backward_asks_for_a_value(score: str, mask: str) -> None:
    blocks = None if MASKS[mask] is None else scheduled(MASKS[mask])
    mod, bound = SCORES[score], None
    if mod is not None:
        bound = resolve(mod if isinstance(mod, str) else mod(torch.rand(H)), "score")
    with torch.no_grad():
        q, k, v = (torch.empty(B, h, L, D, device=DEVICE) for h in (H, HKV, HKV))
        sink = torch.empty(H, device=DEVICE)
        if bound is not None:
            tensors = tuple(t.to(DEVICE) for t in bound.tensors)
            bound = BoundGraph(bound.graph, tensors, bound.scalars)
        needs = frozenset(bound.graph.buffers) if bound else frozenset()
        request = Request(bound, blocks, 0.25, needs, True)
        out, lse = CPU.forward(request, Inputs(q, k, v, sink))
        inputs = (q, k, v, sink, *(bound.tensors if bound else ()))
        results = Results(out, lse, torch.ones_like(out), torch.ones_like(lse))
        grads = CPU.gradients(request, inputs, results, [True] * len(inputs))
        with pytest.raises(RuntimeError, match="meta"):
            lse.sum().item()
    assert out.device == DEVICE
    assert [g is not None and g.shape for g in grads] == [x.shape for x in inputs]
