"""CUDA's driver called: what is passed, and what its errors become."""

from __future__ import annotations

import ctypes
import pickle
from unittest import mock

import pytest

from flexfa4.kernels.compile.signature import TensorMap
from flexfa4.kernels.launch import driver as module
from flexfa4.kernels.launch.driver import Driver
from flexfa4.kernels.launch.errors import (
    DeviceMemoryError,
    DriverError,
    MissingDriverError,
    OldDriverError,
)
from flexfa4.kernels.launch.tensor_map import Tensor, tiled
from tests.fake_cuda import CONTEXT, FakeCuda


def test_a_machine_without_driver_says_so() -> None:
    with (
        mock.patch.object(module, "LIBRARY", "libcuda.of-no-machine.so.1"),
        pytest.raises(MissingDriverError, match=r"(?s)libcuda\.of-no-machine.*nvidia-smi"),
    ):
        Driver()


def test_a_driver_that_lacks_a_function_is_too_old() -> None:
    fake = FakeCuda(version=11060, without=("cuLibraryLoadData", "cuLaunchKernelEx"))
    with pytest.raises(OldDriverError) as caught:
        Driver(fake)
    text = str(caught.value)
    assert "supports CUDA 11.6, and lacks cuLibraryLoadData, cuLaunchKernelEx" in text
    assert "CUDA 12.0 or newer" in text


def test_a_driver_so_old_that_its_version_is_unknown_is_too_old() -> None:
    fake = FakeCuda(without=("cuDriverGetVersion",))
    with pytest.raises(OldDriverError, match=r"CUDA \(unknown\), and lacks cuDriverGetVersion"):
        Driver(fake)


def test_a_driver_that_does_not_start_says_why() -> None:
    with pytest.raises(DriverError, match=r"cuInit failed for this process: .* \(999\)"):
        Driver(FakeCuda(failing={"cuInit": 999}))


def test_errors_have_the_names_of_cuda() -> None:
    fake = FakeCuda()
    driver = Driver(fake)
    fake.failing["cuDeviceGet"] = 700
    with pytest.raises(DriverError) as caught:
        driver.number("cuDeviceGet", 0, what="device 0")
    assert "cuDeviceGet failed for device 0: CUDA_ERROR_ILLEGAL_ADDRESS (700)" in str(caught.value)
    assert "an earlier kernel failed" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_too_little_memory_is_an_error_of_its_own() -> None:
    fake = FakeCuda()
    driver = Driver(fake)
    fake.failing["cuDevicePrimaryCtxRetain"] = 2
    with pytest.raises(DeviceMemoryError, match="CUDA_ERROR_OUT_OF_MEMORY") as caught:
        driver.handle("cuDevicePrimaryCtxRetain", 0, what="device 0")
    assert isinstance(caught.value, MemoryError)


def test_a_tensor_map_is_encoded_from_all_that_is_declared_and_given() -> None:
    fake = FakeCuda(contexts=[CONTEXT])
    driver = Driver(fake)
    spec = TensorMap("x", "bf16", (64, 32, 1), swizzle=128, l2_promotion=256, nan_fill=True)
    address = 0x7F00_0000_0000
    first = driver.encode(tiled(spec, Tensor(address, (80, 50, 4), (160, 8000))))
    plain = TensorMap("x", "f32", (4,), l2_promotion=0)
    second = driver.encode(tiled(plain, Tensor(16, (2**32,), ())))
    assert fake.encoded == [
        (9, address, (80, 50, 4), (160, 8000), (64, 32, 1), (1, 1, 1), 0, 3, 3, 1),
        (7, 16, (2**32,), (), (4,), (1,), 0, 0, 0, 0),
    ]
    assert [int.from_bytes(data, "little") for data in (first, second)] == [1, 2]


def test_structures_are_laid_out_as_in_cuda_h() -> None:
    config, attribute = module.LaunchConfig, module.LaunchAttribute
    assert (ctypes.sizeof(config), config.stream.offset) == (56, 32)
    assert (config.attributes.offset, config.attribute_count.offset) == (40, 48)
    assert (ctypes.sizeof(attribute), attribute.value.offset) == (72, 8)
