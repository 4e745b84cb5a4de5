"""Packed sequences on this machine's GPU: the kernel, and calls that wait for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

import flexfa4
from flexfa4.testing import agrees

Q_LENGTHS, KV_LENGTHS = [500, 0, 70, 1300, 1, 129], [700, 3, 70, 0, 2000, 129]

MASKS: dict[str, Any] = {
    "sequences alone": None,
    "causal": lambda b, h, q, kv: q >= kv,
    "causal at the end": lambda b, h, q, kv: q + flexfa4.kv_len - flexfa4.q_len >= kv,
    "window": lambda b, h, q, kv: (q >= kv) & (q - kv < 100),
}


def drawn(kv_lengths: list[int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    tensors = [
        torch.randn(sum(lengths), heads, 128, device="cuda", dtype=torch.bfloat16)
        for lengths, heads in ((Q_LENGTHS, 8), (kv_lengths, 2), (kv_lengths, 2))
    ]
    ends = [torch.tensor([0, *n], device="cuda").cumsum(0).int() for n in (Q_LENGTHS, kv_lengths)]
    return tensors, ends


@contextmanager
def no_waits() -> Iterator[None]:
    """Let torch raise where the host would wait for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("kv_lengths", [Q_LENGTHS, KV_LENGTHS], ids=["one set of lengths", "two"])
def test_the_kernel_agrees_and_a_repeated_call_waits_for_nothing(
    mask: Any, kv_lengths: list[int]
) -> None:
    tensors, ends = drawn(kv_lengths)

    def attend(backend: str, given: list[torch.Tensor]) -> torch.Tensor:
        q, k, v = given
        return flexfa4.attention_varlen(q, k, v, *ends, block_mask=mask, backend=backend)

    found = attend("sm90", tensors)
    exact, eager = attend("cpu", [t.double() for t in tensors]), attend("cpu", tensors)
    assert agrees(found, exact, eager, terms=max(128, *kv_lengths))
    with no_waits():
        again = attend("sm90", tensors)
    assert torch.equal(again, found)


def test_a_cuda_graph_records_a_repeated_call() -> None:
    (q, k, v), ends = drawn(KV_LENGTHS)
    expected = flexfa4.attention_varlen(q, k, v, *ends, block_mask="q >= kv", backend="sm90")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flexfa4.attention_varlen(q, k, v, *ends, block_mask="q >= kv", backend="sm90")
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected)
