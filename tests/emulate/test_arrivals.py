"""Who comes first and last, in the emulator: in every order of blocks, and without races."""

from __future__ import annotations

import functools

import pytest
import torch

pytest.importorskip("cutlass")

from flexfa4.emulator.options import SCHEDULES
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.compile.compiler import compile_kernel
from flexfa4.primitives import arrivals
from tests.emulate.arrival_kernels import Sums
from tests.emulated_executor import EmulatedExecutor

WORDS = 3


@functools.cache
def kernel() -> CompiledKernel:
    return compile_kernel(Sums(), Sums.signature, arch="sm_90a")


def word_of(visitors: int) -> int:
    """Return a word before anybody comes."""
    return visitors << (2 * arrivals._BITS)


@pytest.mark.parametrize("visitors", [1, 2, 3, 9])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_is_first_one_is_last_and_nothing_is_lost(visitors: int, schedule: str) -> None:
    words = torch.full((WORDS,), word_of(visitors), dtype=torch.int64)
    sums = torch.full((WORDS,), -(10**6), dtype=torch.int32)
    out, roles = torch.zeros_like(sums), torch.zeros(WORDS, visitors, dtype=torch.int32)
    tensors = (words, sums, out, roles)
    values = (*(t.data_ptr() for t in tensors), visitors)
    executor = EmulatedExecutor(schedule=schedule, seed=2)
    executor.launch(kernel(), (visitors, WORDS, 1), values, memory=tensors)
    assert out.tolist() == [visitors * (visitors + 1) // 2] * WORDS
    between = [arrivals.BETWEEN] * (visitors - 2)
    expected = [arrivals.FIRST, *between, arrivals.LAST] if visitors > 1 else [arrivals.ONLY]
    assert roles.sort(1).values.tolist() == [expected] * WORDS
