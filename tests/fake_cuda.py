"""A CUDA driver that is not there: C functions, made by ctypes, that record how they are called.

They have the driver's own C types and are called through them, so that what a test finds in a
launch was read from memory as the driver would read it.  What is answered is in `FakeCuda`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flexfa4.kernels.launch.driver import FUNCTIONS

SUCCESS = 0
_INVALID_CONTEXT = 201
KERNEL, FUNCTION, LIBRARY = 0x100, 0x200, 0x300  # handles; of functions, one for each context
CONTEXT = 0x1000  # of device 0

# enum CUresult, as far as tests use it
NAMES = {
    2: b"CUDA_ERROR_OUT_OF_MEMORY",
    209: b"CUDA_ERROR_NO_BINARY_FOR_GPU",
    700: b"CUDA_ERROR_ILLEGAL_ADDRESS",
    701: b"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    900: b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
}


@dataclass
class Launched:
    """A launch as the driver saw it.

    Attributes:
        grid, block: blocks and threads along x, y, z.
        shared_memory: bytes.
        stream: its handle.
        attributes: values by id, as the first three numbers.
        function: handle.
        parameters: bytes of each.
        context: that was current.
    """

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_memory: int
    stream: int
    attributes: dict[int, tuple[int, ...]]
    function: int
    parameters: list[bytes]
    context: int


@dataclass
class FakeCuda:
    """The library; give it to `flexfa4.kernels.launch.driver.Driver`.

    Attributes:
        sizes: bytes of each parameter of the kernel.
        capability: of every device.
        version: of CUDA.
        without: names of functions that it lacks.
        failing: what functions return, by name, in place of success.
        calls: names of all functions that were called, in order, but for error texts.
        launches: of kernels.
        attributes: (attribute, value, device) of kernels.
        contexts: the stack of current ones.
        mode: of captures, of this thread.
        encoded: arguments of tensor maps that were encoded.
    """

    sizes: tuple[int, ...] = ()
    capability: tuple[int, int] = (9, 0)
    version: int = 13000
    without: tuple[str, ...] = ()
    failing: dict[str, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    launches: list[Launched] = field(default_factory=list)
    attributes: list[tuple[int, int, int]] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)
    mode: int = 0
    encoded: list[tuple[Any, ...]] = field(default_factory=list)
    _functions: dict[str, Any] = field(default_factory=dict)
    _texts: list[Any] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        if name not in FUNCTIONS or name in self.without:
            raise AttributeError(name)
        if name not in self._functions:
            prototype = ctypes.CFUNCTYPE(ctypes.c_int, *FUNCTIONS[name])
            self._functions[name] = prototype(self._recorded(name))
        return self._functions[name]

    def _recorded(self, name: str) -> Callable[..., int]:
        answer: Callable[..., int | None] = getattr(self, f"_{name}", lambda *_arguments: None)

        def called(*arguments: Any) -> int:
            if not name.startswith("cuGetError"):
                self.calls.append(name)
            if name in self.failing:
                return self.failing[name]
            return answer(*arguments) or SUCCESS

        return called

    def _cuDriverGetVersion(self, out: int) -> None:
        _store(ctypes.c_int, out, self.version)

    def _cuGetErrorName(self, code: int, out: int) -> int:
        self._texts.append(ctypes.create_string_buffer(NAMES.get(code, b"?")))
        _store(ctypes.c_void_p, out, ctypes.addressof(self._texts[-1]))
        return SUCCESS

    _cuGetErrorString = _cuGetErrorName

    def _cuDeviceGet(self, out: int, number: int) -> None:
        _store(ctypes.c_int, out, number)

    def _cuDeviceGetAttribute(self, out: int, attribute: int, _device: int) -> None:
        _store(ctypes.c_int, out, self.capability[{75: 0, 76: 1}[attribute]])

    def _cuDevicePrimaryCtxRetain(self, out: int, device: int) -> None:
        _store(ctypes.c_void_p, out, CONTEXT + device)

    def _cuCtxGetCurrent(self, out: int) -> None:
        _store(ctypes.c_void_p, out, self.contexts[-1] if self.contexts else 0)

    def _cuCtxPushCurrent_v2(self, context: int) -> None:
        self.contexts.append(context)

    def _cuCtxPopCurrent_v2(self, out: int) -> None:
        _store(ctypes.c_void_p, out, self.contexts.pop())

    def _cuThreadExchangeStreamCaptureMode(self, inout: int) -> None:
        before, self.mode = self.mode, ctypes.c_int.from_address(inout).value
        _store(ctypes.c_int, inout, before)

    def _cuLibraryLoadData(self, out: int, *_rest: Any) -> None:
        assert self.mode == 2, "loading is forbidden while a graph is captured"
        _store(ctypes.c_void_p, out, LIBRARY)

    def _cuLibraryGetKernel(self, out: int, _library: int, _name: bytes) -> None:
        _store(ctypes.c_void_p, out, KERNEL)

    def _cuKernelSetAttribute(self, attribute: int, value: int, _kernel: int, device: int) -> None:
        self.attributes.append((attribute, value, device))

    def _cuKernelGetFunction(self, out: int, _kernel: int) -> None:
        _store(ctypes.c_void_p, out, FUNCTION + self.contexts[-1])

    def _cuTensorMapEncodeTiled(
        self, out: int, data_type: int, rank: int, *rest: Any
    ) -> int | None:
        assert out % 64 == 0
        if not self.contexts:
            return _INVALID_CONTEXT
        address, sizes, strides, box, steps, *modes = rest

        def listed(at: int, kind: Any, count: int) -> tuple[int, ...]:
            return tuple((kind * count).from_address(at))

        self.encoded.append(
            (
                data_type,
                address,
                listed(sizes, ctypes.c_uint64, rank),
                listed(strides, ctypes.c_uint64, rank - 1),
                listed(box, ctypes.c_uint32, rank),
                listed(steps, ctypes.c_uint32, rank),
                *modes,
            )
        )
        ctypes.memmove(out, len(self.encoded).to_bytes(128, "little"), 128)
        return None

    def _cuLaunchKernelEx(self, config: int, function: int, values: int, _extra: Any) -> None:
        read = _Config.from_address(config)
        count = read.attribute_count
        attributes = (_Attribute * count).from_address(read.attributes) if count else ()
        pointers = (ctypes.c_void_p * len(self.sizes)).from_address(values)
        self.launches.append(
            Launched(
                grid=tuple(read.grid),
                block=tuple(read.block),
                shared_memory=read.shared_memory,
                stream=read.stream or 0,
                attributes={a.id: tuple(a.value[:3]) for a in attributes},
                function=function,
                parameters=[
                    ctypes.string_at(pointer, size)
                    for pointer, size in zip(pointers, self.sizes, strict=True)
                ],
                context=self.contexts[-1] if self.contexts else 0,
            )
        )


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h."""

    _fields_ = (("id", ctypes.c_int), ("_", ctypes.c_char * 4), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_memory", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


def _store(kind: Any, address: int, value: int) -> None:
    kind.from_address(address).value = value
