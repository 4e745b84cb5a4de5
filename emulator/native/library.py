"""The functions of the built library, for Python, and its reports as Python's values.

`Program` is a kernel that the core has loaded and `Program.run` runs a launch of it; what goes
wrong there becomes the exception that `flexfa4.emulator.failures` has under its name.

The core runs in a thread of its own while the caller waits, so that Ctrl-C ends a run.  Runs share
nothing, and Python's lock is not held: launches in several threads run side by side.

What this module deliberately does not do: know PTX, or arguments of kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from flexfa4.emulator.errors import EmulationError, Place
from flexfa4.emulator.failures import by_name
from flexfa4.emulator.failures.build import LoadingError
from flexfa4.emulator.failures.program import UnnamedFailureError
from flexfa4.emulator.host.allocations import Allocation
from flexfa4.emulator.options import SCHEDULES, Options
from flexfa4.emulator.results import Run, Traffic

Dim3 = tuple[int, int, int]
T = TypeVar("T")


class _Range(ctypes.Structure):
    """``GlobalMemory::Range``."""

    _fields_ = (
        ("start", ctypes.c_uint64),
        ("stop", ctypes.c_uint64),
        ("name", ctypes.c_uint32),
    )


_Sizes: Final = ctypes.c_uint32 * 3
_NO_LIMIT: Final = 2**64 - 1


class _Launch(ctypes.Structure):
    """``Launch`` of interface.cpp."""

    _fields_ = (
        ("grid", _Sizes),
        ("block", _Sizes),
        ("cluster", _Sizes),
        ("dynamic_shared", ctypes.c_uint32),
        ("max_shared", ctypes.c_uint32),
        ("registers", ctypes.c_uint32),
        ("schedule", ctypes.c_uint32),
        ("sms", ctypes.c_uint32),
        ("workers", ctypes.c_uint32),
        ("races", ctypes.c_uint32),
        ("uninitialised", ctypes.c_uint32),
        ("parameter_count", ctypes.c_uint32),
        ("range_count", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("max_instructions", ctypes.c_uint64),
        ("parameters", ctypes.c_char_p),
        ("ranges", ctypes.POINTER(_Range)),
    )


_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "flexfa4_load": (
        ctypes.c_void_p,
        [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)],
    ),
    "flexfa4_free_program": (None, [ctypes.c_void_p]),
    "flexfa4_prepare": (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.POINTER(_Launch), ctypes.POINTER(ctypes.c_void_p)],
    ),
    "flexfa4_run": (ctypes.c_void_p, [ctypes.c_void_p]),
    "flexfa4_stop": (None, [ctypes.c_void_p]),
    "flexfa4_free_run": (None, [ctypes.c_void_p]),
    "flexfa4_bind": (ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_size_t]),
    "flexfa4_report": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]),
    "flexfa4_free_report": (None, [ctypes.c_void_p]),
}


@functools.cache
def core() -> ctypes.CDLL:
    """Return the loaded library, built first if it has to be.

    Raises:
        CoreBuildError: it cannot be built or loaded.
    """
    from flexfa4.emulator.native.build import built_library  # a program of its own, too

    path = built_library()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise LoadingError(path=path, reason=error) from error
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@dataclass(frozen=True)
class Shape:
    """A launch as the core takes it: sizes, and the bytes that each block may have.

    Attributes:
        grid: blocks.
        block: threads of a block.
        cluster: blocks of a cluster.
        dynamic_shared: bytes of shared memory beside the kernel's own.
        max_shared: bytes that a block of this architecture may have in all.
        registers: of a thread, where the text says so; else 0.
    """

    grid: Dim3
    block: Dim3
    cluster: Dim3
    dynamic_shared: int
    max_shared: int
    registers: int = 0


class Program:
    """A kernel that the core has loaded."""

    def __init__(self, encoded: bytes, place: Callable[[int], Place]) -> None:
        """Load a kernel.

        Args:
            encoded: what `flexfa4.emulator.decode` made of it.
            place: returns a line of its PTX, for messages.

        Raises:
            ProgramError: it has an instruction that the core does not execute.
            CoreBuildError: the core cannot be built.
        """
        self._core = core()
        self._place = place
        reported = ctypes.c_void_p()
        self._handle = self._core.flexfa4_load(encoded, len(encoded), ctypes.byref(reported))
        _Reader(_take(self._core, reported.value)).check(place)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._core.flexfa4_free_program(self._handle)

    def run(
        self,
        shape: Shape,
        parameters: bytes,
        allocations: Sequence[Allocation],
        options: Options,
    ) -> Run:
        """Run a launch to its end.

        Args:
            shape: sizes, which are right for the architecture.
            parameters: bytes of the kernel's parameters, as they lie in memory.
            allocations: what it may touch of this process's memory; their owners outlive the call.
            options: how it is run; ``sms`` is given.

        Raises:
            EmulationError: what went wrong in the kernel.
        """
        ranges = (_Range * len(allocations))(
            *(_Range(a.start, a.stop, number) for number, a in enumerate(allocations))
        )
        launch = _Launch(
            grid=_Sizes(*shape.grid),
            block=_Sizes(*shape.block),
            cluster=_Sizes(*shape.cluster),
            dynamic_shared=shape.dynamic_shared,
            max_shared=shape.max_shared,
            registers=shape.registers,
            schedule=SCHEDULES.index(options.schedule),
            sms=options.sms or 1,
            workers=options.workers,
            races="races" in options.check,
            uninitialised="uninitialised" in options.check,
            parameter_count=len(parameters),
            range_count=len(allocations),
            seed=options.seed,
            max_instructions=options.max_instructions or _NO_LIMIT,
            parameters=parameters,
            ranges=ranges,
        )
        names = [allocation.name for allocation in allocations]
        reported = ctypes.c_void_p()
        run = self._core.flexfa4_prepare(self._handle, ctypes.byref(launch), ctypes.byref(reported))
        _Reader(_take(self._core, reported.value)).check(self._place, names)
        start = time.perf_counter()
        try:
            report = _interruptible(
                lambda: self._core.flexfa4_run(run), lambda: self._core.flexfa4_stop(run)
            )
        finally:
            self._core.flexfa4_free_run(run)
        seconds = time.perf_counter() - start
        reader = _Reader(_take(self._core, report))
        error = reader.failure(self._place, names)
        result = reader.run(seconds)
        if error is not None:
            error.run = result
            raise error
        return result


def bind(encoded: bytes) -> None:
    """Let the core find the code of an operation, given as in an encoded program.

    Raises:
        ProgramError: it does not execute it.
    """
    reader = _Reader(_take(core(), core().flexfa4_bind(encoded, len(encoded))))
    reader.check(Place)


def _interruptible(call: Callable[[], T], stop: Callable[[], None]) -> T:
    """Return what a call returns; an interrupt of the main thread stops it first.

    What the call works on is freed behind it, so no interrupt gets away while it runs.  Waiting by
    `Thread.join` would not do: once interrupted, it takes the thread for ended (CPython 3.11).
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    results: list[T] = []
    begun = threading.Lock()  # by the thread, or never, for whoever takes it first
    ended = threading.Event()

    def work() -> None:
        try:
            if begun.acquire(blocking=False):
                results.append(call())
        finally:
            ended.set()

    try:
        threading.Thread(target=work, daemon=True).start()
        ended.wait()
    except BaseException:
        if not begun.acquire(blocking=False):
            stop()
            while not ended.is_set():
                with contextlib.suppress(KeyboardInterrupt):
                    ended.wait()
        raise
    return results[0]


def _take(library: ctypes.CDLL, report: int | None) -> bytes:
    """Return the bytes of a report, and free it."""
    size = ctypes.c_size_t()
    try:
        return ctypes.string_at(library.flexfa4_report(report, ctypes.byref(size)), size.value)
    finally:
        library.flexfa4_free_report(report)


class _Reader:
    """Reads a report; interface.cpp has its order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def check(self, place: Callable[[int], Place], names: Sequence[str] = ()) -> None:
        """Raise the failure that a report begins with, if there is one."""
        error = self.failure(place, names)
        if error is not None:
            raise error

    def failure(
        self, place: Callable[[int], Place], names: Sequence[str] = ()
    ) -> EmulationError | None:
        """Return the exception for a failure, or None."""
        if not self._number("<B"):
            return None
        name = self._text()
        fields: dict[str, Any] = {}
        for _ in range(self._number("<I")):
            field = self._text()
            fields[field] = self._text()
        line = self._number("<I")
        where = place(line) if line else None
        if fields.get("allocation", "-1") != "-1":
            fields["which"] = names[int(fields["allocation"])]
        return exception(name, where, fields)

    def run(self, seconds: float) -> Run:
        """Return what a run did."""
        opcodes = [self._text() for _ in range(self._number("<I"))]
        by_warp = []
        for _ in range(self._number("<I")):
            executed: dict[str, int] = {}
            for opcode in opcodes[: self._number("<I")]:
                if number := self._number("<Q"):  # several operations may have one text
                    executed[opcode] = executed.get(opcode, 0) + number
            by_warp.append(executed)
        matrices = self._numbers()
        traffic = Traffic(**self._numbers())
        printed = tuple(self._text() for _ in range(self._number("<I")))
        return Run(tuple(by_warp), matrices, traffic, printed, seconds)

    def _numbers(self) -> dict[str, int]:
        return {self._text(): self._number("<Q") for _ in range(self._number("<I"))}

    def _number(self, code: str) -> int:
        (value,) = struct.unpack_from(code, self._data, self._at)
        self._at += struct.calcsize(code)
        return int(value)

    def _text(self) -> str:
        size = self._number("<I")
        self._at += size
        return self._data[self._at - size : self._at].decode(errors="replace")


def exception(name: str, where: Place | None, fields: dict[str, Any]) -> EmulationError:
    """Return the exception that a failure of the core stands for."""
    kind = by_name().get(name)
    if kind is not None:
        try:
            return kind(where=where, **fields)
        except KeyError:  # a field that the text has and the failure has not
            pass
    details = ", ".join(f"{field} {value}" for field, value in fields.items()) or "nothing else"
    return UnnamedFailureError(where=where, name=name, details=details)
