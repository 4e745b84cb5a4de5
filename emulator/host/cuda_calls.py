"""What host code calls of the CUDA runtime, answered in Python.

CuTe-DSL's compiled host code loads a library, gets kernels from it, asks for attributes and
launches, through functions named like the CUDA runtime's with an underscore in front.  `CALLS` has
a row for each that is answered here, with the types of its arguments; `binding.py` makes compiled
code call them.  A function without a row is an error that names it, so that nothing is skipped in
silence.

Libraries and kernels are the process's: a function compiled while one device was open keeps its
handles, and its launches go to the device that is open then.  No exception may cross host code: it
is kept for `take_failure`, and host code gets an error number.

Structures are those of CUDA's driver_types.h.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from flexfa4.emulator.host.architectures import Architecture
from flexfa4.emulator.host.errors import (
    EditedParametersError,
    LaunchAttributeError,
    UnsupportedCallError,
)
from flexfa4.emulator.host.launch import Dim3, Launch, Parameter, Shape
from flexfa4.emulator.host.signatures import signature
from flexfa4.emulator.host.tensor_map import NBYTES
from flexfa4.emulator.host.tensor_map_encoding import TiledArguments

SUCCESS: Final = 0
NO_DEVICE: Final = 100  # cudaErrorNoDevice: no emulated device is open
LAUNCH_FAILURE: Final = 719  # cudaErrorLaunchFailure
NOT_SUPPORTED: Final = 801  # cudaErrorNotSupported


class _Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32))

    def sizes(self) -> Dim3:
        return (self.x, self.y, self.z)


class _AttributeValue(ctypes.Union):
    _fields_ = (
        ("reserved", ctypes.c_char * 64),
        ("dimensions", _Dim3),
        ("number", ctypes.c_int32),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int32), ("pad", ctypes.c_char * 4), ("value", _AttributeValue))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", _Dim3),
        ("block", _Dim3),
        ("shared_memory", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint32),
    )


COOPERATIVE, CLUSTER, PROGRAMMATIC, PREFERRED = 2, 4, 6, 11  # of enum cudaLaunchAttributeID
KNOWN_ATTRIBUTES: Final = {
    0: "ignored",
    COOPERATIVE: "cooperative launch",
    CLUSTER: "cluster dimension",
    PROGRAMMATIC: "programmatic stream serialization",
    8: "priority",  # of a stream: launches run one after another here
    PREFERRED: "preferred cluster dimension",
}


class Target(Protocol):
    """What an open device offers to the runtime."""

    architecture: Architecture

    def edited(self, ptx: str) -> str:
        """Return the text that is to run in place of this one."""

    def launch(self, launch: Launch) -> None:
        """Run a kernel to its end."""


@dataclass(frozen=True)
class _Kernel:
    library: int
    name: str


class Runtime:
    """The CUDA runtime as host code sees it: libraries, kernels and one device.

    Attributes:
        target: the open device, or None.
    """

    def __init__(self) -> None:
        self.target: Target | None = None
        self._lock = threading.RLock()  # a launch runs alone
        self._failures = threading.local()
        self._texts: dict[int, str] = {}  # PTX by the address of its image, the library's handle
        self._kernels: dict[int, _Kernel] = {}
        self._handles: dict[_Kernel, int] = {}
        self._next_handle = itertools.count(1)

    def fail(self, error: BaseException) -> None:
        """Keep an exception of this thread; the first one counts."""
        if self.failure() is None:
            self._failures.error = error

    def failure(self) -> BaseException | None:
        """Return the exception that this thread keeps, if any."""
        return getattr(self._failures, "error", None)

    def take_failure(self) -> BaseException | None:
        """Return the exception that this thread keeps, and keep it no longer."""
        error = self.failure()
        self._failures.error = None
        return error

    # ---- libraries and kernels ----

    def load_library(self, out: int, image: int, *_options: Any) -> int:
        """Take the PTX that stands where a GPU would get machine code."""
        self._texts[image] = ctypes.string_at(image).decode()
        _store(out, image, ctypes.c_void_p)
        return SUCCESS

    def get_kernel(self, out: int, library: int, name: int) -> int:
        """Hand out the handle of a kernel in a library."""
        kernel = _Kernel(library, ctypes.string_at(name).decode())
        with self._lock:
            handle = self._handles.get(kernel)
            if handle is None:
                handle = self._handles[kernel] = next(self._next_handle)
                self._kernels[handle] = kernel
        _store(out, handle, ctypes.c_void_p)
        return SUCCESS

    def load_once(self, out: int, initialise: int, load: int, *_report: Any) -> int:
        """Load a library and its kernels, unless that was done."""
        library = ctypes.c_void_p.from_address(out)
        if library.value:
            return SUCCESS
        first = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(initialise)
        then = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)(load)
        return int(first(out) or then(out, 0))

    # ---- attributes ----

    def device_count(self, out: int) -> int:
        """Say that there is one device."""
        _store(out, 1, ctypes.c_int32)
        return SUCCESS

    def device_number(self, out: int) -> int:
        """Say that it is number 0."""
        _store(out, 0, ctypes.c_int32)
        return SUCCESS

    def device_attribute(self, out: int, attribute: int, _device: int) -> int:
        """Answer from the architecture's row."""
        if self.target is None:
            return NO_DEVICE
        value = self.target.architecture.attribute(attribute)
        if value is None:
            raise unsupported(f"_cudaDeviceGetAttribute({attribute})")
        _store(out, value, ctypes.c_int32)
        return SUCCESS

    def kernel_attribute(self, out: int, attribute: int, kernel: int, _device: int) -> int:
        """Answer what a kernel needs; numbers are those of enum CUfunction_attribute."""
        if attribute != 1:
            raise unsupported(f"_cuKernelGetAttribute({attribute})")
        read = signature(self._text(kernel), self._kernels[kernel].name)
        _store(out, read.static_shared_memory, ctypes.c_int32)
        return SUCCESS

    def set_kernel_attribute(self, _kernel: int, attribute: int, *_value: Any) -> int:
        """Allow what a launch may use anyway: dynamic shared memory (8), large clusters (14).

        The limits are checked at the launch, against the device's.  How the cache is split (9) is
        a hint.
        """
        if attribute not in (8, 9, 14):
            raise unsupported(f"_cudaFuncSetAttribute({attribute})")
        return SUCCESS

    # ---- tensor maps ----

    def encode_tensor_map(
        self, out: int, data_type: int, rank: int, address: int, *rest: int
    ) -> int:
        """Write a tensor map."""
        sizes, strides, box, steps, interleave, swizzle, fetched, fill = rest

        def listed(at: int, kind: Any, count: int) -> list[int]:
            return list((kind * count).from_address(at)) if count > 0 else []

        arguments = TiledArguments(
            data_type,
            address or 0,
            listed(sizes, ctypes.c_uint64, rank),
            listed(strides, ctypes.c_uint64, rank - 1),
            listed(box, ctypes.c_uint32, rank),
            listed(steps, ctypes.c_uint32, rank),
            interleave,
            swizzle,
            fetched,
            fill,
        )
        ctypes.memmove(out, arguments.encode(), NBYTES)
        return SUCCESS

    # ---- launches ----

    def launch_extended(self, config: int, kernel: int, arguments: int) -> int:
        """Launch with attributes."""
        given = _LaunchConfig.from_address(config)
        entry = self._kernels[kernel].name
        attributes = {a.id: a.value for a in given.attributes[: given.attribute_count]}
        for number in attributes:
            if number not in KNOWN_ATTRIBUTES:
                known = ", ".join(f"{n} ({name})" for n, name in KNOWN_ATTRIBUTES.items())
                raise LaunchAttributeError(entry=entry, number=number, known=known)
        cluster = attributes[CLUSTER].dimensions.sizes() if CLUSTER in attributes else (1, 1, 1)
        if PREFERRED in attributes:  # a GPU may mix the two; here all clusters are of one size
            preferred = attributes[PREFERRED].dimensions.sizes()
            if all(g % max(c, 1) == 0 for g, c in zip(given.grid.sizes(), preferred, strict=True)):
                cluster = preferred
        flags = {
            name: number in attributes and attributes[number].number != 0
            for name, number in (("cooperative", COOPERATIVE), ("programmatic", PROGRAMMATIC))
        }
        shape = Shape(given.grid.sizes(), given.block.sizes(), cluster, given.shared_memory)
        return self._launch(kernel, arguments, shape, given.stream or 0, **flags)

    def launch_plain(self, kernel: int, *rest: int) -> int:
        """Launch without attributes."""
        gx, gy, gz, bx, by, bz, arguments, shared_memory, stream = rest
        shape = Shape((gx, gy, gz), (bx, by, bz), shared_memory=shared_memory)
        return self._launch(kernel, arguments, shape, stream or 0)

    def _launch(self, kernel: int, arguments: int, shape: Shape, stream: int, **flags: bool) -> int:
        with self._lock:
            if self.target is None:
                return NO_DEVICE
            name, compiled = self._kernels[kernel].name, self._text(kernel)
            ptx = self.target.edited(compiled)
            read = signature(ptx, name)
            if read.slots != signature(compiled, name).slots:  # pointers past the end would follow
                raise EditedParametersError(entry=name)
            pointers = (ctypes.c_void_p * len(read.slots)).from_address(arguments)
            parameters = tuple(
                Parameter(slot, ctypes.string_at(pointer, slot.nbytes))
                for slot, pointer in zip(read.slots, pointers, strict=True)
            )
            launch = Launch(
                ptx,
                read,
                shape,
                parameters,
                stream,
                cooperative=flags.get("cooperative", False),
                programmatic=flags.get("programmatic", False),
            )
            launch.check(self.target.architecture)
            self.target.launch(launch)
        return SUCCESS

    def _text(self, kernel: int) -> str:
        return self._texts[self._kernels[kernel].library]


def unsupported(call: str) -> UnsupportedCallError:
    """Return the error for a call without an answer."""
    return UnsupportedCallError(call=call, known=", ".join(row.name for row in CALLS))


def _store(address: int, value: int, kind: Any) -> None:
    kind.from_address(address).value = value


# ---- the table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A function that host code may call.

    Attributes:
        name: symbol.
        arguments: types, in the words of LLVM: ``ptr i32 i64``.
        answer: method of `Runtime` that is called; None: it does nothing, and succeeds.
    """

    name: str
    arguments: str
    answer: Callable[..., int] | None = None


_ENCODE = "ptr i32 i32 ptr ptr ptr ptr ptr i32 i32 i32 i32"
_LAUNCH = "ptr i32 i32 i32 i32 i32 i32 ptr i64 ptr"
CALLS: Final = (
    Call("_cudaLibraryLoadData", "ptr ptr ptr ptr i32 ptr ptr i32", Runtime.load_library),
    Call("_cudaLibraryGetKernel", "ptr ptr ptr", Runtime.get_kernel),
    Call("_cudaGetDeviceCount", "ptr", Runtime.device_count),
    Call("_cudaGetDevice", "ptr", Runtime.device_number),
    Call("_cudaDeviceGetAttribute", "ptr i32 i32", Runtime.device_attribute),
    Call("_cuKernelGetAttribute", "ptr i32 ptr i32", Runtime.kernel_attribute),
    Call("_cudaKernelSetAttributeForDevice", "ptr i32 i32 i32", Runtime.set_kernel_attribute),
    Call("_cudaFuncSetAttribute", "ptr i32 i32", Runtime.set_kernel_attribute),
    Call("_cuTensorMapEncodeTiled", _ENCODE, Runtime.encode_tensor_map),
    Call("_cudaLaunchKernelEx", "ptr ptr ptr", Runtime.launch_extended),
    Call("_cudaLaunchKernel", _LAUNCH, Runtime.launch_plain),
    Call("cuda_dialect_init_library_once", "ptr ptr ptr ptr", Runtime.load_once),
    # Nothing to unload: texts belong to the process.  Host code calls this when Python ends, too,
    # where it could call nothing of Python any more.
    Call("cuda_dialect_unload_library_once", "ptr"),
    Call("_cudaLibraryUnload", "ptr"),
    # The library's own ends the process on an error number; here an exception was kept before.
    Call("cuda_dialect_assert_success", "i32"),
    # One device, and launches that end before they return.
    Call("_cudaSetDevice", "i32"),
    Call("_cudaDeviceSynchronize", ""),
    Call("_cudaStreamSynchronize", "ptr"),
)
# Resolved from CuTe-DSL's own runtime library: they only turn an error number into words.
FROM_THE_LIBRARY: Final = frozenset(
    {
        "cuda_dialect_get_error_name",
        "cuda_dialect_print_on_error",
        "CuteDSLRT_TVMFFISetRaisedCudaError",
        "CuteDSLRT_TVMFFISetRaisedCudaLaunchError",
    }
)
RUNTIME: Final = Runtime()

_TYPES: Final = {"ptr": ctypes.c_void_p, "i32": ctypes.c_int32, "i64": ctypes.c_int64}
_callbacks: dict[str, Any] = {}  # never freed: compiled code holds their addresses


def address_of(call: Call) -> int:
    """Return the address at which compiled code can call a function of the table."""
    assert call.answer is not None
    types = [_TYPES[name] for name in call.arguments.split()]
    return _address(call.name, types, call.answer)


def address_of_refusal(name: str) -> int:
    """Return the address of a function that fails, and says that this one is not supported."""

    def refuse(_runtime: Runtime) -> int:
        raise unsupported(name)

    return _address(name, [], refuse)


def _address(name: str, types: list[Any], answer: Callable[..., int]) -> int:
    if name not in _callbacks:

        def called(*arguments: Any) -> int:
            try:
                return answer(RUNTIME, *arguments)
            except BaseException as error:  # a KeyboardInterrupt, too, waits for host code
                RUNTIME.fail(error)
                refused = isinstance(error, UnsupportedCallError)
                return NOT_SUPPORTED if refused else LAUNCH_FAILURE

        _callbacks[name] = ctypes.CFUNCTYPE(ctypes.c_int32, *types)(called)
    address = ctypes.cast(_callbacks[name], ctypes.c_void_p).value
    assert address is not None
    return address
