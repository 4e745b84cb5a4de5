"""Kernels compiled, kept in a file, read, and launched in the emulator in the place of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

pytest.importorskip("cutlass")

from flexfa4.emulator.options import SCHEDULES
from flexfa4.kernels.cache.store import KernelCache
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.compile.compiler import ARCHITECTURES, compile_kernel
from flexfa4.kernels.launch.executor import Executor
from flexfa4.kernels.launch.tensor_map import Tensor
from tests.compile.tensor_copy_kernels import Scale
from tests.emulated_executor import EmulatedExecutor

TILE = (16, 32)


@dataclass(frozen=True)
class Plan:
    tile: tuple[int, int]
    cluster: int


def kept_kernel(folder: Path, arch: str, cluster: int = 1) -> CompiledKernel:
    """Return a kernel as another process would find it."""

    def compile() -> CompiledKernel:
        kernel = Scale(TILE, cluster=cluster)
        return compile_kernel(kernel, kernel.signature, arch=arch)

    def refuse() -> CompiledKernel:
        raise AssertionError("it is compiled, although it is kept")

    plan = Plan(TILE, cluster)
    KernelCache(folder).get(plan, arch, compile)
    return KernelCache(folder).get(plan, arch, refuse)


def scale(
    executor: Executor, kernel: CompiledKernel, x: torch.Tensor, factor: float
) -> torch.Tensor:
    """Return a matrix times a number."""
    out = torch.full(x.shape, float("nan"))
    rows, columns = x.shape
    grid = (-(-rows // TILE[0]), -(-columns // TILE[1]), 1)
    source = Tensor(x.data_ptr(), (columns, rows), (x.stride(0) * x.itemsize,))
    values = (source, out.data_ptr(), rows, columns, factor)
    executor.launch(kernel, grid, values, memory=(x, out))
    return out


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_kept_kernel_computes_what_it_should(tmp_path: Path, arch: str) -> None:
    executor = EmulatedExecutor()
    x = torch.randn(40, 100)
    assert torch.equal(scale(executor, kept_kernel(tmp_path, arch), x, 2.5), x * 2.5)
    assert executor.runs[0].executed["mul.f32"] > 0


def test_one_kernel_serves_all_sizes_and_strides(tmp_path: Path) -> None:
    kernel = kept_kernel(tmp_path, "sm_90a")
    for x in (torch.randn(1, 4), torch.randn(33, 64)[:, 16:48], torch.randn(17, 1, 8)[:, 0]):
        assert torch.equal(scale(EmulatedExecutor(), kernel, x, -0.5), x * -0.5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_options_of_the_emulator_reach_it(tmp_path: Path, schedule: str) -> None:
    kernel = kept_kernel(tmp_path, "sm_90a", cluster=2)
    x = torch.randn(64, 32)
    executor = EmulatedExecutor(schedule=schedule, seed=2)
    assert torch.equal(scale(executor, kernel, x, 3.0), x * 3.0)
