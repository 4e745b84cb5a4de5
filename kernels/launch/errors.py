"""The chapter of the error catalogue for launching kernels.

Texts only: the modules beside it decide when something is wrong.
"""

from __future__ import annotations

from flexfa4.errors import FlexFA4Error


class LaunchError(FlexFA4Error, RuntimeError):
    """A kernel that could not be launched."""


class MissingDriverError(LaunchError, ImportError):
    """This machine has no NVIDIA driver, or it is not found."""

    found = "CUDA's driver could not be loaded: {reason}"
    allowed = "machines with an NVIDIA GPU and its driver; WSL and containers that are given both"
    instead = 'backend="cpu"; `nvidia-smi` in a shell shows whether there is a driver'


class OldDriverError(LaunchError):
    """A driver that lacks what is called, or cannot run the machine code."""

    found = "the driver of this machine supports CUDA {version}, {problem}"
    allowed = "drivers for CUDA {needed} or newer"
    instead = 'a newer driver; or backend="cpu"'


class WrongDeviceError(LaunchError):
    """A kernel for another architecture than the device has."""

    found = "a kernel for {arch} was to be launched on {device}, of compute capability {capability}"
    allowed = "kernels for sm_{capability}a there"
    instead = "a kernel that is compiled for this device"


class DriverError(LaunchError):
    """The driver refused a call."""

    found = "{call} failed for {what}: {name} ({code}), {meaning}"
    allowed = "{expected}"
    instead = "{rewrite}"


class DeviceMemoryError(DriverError, MemoryError):
    """The device has too little free memory."""


class TensorLimitError(LaunchError, ValueError):
    """A tensor that the hardware's tensor copies cannot take."""

    found = "tensor {name} has {found_value}"
    allowed = "{expected}"
    instead = "a contiguous copy of it"


class LaunchValueError(LaunchError, TypeError):
    """A value that does not fit its parameter; a mistake in who launches."""

    found = "{kernel} was launched with {found_value} for {parameter}"
    allowed = "{expected}"
    instead = "the values in the order of the kernel's signature"
