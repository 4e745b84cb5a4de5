"""Kernels loaded and launched, as a driver sees it that is not there."""

from __future__ import annotations

import struct
import threading
from typing import Any

import pytest

from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.compile.signature import Int32, Pointer
from flexfa4.kernels.launch.driver import Driver
from flexfa4.kernels.launch.errors import (
    DeviceMemoryError,
    DriverError,
    LaunchValueError,
    OldDriverError,
    WrongDeviceError,
)
from flexfa4.kernels.launch.loaded import Device, LoadedKernel
from tests.compiled_kernels import EVERY_KIND, compiled_kernel
from tests.fake_cuda import CONTEXT, FUNCTION, FakeCuda

GRID = (132, 2, 1)
VALUES = ((0x1000, (64, 300, 2), (128, 38400)), 5, 0x2000, (0x3000, (50,), ()), 0.5, 6, 7)


def loaded(fake: FakeCuda, kernel: CompiledKernel | None = None, number: int = 0) -> LoadedKernel:
    return LoadedKernel(Device(Driver(fake), number), kernel or compiled_kernel())


def fake_for(kernel: CompiledKernel, **fields: Any) -> FakeCuda:
    return FakeCuda(sizes=tuple(p.nbytes for p in kernel.signature), **fields)


def test_a_launch_arrives_with_all_that_the_kernel_was_compiled_for() -> None:
    fake = fake_for(compiled_kernel())
    loaded(fake).launch(GRID, VALUES, 0x5555)
    (launch,) = fake.launches
    assert (launch.grid, launch.block) == (GRID, (384, 1, 1))
    assert (launch.shared_memory, launch.stream) == (200_000, 0x5555)
    assert launch.attributes == {4: (2, 1, 1)}
    assert launch.function == FUNCTION + CONTEXT
    assert launch.parameters[1:3] == [struct.pack("<i", 5), struct.pack("<Q", 0x2000)]
    assert launch.parameters[4:] == [
        struct.pack("<f", 0.5),
        struct.pack("<q", 6),
        struct.pack("<i", 7),
    ]
    assert [int.from_bytes(launch.parameters[i], "little") for i in (0, 3)] == [1, 2]
    assert [arguments[1] for arguments in fake.encoded] == [0x1000, 0x3000]


def test_shared_memory_and_large_clusters_are_allowed_when_a_kernel_is_loaded() -> None:
    fake = FakeCuda()
    loaded(fake, compiled_kernel(cluster=(16, 1, 1)), number=1)
    assert fake.attributes == [(8, 200_000, 1), (14, 1, 1)]
    small = FakeCuda()
    loaded(small, compiled_kernel(cluster=(8, 1, 1)))
    assert small.attributes == [(8, 200_000, 0)]


def test_a_kernel_without_cluster_is_launched_without_attributes() -> None:
    kernel = compiled_kernel(signature=(), cluster=(1, 1, 1))
    fake = fake_for(kernel)
    loaded(fake, kernel).launch((1, 1, 1), (), 0)
    assert fake.launches[0].attributes == {}


def test_a_programmatic_kernel_says_so() -> None:
    kernel = compiled_kernel(signature=(), programmatic=True)
    fake = fake_for(kernel)
    loaded(fake, kernel).launch((1, 1, 1), (), 0)
    assert fake.launches[0].attributes == {4: (2, 1, 1), 6: (1, 0, 0)}


def test_a_repeated_launch_calls_the_driver_twice() -> None:
    """Once for the context, once to launch: nothing that waits, and nothing that allocates."""
    fake = fake_for(compiled_kernel())
    kernel = loaded(fake)
    fake.contexts.append(CONTEXT)
    kernel.launch(GRID, VALUES, 0)
    fake.calls.clear()
    kernel.launch(GRID, VALUES, 0)
    assert fake.calls == ["cuCtxGetCurrent", "cuLaunchKernelEx"]


@pytest.mark.parametrize("before", [[], [CONTEXT + 1]])
def test_a_thread_of_another_context_launches_on_the_right_device(before: list[int]) -> None:
    fake = fake_for(compiled_kernel())
    kernel = loaded(fake)
    fake.contexts[:] = before
    kernel.launch(GRID, VALUES, 0)
    assert fake.launches[0].context == CONTEXT
    assert len(fake.encoded) == 2, "tensor maps are made in one, too"
    assert fake.contexts == before


def test_each_device_has_its_own_function_of_one_library() -> None:
    kernel = compiled_kernel()
    fake = fake_for(kernel)
    driver = Driver(fake)
    for number in (0, 1):
        LoadedKernel(Device(driver, number), kernel).launch(GRID, VALUES, 0)
    assert [launch.function for launch in fake.launches] == [
        FUNCTION + CONTEXT,
        FUNCTION + CONTEXT + 1,
    ]
    assert fake.calls.count("cuLibraryLoadData") == 1


def test_loading_is_no_part_of_a_graph_that_is_captured() -> None:
    fake = FakeCuda(mode=0)  # global: the fake driver refuses to load then
    loaded(fake)
    assert fake.mode == 0


def test_a_kernel_for_another_architecture_is_refused_before_it_is_loaded() -> None:
    fake = FakeCuda(capability=(10, 0))
    with pytest.raises(WrongDeviceError) as caught:
        loaded(fake)
    assert "for sm_90a" in str(caught.value) and "capability 100" in str(caught.value)
    assert "cuLibraryLoadData" not in fake.calls


def test_machine_code_that_the_driver_does_not_know_means_that_it_is_old() -> None:
    fake = FakeCuda(version=12020, failing={"cuLibraryLoadData": 209})
    with pytest.raises(OldDriverError, match=r"CUDA 12\.2, and refuses the machine code of kernel"):
        loaded(fake)


def test_too_little_memory_to_load_is_said() -> None:
    with pytest.raises(DeviceMemoryError, match="the kernel kernel"):
        loaded(FakeCuda(failing={"cuLibraryLoadData": 2}))


def test_a_refused_launch_names_kernel_grid_and_device() -> None:
    fake = fake_for(compiled_kernel(), failing={"cuLaunchKernelEx": 701})
    kernel = loaded(fake)
    with pytest.raises(DriverError, match=r"kernel with grid \(132, 2, 1\) on device 0.*\(701\)"):
        kernel.launch(GRID, VALUES, 0)
    fake.failing.clear()
    kernel.launch(GRID, VALUES, 0)
    assert len(fake.launches) == 1


def test_a_launch_after_one_with_wrong_values_is_right() -> None:
    fake = fake_for(compiled_kernel())
    kernel = loaded(fake)
    with pytest.raises(LaunchValueError):
        kernel.launch(GRID, (*VALUES[:4], "half", *VALUES[5:]), 0)
    kernel.launch(GRID, VALUES, 0)
    assert fake.launches[0].parameters[4] == struct.pack("<f", 0.5)


def test_threads_that_launch_at_once_do_not_share_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A barrier inside of the driver's call holds all threads there together."""
    kernel = compiled_kernel(signature=(Int32("number"), Pointer("place")))
    fake = fake_for(kernel)
    together = threading.Barrier(4)
    launch_now = fake._cuLaunchKernelEx

    def launch(*arguments: Any) -> None:
        together.wait(10)
        launch_now(*arguments)

    monkeypatch.setattr(fake, "_cuLaunchKernelEx", launch)
    ready = loaded(fake, kernel)
    threads = [
        threading.Thread(target=ready.launch, args=((1, 1, 1), (n, 16 * n), n)) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = sorted((launch.stream, *launch.parameters) for launch in fake.launches)
    assert seen == [(n, struct.pack("<i", n), struct.pack("<Q", 16 * n)) for n in range(4)]


def test_every_kind_of_parameter_is_launched_here() -> None:
    assert len({type(parameter) for parameter in EVERY_KIND}) == 5
