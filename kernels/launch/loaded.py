"""A kernel on one device: loaded once, launched in microseconds.

Machine code is loaded once in a process, and a handle for each device is made when the kernel is
first launched there, with the attributes that it needs.  That may happen while a CUDA graph is
captured: loading is put outside of the capture.

A launch allocates nothing, waits for nothing and takes no lock: it takes a frame (configuration and
arguments, as the driver reads them) from a pool, writes the values that differ, and calls the
driver, which copies them.  The device's context is made current where it is not, so that threads
and several devices need no preparation.

What this module deliberately does not do: choose streams or grids, keep tensors alive, or
synchronise.  Errors of kernels show in later calls, as always with CUDA.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from flexfa4.kernels.compile.compiled_kernel import CompiledKernel, Dim3
from flexfa4.kernels.launch import driver as cuda
from flexfa4.kernels.launch.arguments import ArgumentBlock, ArgumentPacker
from flexfa4.kernels.launch.driver import Driver
from flexfa4.kernels.launch.errors import DriverError, WrongDeviceError

PORTABLE_CLUSTER: Final = 8  # blocks; larger ones have to be allowed

_CONFIGURE: Final = struct.Struct("<3I3II4xQ").pack_into
"""Writes what `driver.LaunchConfig` begins with: grid, block, shared memory and stream."""


class Device:
    """A device, by its number: what launches on it share.

    Attributes:
        number: as CUDA, and torch, count devices.
        capability: its compute capability, such as (9, 0).
        context: handle of the context that torch uses, too; kept for good.
    """

    def __init__(self, driver: Driver, number: int) -> None:
        """Find a device and its context.

        Raises:
            DriverError: there is no such device, or no memory on it.
        """
        self.driver = driver
        self.number = number
        what = f"device {number}"
        self.handle = driver.number("cuDeviceGet", number, what=what)
        major, minor = (
            driver.number("cuDeviceGetAttribute", attribute, self.handle, what=what)
            for attribute in cuda.COMPUTE_CAPABILITY
        )
        self.capability = (major, minor)
        self.context = driver.handle("cuDevicePrimaryCtxRetain", self.handle, what=what)

    def name(self) -> str:
        """Return its name, such as "NVIDIA H200"."""
        text = ctypes.create_string_buffer(128)
        self.driver.call("cuDeviceGetName", text, len(text), self.handle, what="its name")
        return text.value.decode(errors="replace")

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make its context the current one of this thread for a while."""
        self.driver.call("cuCtxPushCurrent_v2", self.context, what=f"device {self.number}")
        try:
            yield
        finally:
            popped = ctypes.c_void_p()
            self.driver.call("cuCtxPopCurrent_v2", ctypes.addressof(popped), what="this thread")


class Frame:
    """Configuration and arguments of one launch, as the driver reads them."""

    def __init__(self, kernel: CompiledKernel, packer: ArgumentPacker) -> None:
        """Write what is the same in every launch of a kernel."""
        self.block: ArgumentBlock = packer.block()
        attributes = _attributes(kernel)
        self._attributes = (cuda.LaunchAttribute * max(len(attributes), 1))(*attributes)
        self.bytes = bytearray(ctypes.sizeof(cuda.LaunchConfig))
        self._config = cuda.LaunchConfig.from_buffer(self.bytes)
        if attributes:
            self._config.attributes = ctypes.addressof(self._attributes)
            self._config.attribute_count = len(attributes)
        self.config = ctypes.addressof(self._config)
        self.context = ctypes.c_void_p()
        self.context_at = ctypes.addressof(self.context)


def _attributes(kernel: CompiledKernel) -> list[cuda.LaunchAttribute]:
    attributes = []
    if kernel.cluster != (1, 1, 1):
        attributes.append(_attribute(cuda.CLUSTER, kernel.cluster))
    if kernel.programmatic:
        attributes.append(_attribute(cuda.PROGRAMMATIC, (1,)))
    return attributes


def _attribute(number: int, values: Sequence[int]) -> cuda.LaunchAttribute:
    padded = (*values, *[0] * (16 - len(values)))
    return cuda.LaunchAttribute(id=number, value=padded)


class Library:
    """Machine code that is loaded in this process.

    Attributes:
        kernel: handle of the kernel in it, for any device.
    """

    _loaded: ClassVar[dict[tuple[Driver, CompiledKernel], Library]] = {}
    _lock: ClassVar = threading.Lock()

    def __init__(self, driver: Driver, kernel: CompiledKernel) -> None:
        """Load; `of` does so once."""
        self._image = kernel.cubin  # the driver may read it later
        what = f"the kernel {kernel.name}"
        try:
            library = driver.handle(
                "cuLibraryLoadData", self._image, None, None, 0, None, None, 0, what=what
            )
        except DriverError as error:
            if error.fields["code"] in cuda.UNKNOWN_CODE:
                problem = f"and refuses the machine code of {kernel.name} for {kernel.arch}"
                raise driver.too_old(problem) from error
            raise
        self.kernel = driver.handle("cuLibraryGetKernel", library, kernel.name.encode(), what=what)

    @classmethod
    def of(cls, driver: Driver, kernel: CompiledKernel) -> Library:
        """Return the library of a kernel, loaded if it is not."""
        key = (driver, kernel)
        with cls._lock:
            if key not in cls._loaded:
                cls._loaded[key] = Library(driver, kernel)
            return cls._loaded[key]


class LoadedKernel:
    """A kernel that is ready to be launched on a device."""

    def __init__(self, device: Device, kernel: CompiledKernel) -> None:
        """Load a kernel for a device.

        Raises:
            WrongDeviceError: it is for another architecture.
            OldDriverError: the driver does not know its machine code.
            DeviceMemoryError: the device has no memory for it.
            DriverError: the driver refuses it for another reason.
        """
        capability = "".join(map(str, device.capability))
        if kernel.arch != f"sm_{capability}a":
            raise WrongDeviceError(
                arch=kernel.arch,
                device=f"device {device.number} ({device.name()})",
                capability=capability,
            )
        self.device = device
        self.kernel = kernel
        driver = device.driver
        with device.current(), _outside_of_captures(driver):
            library = Library.of(driver, kernel)
            self.function = self._function(driver, library)
        self._launch = driver.launch_kernel
        self._get_context = driver.get_context
        self._context = device.context
        self._packer = ArgumentPacker(kernel, driver.encode)
        self._fill = self._packer.fill
        self._same = (*kernel.block, kernel.smem_bytes)
        self._frames: list[Frame] = []

    def _function(self, driver: Driver, library: Library) -> int:
        """Allow what the kernel needs on this device; return its handle there."""
        what = f"{self.kernel.name} on device {self.device.number}"
        attributes = {cuda.DYNAMIC_SHARED_MEMORY: self.kernel.smem_bytes}
        x, y, z = self.kernel.cluster
        if x * y * z > PORTABLE_CLUSTER:
            attributes[cuda.LARGE_CLUSTERS] = 1
        for attribute, value in attributes.items():
            driver.call(
                "cuKernelSetAttribute",
                *(attribute, value, library.kernel, self.device.handle),
                what=what,
            )
        return driver.handle("cuKernelGetFunction", library.kernel, what=what)

    def launch(self, grid: Dim3, values: Sequence[Any], stream: int) -> None:
        """Launch the kernel; returns before it has run.

        Args:
            grid: blocks along x, y, z, from 1.
            values: a value for each parameter (`ArgumentPacker.fill`).
            stream: handle of a stream of the device; 0 is the default one.

        Raises:
            LaunchValueError: a value does not fit its parameter.
            TensorLimitError: the hardware's tensor copies cannot take a tensor.
            DriverError: the driver refuses the launch, or an earlier kernel failed.
        """
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = Frame(self.kernel, self._packer)
        try:
            self._get_context(frame.context_at)
            if frame.context.value != self._context:  # which new tensor maps take, too
                with self.device.current():
                    self.launch(grid, values, stream)
                return
            self._fill(frame.block, values)
            _CONFIGURE(frame.bytes, 0, *grid, *self._same, stream)
            code = self._launch(frame.config, self.function, frame.block.pointers, None)
        finally:
            self._frames.append(frame)
        if code:
            what = f"{self.kernel.name} with grid {tuple(grid)} on device {self.device.number}"
            raise self.device.driver.error("cuLaunchKernelEx", code, what)


@contextmanager
def _outside_of_captures(driver: Driver) -> Iterator[None]:
    """Let this thread make calls that a capture of a graph forbids, for they are not part of it."""
    mode = ctypes.c_int(cuda.RELAXED)
    exchange = "cuThreadExchangeStreamCaptureMode"
    driver.call(exchange, ctypes.addressof(mode), what="this thread")
    try:
        yield
    finally:
        driver.call(exchange, ctypes.addressof(mode), what="this thread")
