"""`Executor`: who launches kernels; and `CudaExecutor`, a device that does.

What computes attention is handed an executor, and does not know whether a GPU or something that
stands for one is behind it::

    executor.launch(kernel, (blocks, 1, 1), values, stream=stream, memory=(query, key, value, out))

An executor that is no GPU has to know which memory a kernel may touch, and gets it by `memory`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from flexfa4.kernels.compile.compiled_kernel import CompiledKernel, Dim3
from flexfa4.kernels.launch.driver import Driver, driver
from flexfa4.kernels.launch.loaded import Device, LoadedKernel


class Executor(Protocol):
    """Who launches kernels."""

    def load(self, kernel: CompiledKernel) -> Any:
        """Make a kernel ready to be launched; `launch` does so itself where it is not."""

    def launch(
        self,
        kernel: CompiledKernel,
        grid: Dim3,
        values: Sequence[Any],
        *,
        stream: int = 0,
        memory: Sequence[Any] = (),
    ) -> None:
        """Launch a kernel.

        Args:
            kernel: what to launch.
            grid: blocks along x, y, z, from 1.
            values: a value for each parameter of its signature, in order: for a tensor map a
                `flexfa4.kernels.launch.tensor_map.Tensor`, for others a number.
            stream: where it takes its turn; 0 is the default stream.
            memory: tensors whose memory the kernel may touch, and None where there is none.
        """


class CudaExecutor:
    """A device; `cuda_executor` makes one for each.

    Kernels are loaded when they are first launched, and stay.
    """

    def __init__(self, device: Device) -> None:
        """Stand for a device."""
        self._device = device
        self._loaded: dict[CompiledKernel, LoadedKernel] = {}
        self._lock = threading.Lock()

    def launch(
        self,
        kernel: CompiledKernel,
        grid: Dim3,
        values: Sequence[Any],
        *,
        stream: int = 0,
        memory: Sequence[Any] = (),
    ) -> None:
        """Launch a kernel; see `Executor.launch` and `LoadedKernel.launch`."""
        loaded = self._loaded.get(kernel)
        if loaded is None:
            loaded = self.load(kernel)
        loaded.launch(grid, values, stream)

    def load(self, kernel: CompiledKernel) -> LoadedKernel:
        """Return a kernel that is ready to be launched; loads it if it is not.

        Raises:
            LaunchError: it cannot be loaded here.
        """
        with self._lock:
            if kernel not in self._loaded:
                self._loaded[kernel] = LoadedKernel(self._device, kernel)
            return self._loaded[kernel]


@functools.cache
def cuda_executor(number: int) -> CudaExecutor:
    """Return the executor of a device, by the number that torch gives it.

    Raises:
        LaunchError: there is no driver, no such device, or no memory on it.
    """
    return executor_of(driver(), number)


def executor_of(cuda: Driver, number: int) -> CudaExecutor:
    """Return a new executor of a device of a driver."""
    return CudaExecutor(Device(cuda, number))
