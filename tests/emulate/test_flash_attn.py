"""flash-attn-4's kernels from its wheel: right numbers, no reports, the same in any order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("tvm_ffi")

from flexfa4.emulator import Device
from tests.emulate.cuda_torch import CAPABILITIES, cuda_torch, without_triton

without_triton()
interface = pytest.importorskip("flash_attn.cute.interface")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

ORDERS = [("eager", 0), ("late", 0), ("random", 1), ("random", 2), ("priority", 1), ("priority", 2)]
FEW_ORDERS = [("eager", 0), ("priority", 1)]
# of the error of results that are right but for the rounding of bf16
ROUNDINGS = 2


@pytest.fixture(autouse=True)
def fresh_caches() -> Iterator[None]:
    """Some of the caches of compiled functions do not tell architectures apart."""
    yield
    for value in vars(interface).values():
        cache = getattr(value, "compile_cache", None)
        if cache is not None:
            cache.clear()


def drawn(s: int, sk: int, h: int, hk: int, d: int, dv: int) -> list[torch.Tensor]:
    """Return q, k, v and the gradient of the output."""
    generator = torch.Generator().manual_seed(s + d)
    shapes = [(1, s, h, d), (1, sk, hk, d), (1, sk, hk, dv), (1, s, h, dv)]
    return [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gradient: torch.Tensor, causal: bool
) -> dict[str, torch.Tensor]:
    """Return output, LSE and gradients in float64."""
    q, k, v = (t.double().transpose(1, 2).requires_grad_() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT / math.sqrt(q.shape[-1])
    if causal:
        s, sk = scores.shape[-2:]
        above = torch.ones(s, sk, dtype=torch.bool).triu(1 + sk - s)
        scores = scores.masked_fill(above, -math.inf)
    output = scores.softmax(-1) @ v.repeat_interleave(group, 1)
    output.backward(gradient.double().transpose(1, 2))
    found = {"o": output.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}
    turned = {name: t.transpose(1, 2) for name, t in found.items() if t is not None}
    return {**turned, "lse": scores.detach().logsumexp(-1)}


def in_all_orders(
    name: str, orders: list[tuple[str, int]], call: Any, summed: frozenset[int] = frozenset()
) -> list[list[torch.Tensor]]:
    """Call a function on devices with different schedules; return the results of each.

    They are equal bit for bit, but for the `summed` ones: those that blocks add up in memory by
    atomic sums of floats, whose order the schedule decides.
    """
    arch = 10 * CAPABILITIES[name][0] + CAPABILITIES[name][1]
    results: list[list[torch.Tensor]] = []
    for schedule, seed in orders:
        with (
            pytest.MonkeyPatch.context() as patch,
            Device(name, schedule=schedule, seed=seed) as device,
            cuda_torch(device),
        ):
            patch.setattr(interface, "_get_device_arch", lambda: arch)
            patch.setenv("FLASH_ATTENTION_NUM_SMS", str(device.architecture.sms))
            results.append([t.clone() for t in call() if t is not None])
    for other in results[1:]:
        for position, (first, second) in enumerate(zip(results[0], other, strict=True)):
            assert position in summed or torch.equal(first, second)
    return results


def check(found: torch.Tensor, expected: torch.Tensor, products: int) -> None:
    """Fail unless the relative error is that of some roundings to bf16, or of f32 for f32."""
    roundings = ROUNDINGS * (1 + products)
    error = (found.double() - expected).norm() / expected.norm()
    assert error < roundings * torch.finfo(found.dtype).eps / 2


def forward(name: str, orders: list[tuple[str, int]], causal: bool, sizes: tuple[int, ...]) -> None:
    q, k, v, gradient = drawn(*sizes)

    def call() -> Any:
        return interface._flash_attn_fwd(q, k, v, causal=causal, return_lse=True)[:2]

    expected = attention(q, k, v, gradient, causal)
    for output, lse in in_all_orders(name, orders, call):
        check(output, expected["o"], 1)
        check(lse, expected["lse"], 9)


def backward(
    name: str, orders: list[tuple[str, int]], causal: bool, sizes: tuple[int, ...]
) -> None:
    q, k, v, gradient = drawn(*sizes)
    expected = attention(q, k, v, gradient, causal)
    output, lse = expected["o"].bfloat16().contiguous(), expected["lse"].float().contiguous()

    def call() -> Any:
        return interface._flash_attn_bwd(q, k, v, output, gradient, lse, causal=causal)[:3]

    heads, key_heads = sizes[2:4]
    # Blocks of keys share dq; query heads share dk and dv of their key head.
    summed = frozenset({0, 1, 2} if heads != key_heads else {0})
    for results in in_all_orders(name, orders, call, summed):
        for found, of in zip(results, ("dq", "dk", "dv"), strict=True):
            check(found, expected[of], 2)


# queries, keys, heads, key heads, d, d of values
@pytest.mark.parametrize(
    ("name", "causal", "sizes"),
    [("sm_100a", True, (300, 300, 2, 1, 128, 128)), ("sm_90a", True, (200, 200, 1, 1, 64, 64))],
)
def test_the_forward_pass_is_attention(name: str, causal: bool, sizes: Any) -> None:
    forward(name, FEW_ORDERS, causal, sizes)


@pytest.mark.parametrize(
    ("name", "causal", "sizes"),
    [
        ("sm_100a", False, (256, 256, 1, 1, 64, 64)),  # one block to a cluster
        ("sm_100a", True, (256, 256, 1, 1, 128, 128)),  # two
    ],
)
def test_the_backward_pass_gives_its_gradients(name: str, causal: bool, sizes: Any) -> None:
    backward(name, FEW_ORDERS, causal, sizes)


FORWARD = [
    (256, 256, 1, 1, 128, 128),
    (512, 512, 4, 2, 64, 64),
    (300, 500, 2, 1, 128, 128),
    (384, 384, 2, 1, 192, 128),
    (1000, 1000, 1, 1, 128, 128),
]
BACKWARD = [
    (256, 256, 1, 1, 64, 64),
    (384, 384, 2, 1, 128, 128),
    (300, 500, 2, 2, 128, 128),
    (256, 256, 1, 1, 192, 128),
]


@pytest.mark.full
@pytest.mark.parametrize("sizes", FORWARD, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["sm_90a", "sm_100a"])
def test_forward_passes_are_attention(name: str, causal: bool, sizes: Any) -> None:
    forward(name, ORDERS, causal, sizes)


@pytest.mark.full
@pytest.mark.parametrize("sizes", BACKWARD, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["sm_90a", "sm_100a"])
def test_backward_passes_give_their_gradients(name: str, causal: bool, sizes: Any) -> None:
    backward(name, ORDERS, causal, sizes)


@pytest.mark.full
def test_blocks_take_several_tiles_each() -> None:
    """The grid is as large as the device, so few multiprocessors mean many tiles."""
    q, k, v, gradient = drawn(512, 512, 4, 4, 128, 128)
    expected = attention(q, k, v, gradient, True)
    with (
        pytest.MonkeyPatch.context() as patch,
        Device("sm_100a", sms=2, schedule="priority") as device,
        cuda_torch(device),
    ):
        patch.setattr(interface, "_get_device_arch", lambda: 100)
        patch.setenv("FLASH_ATTENTION_NUM_SMS", "2")
        output, lse = interface._flash_attn_fwd(q, k, v, causal=True, return_lse=True)[:2]
    check(output, expected["o"], 1)
    check(lse, expected["lse"], 9)
