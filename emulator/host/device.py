"""`Device`: a GPU that is not there, to which CuTe-DSL's kernels are launched.

    with Device("sm_100a") as device:
        x = torch.randn(1024)
        compiled = cute.compile(kernel, from_dlpack(device.tensor(x)))
        compiled(from_dlpack(device.tensor(x)))     # runs in the emulator
    device.launches[0].run.executed

This module joins the parts: the changes to CuTe-DSL, the runtime that answers host code, the
registered memory, and what runs a launch, for which its pointers are addresses in this process.
It does not run kernels itself (`flexfa4.emulator.execution`).
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final

from flexfa4.emulator.errors import EmulationError
from flexfa4.emulator.host.allocations import Allocation, Allocations
from flexfa4.emulator.host.architectures import Architecture, architecture
from flexfa4.emulator.host.cuda_calls import RUNTIME
from flexfa4.emulator.host.cuda_tensor import CudaTensor, extent
from flexfa4.emulator.host.errors import (
    ClosedDeviceError,
    EditedTextError,
    NestedDeviceError,
    SmCountError,
)
from flexfa4.emulator.host.installation import Installation
from flexfa4.emulator.host.launch import Launch
from flexfa4.emulator.options import CHECKS, Options
from flexfa4.emulator.results import Run

if TYPE_CHECKING:
    import torch

_OPENING: Final = threading.Lock()


class Device:
    """An emulated GPU; a context manager.

    While it is open, every kernel that CuTe-DSL launches in this process arrives here, in whatever
    thread, and whether CuTe-DSL was imported before or not.  Functions have to be compiled while a
    device is open; they can be called whenever a device of their architecture is.

    Attributes:
        architecture: what host code is told of the device.
        allocations: the memory that kernels may touch, cleared when the device is closed.
        launches: all launches since it was opened, in the order in which they came.
    """

    def __init__(
        self,
        name: str = "sm_100a",
        *,
        schedule: str = "eager",
        seed: int = 0,
        check: Iterable[str] = CHECKS,
        workers: int = 1,
        sms: int | None = None,
        max_instructions: int | None = None,
        edit_ptx: Callable[[str], str] | None = None,
        execute: Callable[[Launch], Run | None] | None = None,
    ) -> None:
        """Describe a device; nothing happens before it is entered.

        Args:
            name: ``sm_90a``, ``sm_100a`` or ``sm_103a``.
            schedule: order in which warps and asynchronous operations take their turns: "eager",
                "late", "random" or "priority" (`flexfa4.emulator.options`).
            seed: of what is random.
            check: "races" (conflicting accesses that nothing orders) and "uninitialised" (reads of
                bytes that nobody wrote); both unless said otherwise.
            workers: threads that run clusters side by side.
            sms: number of streaming multiprocessors that host code is told of, and of blocks that
                are resident at once; without it the architecture's.
            max_instructions: of all warps of a launch, after which it is given up, see
                `Kernel.run`; no limit without it.
            edit_ptx: makes the text that is run of the text that was compiled; called once for
                each text.
            execute: runs a launch to its end in the emulator's place; what it raises, the caller
                of the kernel gets.  One that does nothing leaves launches recorded, not run.

        Raises:
            UnknownArchitectureError: for another name.
            SmCountError: for a number of multiprocessors that no device has.
            OptionError: for another value that an option does not have.
        """
        row = architecture(name)
        self.architecture: Architecture = row if sms is None else replace(row, sms=_counted(sms))
        self.allocations = Allocations()
        self.launches: list[Launch] = []
        sms = self.architecture.sms
        self._options = Options.of(schedule, seed, check, workers, sms, max_instructions)
        self._execute = execute or self._run
        self._edit = functools.lru_cache(maxsize=64)(edit_ptx) if edit_ptx else None
        self._installation: Installation | None = None

    def __enter__(self) -> Device:
        """Open the device.

        Raises:
            NestedDeviceError: when one is open already.
            MissingCutlassError: when CuTe-DSL is not installed.
            UnfittingCutlassError: when it is a release of which the emulator does not know enough.
        """
        with _OPENING:
            if RUNTIME.target is not None:
                raise NestedDeviceError(
                    opened=self.architecture.name, open=RUNTIME.target.architecture.name
                )
            self._installation = Installation(self.architecture).__enter__()
            self.launches = []
            RUNTIME.take_failure()
            RUNTIME.target = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with _OPENING:
            RUNTIME.target = None
            assert self._installation is not None
            self._installation.__exit__(kind, error, traceback)
            self._installation = None
            self.allocations.clear()
        failure = RUNTIME.take_failure()
        if failure is not None:  # of host code not called through CuTe-DSL's own functions
            raise failure from error

    def tensor(self, tensor: torch.Tensor, name: str = "") -> CudaTensor:
        """Present a CPU tensor as one on this device.

        Kernels may then touch its memory, from its first element to its last, until it is released
        or the device is closed.

        Args:
            tensor: a CPU tensor with strides, of any dtype that DLPack has.
            name: what reports call it; "tensor <n>" where none is given.

        Returns:
            What to pass to ``from_dlpack``, or to a function of the TVM-FFI calling path.

        Raises:
            NotACpuTensorError: for anything else.
            ClosedDeviceError: outside of the ``with`` block.
        """
        self._must_be_open("tensor()")
        presented = CudaTensor(tensor)
        start, nbytes = extent(presented.cpu)
        if nbytes:
            name = name or f"tensor {len(self.allocations)}"
            self.allocations.register(start, nbytes, name, presented.cpu)
        return presented

    def release(self, tensor: torch.Tensor) -> None:
        """Take a tensor's memory away from kernels.

        Raises:
            UnregisteredTensorError: for a tensor that is not presented.
        """
        start, nbytes = extent(tensor)
        if nbytes:
            self.allocations.release(start, nbytes)

    def edited(self, ptx: str) -> str:
        """Return the text that is run in place of a compiled one.

        Raises:
            EditedTextError: when ``edit_ptx`` made something else than a text.
        """
        if self._edit is None:
            return ptx
        edited: object = self._edit(ptx)
        if not isinstance(edited, str):
            raise EditedTextError(kind=type(edited).__name__)
        return edited

    def launch(self, launch: Launch) -> None:
        """Record a launch and run it; called by the runtime."""
        self.launches.append(launch)
        run = self._execute(launch)
        if run is not None:
            self.launches[-1] = replace(launch, run=run)

    def _run(self, launch: Launch) -> Run:
        """Run a launch on the execution core, and print what the kernel prints."""
        from flexfa4.emulator.execution import run  # not before a kernel is launched

        try:
            there = tuple(a for a in self.allocations if _is_there(a))
            done = run(launch, there, self._options)
        except EmulationError as error:
            _print(error.run)
            raise
        _print(done)
        return done

    def _must_be_open(self, what: str) -> None:
        if RUNTIME.target is not self:
            raise ClosedDeviceError(what=what, name=self.architecture.name)


def _is_there(allocation: Allocation) -> bool:
    """Whether a presented tensor still has the memory that it had; its storage may be resized."""
    nbytes = allocation.stop - allocation.start
    return extent(allocation.owner) == (allocation.start, nbytes)


def _print(run: Run | None) -> None:
    if run is not None:
        sys.stdout.write("".join(run.printed))


def _counted(sms: object) -> int:
    if not isinstance(sms, int) or sms < 1:
        raise SmCountError(sms=repr(sms))
    return sms
