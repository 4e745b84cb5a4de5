"""Gradients that have the same bits on every run: in the emulator, whatever its schedule is."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.emulator.options import SCHEDULES
from flexfa4.kernels.sm100.backward import architecture
from flexfa4.kernels.sm100.backward.storage import Tiling
from flexfa4.primitives import semaphores
from tests.emulated_executor import CAPABILITIES, emulated_gpu

SEEDS = range(4)
MULTIPROCESSORS = 8  # blocks that run at once, and add to the same tiles


def gradients(
    backend: str, mask: Any, deterministic: bool, **options: Any
) -> tuple[torch.Tensor, ...]:
    """Return gradients of q, k, v, a sink and a captured tensor of few queries and many keys.

    What all keys have in common cancels in dq, but for the roundings of its sums.
    """
    draw = torch.Generator().manual_seed(0)
    q, do = (torch.randn(1, 2, 130, 64, generator=draw).half() for _ in range(2))
    k, v = (torch.randn(1, 1, 900, 64, generator=draw).half() for _ in range(2))
    k = k + 32
    sink, bias = torch.randn(2, generator=draw), torch.randn(200, generator=draw)
    inputs = tuple(t.requires_grad_() for t in (q, k, v, sink, bias))
    capability = CAPABILITIES[backend]
    with emulated_gpu(capability=capability, multiprocessors=MULTIPROCESSORS, **options):
        out = flexfa4.attention(
            q,
            k,
            v,
            sink=sink,
            score_mod=lambda score, b, h, q, kv: score + bias[(q - kv).abs() % 200],
            block_mask=mask,
            deterministic=deterministic,
            backend=backend,
        )
        return torch.autograd.grad(out, inputs, do)


def sparse(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q // 64 + kv // 128 + h) % 3 > 0


BACKENDS = pytest.mark.parametrize("backend", CAPABILITIES)


@BACKENDS
@pytest.mark.parametrize("mask", [None, sparse], ids=["dense", "sparse"])
def test_gradients_are_the_same_bits_in_every_order_of_blocks(mask: Any, backend: str) -> None:
    run = functools.partial(gradients, backend, mask, True)
    first = run()
    orders = [*((schedule, 0) for schedule in SCHEDULES), ("random", 1), ("random", 2)]
    for schedule, seed in orders:
        again = run(schedule=schedule, seed=seed)
        assert all(map(torch.equal, first, again))


@pytest.fixture
def single_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two blocks that compute together there would be too few to see an order."""
    monkeypatch.setattr(architecture, "tiling_for", lambda *_: Tiling())


@BACKENDS
@pytest.mark.usefixtures("single_blocks")
def test_without_turns_they_are_not(backend: str) -> None:
    runs = [gradients(backend, None, False, schedule="random", seed=seed) for seed in SEEDS]
    assert any(not torch.equal(run[0], runs[0][0]) for run in runs)


@BACKENDS
@pytest.mark.usefixtures("single_blocks")
def test_turns_are_what_makes_them_so(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semaphores.Turn, "wait", lambda self, seen: None)
    monkeypatch.setattr("flexfa4.kernels.cache.store.KernelCache.get", _compiled_anew)
    runs = [gradients(backend, None, True, schedule="random", seed=seed) for seed in SEEDS]
    assert any(not torch.equal(run[0], runs[0][0]) for run in runs)


_ANEW: dict[Any, Any] = {}


def _compiled_anew(cache: Any, plan: Any, arch: str, compile: Any) -> Any:
    if plan not in _ANEW:
        _ANEW[plan] = compile()
    return _ANEW[plan]
