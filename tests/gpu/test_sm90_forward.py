"""The Hopper forward kernel on this machine's GPU: what the emulator runs, and what it cannot.

``-m "gpu and full"`` runs the whole case table for all head dimensions.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

import flexfa4
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.testing import agrees, excess
from tests.forward_trials import ALL, SAMPLE, Row, attend_with

attend = attend_with("sm90", "cuda")


def drawn(*shape: int, heads: int | None = None, keys: int | None = None) -> tuple[Any, Any, Any]:
    """Return bf16 tensors for ``(batch, heads, queries, dim)``, with other key heads or keys."""
    batch, q_heads, queries, dim = shape
    own = (batch, heads or q_heads, keys or queries, dim)
    sizes = (shape, own, own)
    q, k, v = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in sizes)
    return q, k, v


def near(found: torch.Tensor, q: Any, k: Any, v: Any, **chosen: Any) -> bool:
    """Return whether an output is as near to the exact one as the CPU backend's in bf16."""
    exact = flexfa4.attention(q.double(), k.double(), v.double(), backend="cpu", **chosen)
    eager = flexfa4.attention(q, k, v, backend="cpu", **chosen)
    return agrees(found, exact, eager, terms=max(q.shape[3], k.shape[2]))


@pytest.mark.parametrize("row", SAMPLE, ids=str)
def test_a_variant_agrees_with_the_dense_reference(row: Row) -> None:
    assert not excess(row.trial(), attend)


@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("row", SAMPLE[::6], ids=str)
def test_emulated_exponentials_keep_the_budget_of_exact_ones(row: Row, share: float) -> None:
    options = flexfa4.Options(emulated_exponentials=share)
    assert not excess(row.trial(), attend_with("sm90", "cuda", options=options))


@pytest.mark.full
@pytest.mark.parametrize("row", ALL, ids=str)
def test_every_variant_agrees_for_all_head_dimensions_or_is_refused(row: Row) -> None:
    try:
        assert not excess(row.trial(), attend)
    except KernelLimitError as error:
        assert 'backend="cpu"' in str(error)


def test_auto_takes_the_kernel() -> None:
    q, k, v = drawn(1, 2, 300, 128)
    named = flexfa4.attention(q, k, v, block_mask="q >= kv", backend="sm90")
    assert torch.equal(flexfa4.attention(q, k, v, block_mask="q >= kv"), named)


def test_results_are_the_same_on_every_run() -> None:
    q, k, v = drawn(2, 8, 3000, 128, heads=2)
    runs = [flexfa4.attention(q, k, v, block_mask="q >= kv", return_lse=True) for _ in range(5)]
    for out, lse in runs[1:]:
        assert torch.equal(out, runs[0][0]) and torch.equal(lse, runs[0][1])


@pytest.mark.parametrize(
    ("axis", "layout"), itertools.product(range(3), ["expanded", "shifted", "transposed"])
)
def test_any_strides_are_served(axis: int, layout: str) -> None:
    given = list(drawn(2, 4, 200, 64))
    x = given[axis]
    given[axis] = {
        "expanded": lambda: x[:, :1].expand_as(x),
        "shifted": lambda: torch.cat((x[..., :1], x, x[..., :7]), 3)[..., 1:-7],
        "transposed": lambda: x.transpose(2, 3).contiguous().transpose(2, 3),
    }[layout]()
    out = flexfa4.attention(*given, backend="sm90")
    assert torch.equal(out, flexfa4.attention(*(t.contiguous() for t in given), backend="sm90"))


def test_more_heads_than_a_grid_has_rows_are_served() -> None:
    q, k, v = drawn(70, 1000, 16, 64)
    assert near(flexfa4.attention(q, k, v, backend="sm90")[-1:], q[-1:], k[-1:], v[-1:])


def test_tensors_of_more_than_2_to_the_31_elements_are_served() -> None:
    long = (1 << 24) + 200
    q, k, v = drawn(1, 1, long, 128, keys=128)
    out, lse = flexfa4.attention(q, k, v, return_lse=True, backend="sm90")
    assert near(out[:, :, -300:], q[:, :, -300:], k, v) and lse[..., -300:].isfinite().all()
    del out, lse, q
    q, k, v = drawn(1, 1, 64, 128, keys=long)
    seen = f"kv >= {long - 500}"  # the last keys are read at the right addresses
    out = flexfa4.attention(q, k, v, block_mask=seen, backend="sm90")
    assert near(out, q, k[:, :, -500:], v[:, :, -500:])


def test_a_cuda_graph_records_and_repeats_calls() -> None:
    q, k, v = drawn(2, 4, 500, 128)
    mask = flexfa4.create_block_mask("q >= kv", q_len=500, kv_len=500, device="cuda")

    def call() -> torch.Tensor:
        return flexfa4.attention(q, k, v, block_mask=mask, backend="sm90")

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for _ in range(2):
        q.normal_()
        graph.replay()
        assert torch.equal(out, call())


def test_calls_take_their_turn_on_their_streams() -> None:
    q, k, v = drawn(1, 4, 500, 128)
    streams, results = [torch.cuda.Stream() for _ in range(3)], []
    torch.cuda.synchronize()
    for i, stream in enumerate(streams, start=1):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            results.append(flexfa4.attention(q * i, k, v, backend="sm90"))
    torch.cuda.synchronize()
    for i, out in enumerate(results, start=1):
        assert torch.equal(out, flexfa4.attention(q * i, k, v, backend="sm90"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_another_device_than_the_current_one_are_served() -> None:
    q, k, v = drawn(1, 2, 300, 128)
    there = flexfa4.attention(*(x.to("cuda:1") for x in (q, k, v)), backend="sm90")
    assert torch.equal(there.cpu(), flexfa4.attention(q, k, v, backend="sm90").cpu())


def test_torch_compile_takes_the_kernel_with_it() -> None:
    q, k, v = drawn(1, 2, 300, 128)

    def call(q: torch.Tensor) -> torch.Tensor:
        return flexfa4.attention(q * 2, k, v, block_mask="q >= kv", backend="sm90")

    assert torch.equal(torch.compile(call, fullgraph=True)(q), call(q))


def test_a_repeated_call_takes_microseconds_of_the_host_and_waits_for_nothing() -> None:
    q, k, v = drawn(1, 2, 64, 64)
    slopes = torch.rand(2, device="cuda")
    mask = flexfa4.create_block_mask("q >= kv", q_len=64, kv_len=64)

    def call() -> torch.Tensor:
        return flexfa4.attention(
            q, k, v, block_mask=mask, score_mod=lambda s, b, h, q, kv: s + slopes[h] * (kv - q)
        )

    call()
    torch.cuda.set_sync_debug_mode("error")
    times = []
    try:
        for _ in range(20):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(50):
                call()
            times.append((time.perf_counter() - start) / 50)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert min(times) < 40e-6
