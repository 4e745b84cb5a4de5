"""`load` and `Kernel`: kernels given as PTX, run with tensors and numbers.

    kernel = load(ptx)
    x, y = torch.randn(1024), torch.zeros(1024)
    run = kernel.run(grid=8, block=128, args=[x, y, 1024])
    run.executed["fma.rn.f32"]

The lower level of the emulator, for PTX of any origin; launches of CuTe-DSL arrive by
`flexfa4.emulator.Device`.

What this module deliberately does not do: run; `flexfa4.emulator.execution` does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexfa4.emulator.execution import Loaded, loaded
from flexfa4.emulator.execution import run as run_launch
from flexfa4.emulator.failures.options import (
    ArgumentCountError,
    KernelArgumentError,
    PathAsTextError,
    SizesError,
)
from flexfa4.emulator.host.allocations import Allocations
from flexfa4.emulator.host.architectures import architecture
from flexfa4.emulator.host.cuda_tensor import CudaTensor, extent
from flexfa4.emulator.host.launch import Dim3, Launch, Parameter
from flexfa4.emulator.host.launch import Shape as LaunchShape
from flexfa4.emulator.host.signatures import Slot, signature
from flexfa4.emulator.options import CHECKS, Options
from flexfa4.emulator.results import Run

if TYPE_CHECKING:
    import torch

POINTER = 8  # bytes
FLOATS = {4: "<f", 8: "<d"}


def load(ptx: str | Path, kernel: str | None = None) -> Kernel:
    """Read PTX and load a kernel of it.

    Args:
        ptx: the text of a module, or the path of a file with it, as a `pathlib.Path`.
        kernel: name of the kernel; not needed where there is one only.

    Returns:
        The kernel, ready to run.

    Raises:
        CallError: the text is the name of a file.
        PtxError: the text cannot be read; the message quotes the line.
        MissingKernelError: it has no such kernel.
        ProgramError: it has something that the emulator does not run.
        CoreBuildError: the execution core, built at first use, cannot be.
    """
    text = ptx.read_text(encoding="utf-8") if isinstance(ptx, Path) else ptx
    if text == ptx and "\n" not in text and text.endswith(".ptx"):
        raise PathAsTextError(found_value=repr(text))
    return Kernel(text, loaded(text, kernel))


class Kernel:
    """A kernel that is ready to run.

    Attributes:
        name: as its PTX has it.
        target: the architecture that it is for, such as ``sm_100a``.
        parameters: its parameters in order: names, bytes and alignments.
    """

    def __init__(self, ptx: str, kernel: Loaded) -> None:
        """Take a loaded kernel; `load` makes one."""
        self.name = kernel.function.name
        self.target = kernel.module.target
        self._ptx = ptx
        self._signature = signature(ptx, self.name)
        self.parameters: tuple[Slot, ...] = self._signature.slots

    def __repr__(self) -> str:
        """Return its name, target and parameters."""
        names = ", ".join(f"{slot.name}: {slot.nbytes} bytes" for slot in self.parameters)
        return f"Kernel({self.name}({names}) for {self.target})"

    def run(
        self,
        *,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        cluster: int | Sequence[int] = 1,
        shared_memory: int = 0,
        args: Sequence[Any] = (),
        allocations: Iterable[torch.Tensor] = (),
        schedule: str = "eager",
        seed: int = 0,
        check: Iterable[str] = CHECKS,
        workers: int = 1,
        sms: int | None = None,
    ) -> Run:
        """Launch the kernel and run it to its end.

        Args:
            grid: blocks along x, y, z; missing ones are 1.
            block: threads of a block, likewise.
            cluster: blocks of a cluster, likewise; what the PTX requires, where that is more.
            shared_memory: bytes of dynamic shared memory of a block.
            args: a value for each parameter: a CPU tensor for a pointer, an int or float for a
                scalar (a float has 4 or 8 bytes), bytes for a struct such as a tensor map.
            allocations: tensors beside those of `args` that the kernel may touch.
            schedule: order in which warps and asynchronous operations take their turns: "eager",
                "late", "random" or "priority" (`flexfa4.emulator.options`).
            seed: of what is random.
            check: "races" (conflicting accesses that nothing orders) and "uninitialised" (reads of
                bytes that nobody wrote); both unless said otherwise.
            workers: threads that run clusters side by side.
            sms: blocks that are resident at once; without it as many as the architecture has
                multiprocessors.

        Returns:
            What it did: instructions, matrix products, traffic.

        Raises:
            CallError: an argument does not fit its parameter, or an option has no such value.
            LaunchError: no device of the architecture would start this launch.
            EmulationError: something went wrong in the kernel; the message has the PTX line.
        """
        options = Options.of(schedule, seed, check, workers, sms)
        if not _is_size(shared_memory):
            raise SizesError(name="shared_memory", found_value=repr(shared_memory))
        memory = Allocations()
        parameters = self._bound(args, memory)
        for index, tensor in enumerate(allocations):
            _register(memory, CudaTensor(tensor).cpu, f"allocation {index}")
        shape = LaunchShape(
            _sizes("grid", grid), _sizes("block", block), _sizes("cluster", cluster), shared_memory
        )
        launch = Launch(self._ptx, self._signature, shape, parameters)
        launch.check(architecture(self.target))
        return run_launch(launch, tuple(memory), options)

    def _bound(self, args: Sequence[Any], memory: Allocations) -> tuple[Parameter, ...]:
        """Return the parameters with their values, and register the tensors among them."""
        if len(args) != len(self.parameters):
            raise ArgumentCountError(
                given=len(args),
                kernel=self.name,
                wanted=len(self.parameters),
                names=", ".join(slot.name for slot in self.parameters) or "none",
            )
        bound = []
        for index, (value, slot) in enumerate(zip(args, self.parameters, strict=True)):
            data = _bytes_of(value, slot)
            if not isinstance(data, bytes):
                raise KernelArgumentError(
                    index=index,
                    kernel=self.name,
                    found_value=_described(value),
                    name=slot.name,
                    nbytes=slot.nbytes,
                    expected=data.expected,
                )
            tensor = _tensor_of(value)
            if tensor is not None:
                _register(memory, tensor, f"argument {index} ({slot.name})")
            bound.append(Parameter(slot, data))
        return tuple(bound)


class _Unfit:
    """Why a value cannot be a parameter's: what could."""

    def __init__(self, expected: str) -> None:
        self.expected = expected


def _bytes_of(value: Any, slot: Slot) -> bytes | _Unfit:
    """Return a parameter's bytes, or what else it could be."""
    nbytes = slot.nbytes
    tensor = _tensor_of(value)
    if tensor is not None:
        if nbytes != POINTER:
            return _Unfit("no tensor: a pointer has 8 bytes")
        return tensor.data_ptr().to_bytes(POINTER, "little")
    if isinstance(value, (bytes, bytearray)):
        return bytes(value) if len(value) == nbytes else _Unfit(f"{nbytes} bytes")
    if isinstance(value, int):
        bits = 8 * nbytes
        if not -(1 << (bits - 1)) <= value < 1 << bits:
            return _Unfit(f"a number from -2**{bits - 1} up to 2**{bits} - 1")
        return (value & ((1 << bits) - 1)).to_bytes(nbytes, "little")
    if isinstance(value, float):
        if nbytes not in FLOATS:
            return _Unfit("a float for parameters of 4 or 8 bytes only")
        return struct.pack(FLOATS[nbytes], value)
    return _Unfit("a CPU tensor, an int, a float or bytes")


def _tensor_of(value: Any) -> torch.Tensor | None:
    """Return a CPU tensor that stands for a pointer, or None for a value of another kind.

    Raises:
        NotACpuTensorError: a tensor that does not lie in the CPU's memory.
    """
    if isinstance(value, CudaTensor):
        return value.cpu
    return CudaTensor(value).cpu if hasattr(value, "data_ptr") else None


def _register(memory: Allocations, tensor: torch.Tensor, name: str) -> None:
    start, nbytes = extent(tensor)
    if nbytes:
        memory.register(start, nbytes, name, tensor)


def _described(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes"
    if isinstance(value, (int, float)):
        return f"the {type(value).__name__} {value!r}"
    return f"a value of type {type(value).__name__}"


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _sizes(name: str, value: int | Sequence[int]) -> Dim3:
    sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not all(map(_is_size, sizes)) or not 1 <= len(sizes) <= 3:
        raise SizesError(name=name, found_value=repr(value))
    x, y, z = (*sizes, 1, 1)[:3]
    return (x, y, z)
