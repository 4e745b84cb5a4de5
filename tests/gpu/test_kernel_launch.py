"""Kernels compiled here, launched on this machine's GPU: streams, graphs, threads and devices."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.compile.compiler import compile_kernel
from flexfa4.kernels.compile.signature import ELEMENTS, TensorMap
from flexfa4.kernels.launch.driver import driver
from flexfa4.kernels.launch.errors import DriverError, WrongDeviceError
from flexfa4.kernels.launch.executor import cuda_executor
from flexfa4.kernels.launch.tensor_map import Tensor, tiled
from tests.compile.tensor_copy_kernels import Scale
from tests.emulated_executor import encoded

TILE = (16, 32)


@functools.cache
def kernel(cluster: int = 1) -> CompiledKernel:
    major, minor = torch.cuda.get_device_capability()
    scale = Scale(TILE, cluster=cluster)
    return compile_kernel(scale, scale.signature, arch=f"sm_{major}{minor}a")


def fresh_kernel() -> CompiledKernel:
    """Return a kernel that is not loaded yet."""
    return kernel.__wrapped__()


def launch(compiled: CompiledKernel, x: torch.Tensor, out: torch.Tensor, factor: float) -> None:
    rows, columns = x.shape
    grid = (-(-rows // TILE[0]), -(-columns // TILE[1]), 1)
    source = Tensor(x.data_ptr(), (columns, rows), (x.stride(0) * x.itemsize,))
    stream = torch.cuda.current_stream(x.device).cuda_stream
    values = (source, out.data_ptr(), rows, columns, factor)
    cuda_executor(x.device.index).launch(compiled, grid, values, stream=stream)


def filled(rows: int = 64, columns: int = 100, device: int = 0) -> tuple[Any, Any]:
    x = torch.randn(rows, columns, device=f"cuda:{device}")
    return x, torch.full_like(x, float("nan"))


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_a_launch_computes_what_it_should(cluster: int) -> None:
    x, out = filled()
    launch(kernel(cluster), x, out, 2.5)
    assert torch.equal(out, x * 2.5)


def test_launches_take_their_turn_on_the_stream() -> None:
    x, out = filled()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.mul_(2.0)
        launch(kernel(), x, out, 3.0)
        found = out * 1.0
    side.synchronize()
    assert torch.equal(found, x * 3.0)


def test_a_graph_records_the_first_launch_of_a_kernel() -> None:
    compiled, graph = fresh_kernel(), torch.cuda.CUDAGraph()
    x, out = filled()
    with torch.cuda.graph(graph):
        launch(compiled, x, out, 0.5)
    for _ in range(2):
        x.normal_()
        graph.replay()
        assert torch.equal(out, x * 0.5)


def test_a_thread_that_has_not_used_cuda_yet_can_launch() -> None:
    x, out = filled()
    compiled = kernel()
    torch.cuda.synchronize()
    thread = threading.Thread(target=launch, args=(compiled, x, out, 1.5))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(out, x * 1.5)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_another_device_than_the_current_one_are_served() -> None:
    x, out = filled(device=1)
    with torch.cuda.device(0):
        launch(kernel(), x, out, 2.0)
        torch.cuda.synchronize(1)
    assert torch.equal(out, x * 2.0)


def test_the_driver_encodes_maps_as_the_emulator_does() -> None:
    torch.zeros(1, device="cuda")  # makes a context, without which the driver encodes nothing
    for element in ELEMENTS:
        nbytes = ELEMENTS[element].nbytes
        for swizzle in (0, 32, 64, 128):
            for rank in range(1, 6):
                box = ((swizzle or 64) // nbytes, 8, 4, 2, 1)[:rank]
                spec = TensorMap("x", element, box, swizzle)
                sizes, strides = (200, 30, 1, 7, 5)[:rank], (1024, 1 << 15, 1 << 36, 0)[: rank - 1]
                arguments = tiled(spec, Tensor(0x7F00_0000_0000, sizes, strides))
                ours, theirs = encoded(arguments), driver().encode(arguments)
                assert ours[:64] == theirs[:64], arguments


def test_what_the_driver_refuses_has_the_names_of_cuda() -> None:
    x, out = filled()
    values = (Tensor(x.data_ptr(), (100, 64), (400,)), out.data_ptr(), 64, 100, 1.0)
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
        cuda_executor(0).launch(kernel(), (1, 70_000, 1), values)


def test_a_kernel_for_another_gpu_is_refused() -> None:
    scale = Scale()
    other = "sm_100a" if torch.cuda.get_device_capability()[0] == 9 else "sm_90a"
    compiled = compile_kernel(scale, scale.signature, arch=other)
    with pytest.raises(WrongDeviceError, match=other):
        cuda_executor(0).load(compiled)


def test_a_repeated_launch_takes_microseconds_of_the_host() -> None:
    x, out = filled(rows=16, columns=32)
    compiled = kernel()
    launch(compiled, x, out, 1.0)
    source = Tensor(x.data_ptr(), (32, 16), (128,))
    values = (source, out.data_ptr(), 16, 32, 1.0)
    executor, times = cuda_executor(0), []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(50):
            executor.launch(compiled, (1, 1, 1), values)
        times.append((time.perf_counter() - start) / 50)
    assert min(times) < 20e-6
