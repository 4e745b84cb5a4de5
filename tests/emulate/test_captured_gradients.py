"""Gradients of captured tensors that backward kernels sum up, in the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

from flexfa4.frontend.ir import F32
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.backward.call import summed_in_kernel
from flexfa4.testing import CASES, Case, Draw, Mods, Sizes, Trial, excess
from tests.emulated_executor import CAPABILITIES, emulated_gpu
from tests.forward_trials import attend_with, poisoned_memory

SIZES = Sizes(batch=2, heads=4, kv_heads=2, q_len=75, kv_len=140, dim=64, value_dim=64)

# One of each kind of sum, of each number of sums, and of what is summed elsewhere.
QUICK = ("learned_temperature", "head_gate", "t5_bias_causal", "deberta")


BACKENDS = pytest.mark.parametrize("backend", CAPABILITIES)


def excess_of(case: Case, sizes: Sizes, dtype: torch.dtype, backend: str) -> list[Any]:
    with emulated_gpu(capability=CAPABILITIES[backend]):
        return excess(Trial(case, sizes, dtype), attend_with(backend))


def learned(case: Case) -> tuple[torch.Tensor, ...]:
    return case.make(SIZES, Draw(torch.Generator().manual_seed(0))).learned


@pytest.fixture(autouse=True)
def _unwritten_memory_shows() -> Iterator[None]:
    with poisoned_memory():
        yield


@BACKENDS
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=c.name, marks=[pytest.mark.full] * (c.name not in QUICK))
        for c in CASES
        if learned(c)
    ],
)
def test_gradients_are_those_of_the_reference(case: Case, backend: str) -> None:
    assert excess_of(case, SIZES, torch.bfloat16, backend) == []


@pytest.mark.parametrize(
    ("backend", "dims"),
    [
        pytest.param("sm90", (128, 128), marks=pytest.mark.full),
        pytest.param("sm90", (192, 128), marks=pytest.mark.full),
        ("sm90", (256, 256)),
        ("sm100", (128, 128)),
    ],
)
def test_warpgroups_that_have_the_same_keys_or_not_add_up(
    backend: str, dims: tuple[int, int]
) -> None:
    def make(s: Sizes, d: Draw) -> Mods:
        by_key, by_query, table = d.learned(s.heads, s.kv_len), d.learned(s.q_len), d.learned(40)

        def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            near = table[(q - kv).clamp(-20, 19) + 20]
            return score + by_key[h, kv] + by_query[q] * score + near

        return Mods(mod, learned=(by_key, by_query, table))

    sizes = Sizes(1, 2, 1, 100, 150, dim=dims[0], value_dim=dims[1])
    assert excess_of(Case("three sums", make), sizes, torch.float16, backend) == []


@BACKENDS
def test_derivatives_by_captures_that_read_the_score_have_it(backend: str) -> None:
    def make(s: Sizes, d: Draw) -> Mods:
        cap, by_key = d.learned(s.heads), d.learned(s.kv_len)

        def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            own = cap[h].abs() + 1
            return own * torch.tanh(score / own) + torch.where(q > kv, by_key[kv] * score, 0)

        return Mods(mod, learned=(cap, by_key))

    assert excess_of(Case("captured factors", make), SIZES, torch.bfloat16, backend) == []


def summed(mod: Any) -> set[str]:
    graph = resolve(mod, "score").graph
    floats = frozenset(b for b in graph.buffers if b.dtype is F32)
    return {buffer.name for buffer in summed_in_kernel(graph, floats)}


def test_the_kernel_sums_up_what_is_read_element_by_element() -> None:
    slope, by_key, by_query, pairs = torch.rand(2), torch.rand(9), torch.rand(9), torch.rand(9, 9)
    table, ids = torch.rand(9), torch.arange(9)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        bias = slope[h] * by_key[ids[kv]] * by_query[q] + pairs[q, kv]
        return score + bias + table[ids[(q - kv).abs()]]

    assert summed(mod) == {"slope", "by_key", "by_query", "pairs", "table"}


def test_a_tensor_that_is_read_as_a_vector_too_is_not_summed_up() -> None:
    table, weights = torch.rand(81), torch.rand(9, 4)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        by_vector = (weights[q] * weights[kv]).sum(-1)
        return score + table[kv] * table[q * kv] + by_vector * weights[q, 0]

    assert summed(mod) == {"table"}


@pytest.mark.parametrize(
    ("layout", "backend"),
    [
        # where a sum is made, and where its elements lie, is known before the architecture matters
        pytest.param(layout, backend, marks=[pytest.mark.full] * (backend != quick))
        for layout, quick in (
            ("dense", "sm100"),
            ("transposed", "sm90"),
            ("with gaps", "sm100"),
            ("expanded", "sm90"),
        )
        for backend in CAPABILITIES
    ],
)
def test_sums_of_elements_have_the_layout_of_the_tensor_or_are_made_elsewhere(
    layout: str, backend: str
) -> None:
    def make(s: Sizes, d: Draw) -> Mods:
        learned = d.learned(s.q_len, s.kv_len)
        made = {
            "dense": lambda t: t,
            "transposed": lambda t: t.T.contiguous().T,
            "with gaps": lambda t: torch.stack((t, t), 2)[..., 0],
            "expanded": lambda t: t[:1].expand_as(t),
        }[layout](learned)

        def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            return score + made[q, kv] * made[q // 2, kv // 3]

        return Mods(mod, learned=(learned,))

    assert excess_of(Case(layout, make), SIZES, torch.bfloat16, backend) == []


@BACKENDS
def test_one_buffer_in_several_gathers_and_one_of_bf16_get_whole_gradients(backend: str) -> None:
    def make(s: Sizes, d: Draw) -> Mods:
        table, half = d.learned(40), d.learned(s.heads, s.kv_len).detach().bfloat16()
        half = (half.double() if d.dtype is torch.float64 else half).requires_grad_()

        def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            bias = table[kv % 40] * half[h, kv]
            return score + bias + table[q % 40] + table[(q - kv).abs() % 40]

        return Mods(mod, learned=(table, half))

    assert excess_of(Case("one table", make), SIZES, torch.bfloat16, backend) == []
