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


def reference(
    tensors: list[torch.Tensor], ends: list[torch.Tensor], **mods: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output in fp64, and by torch in the dtype of the tensors."""
    exact = flexfa4.attention_varlen(*(t.double() for t in tensors), *ends, backend="cpu", **mods)
    return exact, flexfa4.attention_varlen(*tensors, *ends, backend="cpu", **mods)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("kv_lengths", [Q_LENGTHS, KV_LENGTHS], ids=["one set of lengths", "two"])
def test_the_kernel_agrees_and_no_call_waits_for_the_gpu(mask: Any, kv_lengths: list[int]) -> None:
    tensors, ends = drawn(kv_lengths)
    with no_waits():
        found = flexfa4.attention_varlen(*tensors, *ends, block_mask=mask, backend="sm90")
        again = flexfa4.attention_varlen(*tensors, *ends, block_mask=mask, backend="sm90")
    exact, eager = reference(tensors, ends, block_mask=mask)
    assert agrees(found, exact, eager, terms=max(128, *kv_lengths))
    assert torch.equal(again, found)


def test_a_mask_that_needs_lists_agrees_and_a_repeated_call_waits_for_nothing() -> None:
    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & ((q - kv < 100) | (kv < 4))

    tensors, ends = drawn(KV_LENGTHS)
    found = flexfa4.attention_varlen(*tensors, *ends, block_mask=mask, backend="sm90")
    exact, eager = reference(tensors, ends, block_mask=mask)
    assert agrees(found, exact, eager, terms=max(128, *KV_LENGTHS))
    with no_waits():
        again = flexfa4.attention_varlen(*tensors, *ends, block_mask=mask, backend="sm90")
    assert torch.equal(again, found)


def test_lengths_may_change_between_replays_of_a_cuda_graph() -> None:
    tensors, ends = drawn(KV_LENGTHS)

    def attend() -> torch.Tensor:
        return flexfa4.attention_varlen(*tensors, *ends, block_mask="q >= kv", backend="sm90")

    attend()  # kernels are compiled
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend()
    totals = [sum(Q_LENGTHS), sum(KV_LENGTHS)]
    for seed in range(5):
        draw = torch.Generator().manual_seed(seed)
        for total, tensor in zip(totals, ends, strict=True):
            cuts = torch.randint(0, total + 1, (len(Q_LENGTHS) - 1,), generator=draw).sort().values
            tensor.copy_(torch.cat((torch.tensor([0]), cuts, torch.tensor([total]))))
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, attend())
        exact, eager = reference(tensors, ends, block_mask="q >= kv")
        assert agrees(out, exact, eager, terms=max(128, *totals))


def test_many_sequences_of_all_lengths_agree() -> None:
    """More sequences than the block that makes the table has threads; keys beyond the L2 cache."""
    draw = torch.Generator().manual_seed(0)
    lengths = (torch.rand(1500, generator=draw) ** 4 * 1200).int()
    lengths[700] = 9000
    ends = torch.cat((torch.tensor([0]), lengths.cumsum(0))).int().cuda()
    q, k, v = (
        torch.randn(int(lengths.sum()), heads, 128, device="cuda", dtype=torch.bfloat16)
        for heads in (4, 2, 2)
    )
    mask, score = "q >= kv", "score + 0.01 * (kv - q)"
    found = flexfa4.attention_varlen(q, k, v, ends, block_mask=mask, score_mod=score)
    for number in [0, 1, 2, 699, 700, 701, 1498, 1499]:
        begin, end = ends[number : number + 2].tolist()
        own = [t[begin:end] for t in (q, k, v)]
        alone = torch.tensor([0, end - begin], device="cuda")
        exact, eager = reference(own, [alone], block_mask=mask, score_mod=score)
        assert agrees(found[begin:end], exact, eager, terms=max(128, end - begin)), number


def test_calls_on_two_streams_have_tables_of_their_own() -> None:
    tensors, ends = drawn(KV_LENGTHS)
    expected = flexfa4.attention_varlen(*tensors, *ends, backend="sm90")
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in range(2)], []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(flexfa4.attention_varlen(*tensors, *ends, backend="sm90"))
    torch.cuda.synchronize()
    assert all(torch.equal(each, expected) for each in found)
