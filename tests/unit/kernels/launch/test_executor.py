"""Executors: a device loads a kernel once and launches it often."""

from __future__ import annotations

import threading

from flexfa4.kernels.launch.driver import Driver
from flexfa4.kernels.launch.executor import CudaExecutor, Executor, executor_of
from tests.compiled_kernels import compiled_kernel
from tests.fake_cuda import FakeCuda


def executor(fake: FakeCuda, number: int = 0) -> CudaExecutor:
    return executor_of(Driver(fake), number)


def test_a_kernel_is_loaded_when_it_is_first_launched() -> None:
    fake = FakeCuda()
    device: Executor = executor(fake, number=2)
    assert "cuLibraryLoadData" not in fake.calls
    kernel = compiled_kernel(signature=())
    for stream in (0, 7):
        device.launch(kernel, (4, 1, 1), (), stream=stream, memory=("not looked at",))
    assert fake.calls.count("cuLibraryLoadData") == fake.calls.count("cuKernelGetFunction") == 1
    assert [launch.stream for launch in fake.launches] == [0, 7]
    assert fake.attributes == [(8, 200_000, 2)]


def test_kernels_that_look_alike_are_loaded_each() -> None:
    fake = FakeCuda()
    device = executor(fake)
    for _ in range(2):
        device.launch(compiled_kernel(signature=()), (1, 1, 1), ())
    assert fake.calls.count("cuLibraryLoadData") == 2


def test_threads_that_come_first_together_load_once() -> None:
    fake = FakeCuda()
    device, kernel = executor(fake), compiled_kernel(signature=())
    threads = [threading.Thread(target=device.load, args=(kernel,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fake.calls.count("cuLibraryLoadData") == 1
