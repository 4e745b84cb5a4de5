"""The chapter of the error catalogue for the host side of the emulator.

Mistakes in using a device, in presenting tensors to it and in launching kernels on it.  Texts
only: the modules beside it decide when something is wrong.
"""

from __future__ import annotations

from flexfa4.emulator.errors import EmulationError


class DeviceUseError(EmulationError):
    """A device that is not there, or is used in another way than it can be."""


class UnknownArchitectureError(DeviceUseError, ValueError):
    """An architecture that is not emulated."""

    found = "no device {name!r} is emulated"
    allowed = "{names}"
    instead = 'Device("sm_100a")'


class SmCountError(DeviceUseError, ValueError):
    """A number of multiprocessors that no device has."""

    found = "sms is {sms}"
    allowed = "a whole number from 1, or None for the architecture's"
    instead = "sms=4"


class EditedTextError(DeviceUseError, TypeError):
    """An edit of PTX that made no text of it."""

    found = "edit_ptx returned a value of type {kind}"
    allowed = "a function from a text to a text"
    instead = "edit_ptx=lambda ptx: ptx.replace(before, after)"


class EditedParametersError(DeviceUseError, ValueError):
    """An edit of PTX after which a kernel takes other parameters than host code passes."""

    found = "edit_ptx changed the parameters of {entry}"
    allowed = "the parameters that the compiler wrote: host code passes no others"
    instead = "an edit of the body only"


class NestedDeviceError(DeviceUseError, RuntimeError):
    """A device opened while another one, or itself, is open."""

    found = "a device {opened} was to be opened while {open} is open"
    allowed = "one open device in a process: it stands for the GPU of all threads"
    instead = "leave the `with` block of the first device, or use that one"


class ClosedDeviceError(DeviceUseError, RuntimeError):
    """A device asked for something outside its ``with`` block."""

    found = "{what} of a device that is not open"
    allowed = "uses inside of `with device:`"
    instead = "with Device({name!r}) as device: ..."


class MissingCutlassError(DeviceUseError, ImportError):
    """CuTe-DSL is not installed."""

    found = "the package nvidia-cutlass-dsl, whose launches a device receives, cannot be imported"
    allowed = "release 4.8.1"
    instead = "pip install nvidia-cutlass-dsl==4.8.1"


class UnfittingCutlassError(DeviceUseError, RuntimeError):
    """A release of CuTe-DSL that is built otherwise than the one the emulator knows."""

    found = "{what} of nvidia-cutlass-dsl {version} is not what the emulator knows"
    allowed = "release 4.8.1"
    instead = "pip install nvidia-cutlass-dsl==4.8.1"


class CompiledElsewhereError(DeviceUseError, RuntimeError):
    """A kernel launched on a device, and compiled before it was opened."""

    found = "the function {name} was compiled before this device was opened, for a real GPU"
    allowed = "functions compiled while an emulated device is open: only those keep their PTX"
    instead = "call cute.compile inside of `with device:`, and clear caches of compiled functions"


class LoadedModuleError(DeviceUseError, RuntimeError):
    """A module of compiled functions loaded from a file onto a device."""

    found = "the module {path} was to be loaded while an emulated device is open"
    allowed = "functions that are compiled on the device: a module has machine code, and no PTX"
    instead = "cute.compile inside of `with device:`"


class ExportError(DeviceUseError, RuntimeError):
    """Machine code of a kernel bound to the emulator that was to be written to a file."""

    found = "the function {name} was compiled for an emulated device and was to be exported"
    allowed = "running it in this process, to which its host code is bound"
    instead = "compile it outside of `with device:` and export that"


class UnsupportedCallError(DeviceUseError, RuntimeError):
    """A call of the CUDA runtime that the emulator has no answer to."""

    found = "host code called {call}"
    allowed = "{known}"
    instead = "leave the call out on an emulated device"


class TensorPresentationError(EmulationError):
    """A tensor that a device cannot present, or does not know."""


class NotACpuTensorError(TensorPresentationError, TypeError):
    """Something else than a CPU tensor with strides."""

    found = "{what} {found_value}"
    allowed = "a torch.Tensor in CPU memory, with strides"
    instead = "t.cpu() in place of t, or t.to_dense().cpu() of a sparse one"


class UnregisteredTensorError(TensorPresentationError, ValueError):
    """A tensor released that was not presented."""

    found = "no allocation of {nbytes} bytes at {start} is registered"
    allowed = "a tensor that device.tensor was called with, released once"
    instead = "device.release(t) with the tensor that was given to device.tensor"


class LaunchError(EmulationError):
    """A launch that no device would start."""


class LaunchShapeError(LaunchError, ValueError):
    """A grid, block, cluster or amount of shared memory beyond the device's limits."""

    found = "the launch of {entry} has {found_value}"
    allowed = "{wanted}"
    instead = "{rewrite}"


class WrongTargetError(LaunchError, RuntimeError):
    """PTX of one architecture on a device of another one."""

    found = "{entry} is PTX for {target}, and the device is {device}"
    allowed = "PTX for the device's own architecture"
    instead = 'Device("{target}"), or compile the kernel again for {device}'


class MissingEntryError(LaunchError, LookupError):
    """A kernel that its PTX does not define."""

    found = "the PTX has no entry {entry}"
    allowed = "{entries}"
    instead = "the name of an `.entry`"


class UnreadableParametersError(LaunchError, ValueError):
    """A parameter list of an entry that cannot be read."""

    found = "the parameters of {entry} contain `{text}`"
    allowed = ".param [.align n] .type name, or .param .align n .b8 name[size]"
    instead = "a complete PTX text"


class LaunchAttributeError(LaunchError, ValueError):
    """An attribute of a launch that the emulator does not model."""

    found = "the launch of {entry} has the attribute {number}"
    allowed = "{known}"
    instead = "leave the attribute out on an emulated device"


class TensorMapError(LaunchError, ValueError):
    """Bytes that are no tensor map, or one with fields of unknown meaning."""

    found = "a tensor map has {found_value}"
    allowed = "{wanted}"
    instead = (
        "a map made by CuTe-DSL's make_tiled_tma_atom for a tensor that is aligned to 16 bytes"
    )
