"""The functions of CUDA's driver that are called, by ctypes.

Needs no package: neither torch nor NVIDIA's bindings, whose calls take several times as long.  The
library is loaded when the first kernel is launched, and every function is found then, so that a
driver that is too old is one clear error.  `FUNCTIONS` is the table of what is called; structures
are those of ``cuda.h``.

This module does not know kernels; it allocates nothing on a device by itself.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any, Final

from flexfa4.kernels.compile.signature import MAP_NBYTES
from flexfa4.kernels.launch.errors import (
    DeviceMemoryError,
    DriverError,
    MissingDriverError,
    OldDriverError,
)
from flexfa4.kernels.launch.tensor_map import Tiled

LIBRARY: Final = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
NEEDED: Final = (12, 0)  # the release of CUDA whose driver first has all of the functions

SUCCESS: Final = 0
OUT_OF_MEMORY: Final = 2
# machine code that this driver, or this device, does not know
UNKNOWN_CODE: Final = (200, 209, 218, 222, 223)

COMPUTE_CAPABILITY: Final = (75, 76)  # of enum CUdevice_attribute: major, minor
DYNAMIC_SHARED_MEMORY: Final = 8  # of enum CUfunction_attribute
LARGE_CLUSTERS: Final = 14
CLUSTER: Final = 4  # of enum CUlaunchAttributeID
PROGRAMMATIC: Final = 6
RELAXED: Final = 2  # of enum CUstreamCaptureMode

_POINTER: Final = ctypes.c_void_p
_INT: Final = ctypes.c_int
_UINT: Final = ctypes.c_uint
_TEXT: Final = ctypes.c_char_p

FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (_UINT,),
    "cuDriverGetVersion": (_POINTER,),
    "cuGetErrorName": (_INT, _POINTER),
    "cuGetErrorString": (_INT, _POINTER),
    "cuDeviceGet": (_POINTER, _INT),
    "cuDeviceGetName": (_TEXT, _INT, _INT),
    "cuDeviceGetAttribute": (_POINTER, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_POINTER, _INT),
    "cuCtxGetCurrent": (_POINTER,),
    "cuCtxPushCurrent_v2": (_POINTER,),
    "cuCtxPopCurrent_v2": (_POINTER,),
    "cuThreadExchangeStreamCaptureMode": (_POINTER,),
    "cuLibraryLoadData": (
        *(_POINTER, _POINTER, _POINTER, _POINTER),
        *(_UINT, _POINTER, _POINTER, _UINT),
    ),
    "cuLibraryGetKernel": (_POINTER, _POINTER, _TEXT),
    "cuKernelSetAttribute": (_INT, _INT, _POINTER, _INT),
    "cuKernelGetFunction": (_POINTER, _POINTER),
    "cuTensorMapEncodeTiled": (
        *(_POINTER, _INT, _UINT, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
        *(_INT, _INT, _INT, _INT),
    ),
    "cuLaunchKernelEx": (_POINTER, _POINTER, _POINTER, _POINTER),
}

# what may help, by the number of an error; CUDA's own words say the rest
_ADVICE: Final = {
    OUT_OF_MEMORY: ("free memory for what is asked", "a smaller batch, or fewer live tensors"),
    719: ("launches behind kernels that ended well", "an earlier kernel failed: find it first"),
    700: ("launches behind kernels that ended well", "an earlier kernel failed: find it first"),
    716: ("launches behind kernels that ended well", "an earlier kernel failed: find it first"),
    701: ("what one multiprocessor has", "a report: the kernel's plan asks for too much"),
    900: ("no calls that wait while a graph is captured", "one call before the capture"),
    999: ("a driver that works", "a restart of the process, or of the machine"),
}
_NO_ADVICE: Final = ("calls as CUDA's driver takes them", "a report with this text")


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``; the value is a union, of which three numbers are used."""

    _fields_ = (
        ("id", ctypes.c_uint32),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_uint32 * 16),
    )


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_memory", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint32),
    )


class Driver:
    """CUDA's driver; every function raises what goes wrong.

    Args:
        library: what has the functions, for tests; else the driver of this machine.

    Attributes:
        version: of CUDA that the driver is for: major and minor.
        launch_kernel: ``cuLaunchKernelEx``, which returns CUDA's number and raises nothing.
        get_context: ``cuCtxGetCurrent``, likewise.

    Raises:
        MissingDriverError: there is none.
        OldDriverError: it lacks a function.
        DriverError: it does not start.
    """

    def __init__(self, library: Any = None) -> None:
        if library is None:
            library = _load_library()
        self._functions = {}
        self.version = (0, 0)
        missing = []
        for name, types in FUNCTIONS.items():
            function = getattr(library, name, None)
            if function is None:
                missing.append(name)
                continue
            function.argtypes, function.restype = types, _INT
            self._functions[name] = function
        if "cuInit" in self._functions and "cuDriverGetVersion" in self._functions:
            number = ctypes.c_int()
            if self._functions["cuDriverGetVersion"](ctypes.addressof(number)) == SUCCESS:
                self.version = (number.value // 1000, number.value % 1000 // 10)
        if missing:
            raise self.too_old(f"and lacks {', '.join(missing)}")
        self.call("cuInit", 0, what="this process")
        self.launch_kernel = self._functions["cuLaunchKernelEx"]
        self.get_context = self._functions["cuCtxGetCurrent"]

    def call(self, function: str, *arguments: Any, what: str) -> None:
        """Call a function.

        Args:
            function: a name of `FUNCTIONS`.
            arguments: its arguments.
            what: what it is called for, for messages.

        Raises:
            DeviceMemoryError: too little memory is free on the device.
            DriverError: the call failed for another reason.
        """
        code = self._functions[function](*arguments)
        if code != SUCCESS:
            raise self.error(function, code, what)

    def handle(self, function: str, *arguments: Any, what: str) -> int:
        """Call a function whose first argument is where it stores a handle; return that."""
        out = ctypes.c_void_p()
        self.call(function, ctypes.addressof(out), *arguments, what=what)
        return out.value or 0

    def number(self, function: str, *arguments: Any, what: str) -> int:
        """Call a function whose first argument is where it stores an int; return that."""
        out = ctypes.c_int()
        self.call(function, ctypes.addressof(out), *arguments, what=what)
        return out.value

    def error(self, function: str, code: int, what: str) -> DriverError:
        """Return the error for a number that a function returned."""
        expected, rewrite = _ADVICE.get(code, _NO_ADVICE)
        kind = DeviceMemoryError if code == OUT_OF_MEMORY else DriverError
        return kind(
            call=function,
            what=what,
            name=self._text("cuGetErrorName", code) or "an unknown error",
            code=code,
            meaning=self._text("cuGetErrorString", code) or "of which the driver says no more",
            expected=expected,
            rewrite=rewrite,
        )

    def too_old(self, problem: str) -> OldDriverError:
        """Return the error for a driver that is too old."""
        version = f"{self.version[0]}.{self.version[1]}" if any(self.version) else "(unknown)"
        return OldDriverError(version=version, problem=problem, needed=f"{NEEDED[0]}.{NEEDED[1]}")

    def encode(self, tiled: Tiled) -> bytes:
        """Return the 128 bytes of a tensor map.

        Raises:
            DriverError: the driver refuses it.
        """
        rank = len(tiled.sizes)
        place = (ctypes.c_char * (MAP_NBYTES + 64))()
        start = ctypes.addressof(place) + -ctypes.addressof(place) % 64  # it has to be aligned
        self.call(
            "cuTensorMapEncodeTiled",
            start,
            tiled.data_type,
            rank,
            tiled.address,
            (ctypes.c_uint64 * rank)(*tiled.sizes),
            (ctypes.c_uint64 * rank)(*tiled.strides),
            (ctypes.c_uint32 * rank)(*tiled.box),
            (ctypes.c_uint32 * rank)(*tiled.steps),
            tiled.interleave,
            tiled.swizzle,
            tiled.l2_promotion,
            tiled.fill,
            what=f"{tiled}",
        )
        return ctypes.string_at(start, MAP_NBYTES)

    def _text(self, function: str, code: int) -> str:
        text = ctypes.c_char_p()
        self._functions[function](code, ctypes.addressof(text))
        return (text.value or b"").decode(errors="replace")


def _load_library() -> Any:
    try:
        if sys.platform == "win32":
            return ctypes.WinDLL(LIBRARY)
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise MissingDriverError(reason=error) from error


@functools.cache
def driver() -> Driver:
    """Return the driver of this machine, loaded at the first call."""
    return Driver()
