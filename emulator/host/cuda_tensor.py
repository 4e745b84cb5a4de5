"""A CPU tensor that tells DLPack's consumers that it lies on a CUDA device.

CuTe-DSL gives a pointer the address space ``gmem`` only where DLPack says CUDA, and compiles other
code for it, so a CPU tensor must not be passed as it is.  The bytes stay where they are: the
address that a kernel gets is the CPU tensor's.

The wrapper answers questions about the tensor, and does nothing else: a view of it is a new tensor
for `Device.tensor`, since torch would return one that says CPU again.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

from flexfa4.emulator.host.errors import NotACpuTensorError

if TYPE_CHECKING:
    import torch

CUDA: Final = 2  # kDLCUDA of dlpack.h
DEVICE: Final = (CUDA, 0)


class _DLTensor(ctypes.Structure):
    """The first fields of dlpack.h's DLTensor; what follows is not touched."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
    )


class _Versioned(ctypes.Structure):
    """dlpack.h's DLManagedTensorVersioned up to its tensor; the older struct begins with it."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


# where the DLTensor begins in what a capsule of this name points to
OFFSETS: Final = {b"dltensor": 0, b"dltensor_versioned": _Versioned.tensor.offset}


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address of a tensor's first element, and the bytes from there to its last.

    Both are 0 for a tensor without elements, or without the memory for all of them: its storage may
    have been shrunk, or be a fake one.
    """
    address = tensor.data_ptr() if tensor.numel() else 0
    if not address:
        return 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    nbytes = (last + 1) * tensor.element_size()
    skipped = tensor.storage_offset() * tensor.element_size()
    return (address, nbytes) if skipped + nbytes <= tensor.untyped_storage().nbytes() else (0, 0)


def cpu_tensor(value: object, what: str) -> torch.Tensor:
    """Return a tensor whose memory kernels can touch, without its history.

    Args:
        value: what should be one.
        what: begins the message: ``argument 0 is``.

    Raises:
        NotACpuTensorError: for anything but a CPU tensor with strides.
    """
    import torch

    if not (
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.layout == torch.strided
    ):
        raise NotACpuTensorError(what=what, found_value=_described(value))
    return value.detach()


class CudaTensor:
    """A CPU tensor as DLPack's consumers see one on a CUDA device.

    Attributes:
        cpu: the tensor itself, whose memory a kernel reads and writes.
    """

    is_cuda: Final = True

    def __init__(self, tensor: object) -> None:
        """Wrap a tensor.

        Raises:
            NotACpuTensorError: for anything but a CPU tensor with strides.
        """
        self.cpu = cpu_tensor(tensor, "device.tensor was given")

    @property
    def device(self) -> torch.device:
        """The device it claims to lie on."""
        import torch

        return torch.device("cuda", 0)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the elements."""
        return self.cpu.dtype

    @property
    def shape(self) -> torch.Size:
        """Elements along each axis."""
        return self.cpu.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.cpu.ndim

    def stride(self) -> tuple[int, ...]:
        """Return the elements from one index to the next, along each axis."""
        return self.cpu.stride()

    def numel(self) -> int:
        """Return the number of elements."""
        return self.cpu.numel()

    def element_size(self) -> int:
        """Return the bytes of an element."""
        return self.cpu.element_size()

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return self.cpu.data_ptr()

    def __repr__(self) -> str:
        return f"CudaTensor({tuple(self.shape)}, {self.dtype}, at {self.data_ptr():#x})"

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type and number: CUDA, 0."""
        return DEVICE

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """Return torch's capsule with its device changed to CUDA.

        Args:
            stream: ignored: launches end before they return.
            max_version: newest form of capsule that the consumer reads.
            dl_device: ignored: there is one device, which it lies on.
            copy: as in DLPack's protocol; a copy is the consumer's alone, and no kernel's to touch.
        """
        capsule = self.cpu.__dlpack__(max_version=max_version, copy=copy)
        _tensor_of(capsule).device_type = CUDA
        return capsule


def _described(value: object) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"a {value.layout} tensor on the device {value.device}"
    return f"a value of type {type(value).__name__}"


def _tensor_of(capsule: Any) -> _DLTensor:
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = name_of(capsule)
    return _DLTensor.from_address(pointer_of(capsule, name) + OFFSETS[name])
