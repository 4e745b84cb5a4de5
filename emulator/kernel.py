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

import numbers
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexfa4.emulator.arguments import bound, described
from flexfa4.emulator.execution import Loaded, loaded
from flexfa4.emulator.execution import run as run_launch
from flexfa4.emulator.failures.options import (
    ArgumentCountError,
    ArgumentsError,
    PtxSourceError,
    SizesError,
)
from flexfa4.emulator.host.allocations import Allocations
from flexfa4.emulator.host.architectures import architecture
from flexfa4.emulator.host.cuda_tensor import cpu_tensor, extent
from flexfa4.emulator.host.launch import Dim3, Launch, Parameter
from flexfa4.emulator.host.launch import Shape as LaunchShape
from flexfa4.emulator.host.signatures import Slot, signature
from flexfa4.emulator.options import CHECKS, Options
from flexfa4.emulator.results import Run

if TYPE_CHECKING:
    import torch


def load(ptx: str | Path, kernel: str | None = None) -> Kernel:
    """Read PTX and load a kernel of it.

    Args:
        ptx: the text of a module, or the path of a file with it, as a `pathlib.Path`.
        kernel: name of the kernel; not needed where there is one only.

    Returns:
        The kernel, ready to run.

    Raises:
        CallError: it is neither a text nor the path of one.
        OSError: there is no such file, or it cannot be read.
        PtxError: the text cannot be read; the message quotes the line.
        MissingKernelError: it has no such kernel.
        ProgramError: it has something that the emulator does not run.
        CoreBuildError: the execution core, built at first use, cannot be.
    """
    text = _text(ptx)
    return Kernel(text, loaded(text, kernel))


def _text(ptx: object) -> str:
    """Return the text of a module, given itself or by its path."""
    if isinstance(ptx, Path):
        try:
            return ptx.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise PtxSourceError(
                found_value=f"the file {ptx}, which is no text",
                rewrite="the file that nvcc -ptx writes, or CuTe-DSL with CUTE_DSL_KEEP=ptx",
            ) from None
    if not isinstance(ptx, str):
        rewrite = "load(ptx.decode())" if isinstance(ptx, bytes) else "load(Path(...))"
        raise PtxSourceError(found_value=f"a value of type {type(ptx).__name__}", rewrite=rewrite)
    if "\n" not in ptx and ptx.endswith(".ptx"):
        found = f"{ptx!r}, which is the name of a file"
        raise PtxSourceError(found_value=found, rewrite=f"load(Path({ptx!r}))")
    return ptx


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
        max_instructions: int | None = None,
    ) -> Run:
        """Launch the kernel and run it to its end.

        Args:
            grid: blocks along x, y, z; missing ones are 1.
            block: threads of a block, likewise.
            cluster: blocks of a cluster, likewise; what the PTX requires, where that is more.
            shared_memory: bytes of dynamic shared memory of a block.
            args: a value for each parameter: a CPU tensor for a pointer, an int or a float for a
                scalar, as its type is declared (`flexfa4.emulator.arguments`), bytes for a struct
                such as a tensor map.
            allocations: tensors beside those of `args` that the kernel may touch.
            schedule: order in which warps and asynchronous operations take their turns: "eager",
                "late", "random" or "priority" (`flexfa4.emulator.options`).
            seed: of what is random.
            check: "races" (conflicting accesses that nothing orders) and "uninitialised" (reads of
                bytes that nobody wrote); both unless said otherwise.
            workers: threads that run clusters side by side.
            sms: blocks that are resident at once; without it as many as the architecture has
                multiprocessors.
            max_instructions: of all warps together, after which the launch is given up with an
                error that says where each warp is; no limit without it.  Looked at between turns
                of warps, so that up to 65,536 more may be executed.

        Returns:
            What it did: instructions, matrix products, traffic.

        Raises:
            CallError: an argument does not fit its parameter, or an option has no such value.
            NotACpuTensorError: a tensor that is not in the CPU's memory.
            LaunchError: no device of the architecture would start this launch.
            EmulationError: something went wrong in the kernel; the message has the PTX line.
        """
        options = Options.of(schedule, seed, check, workers, sms, max_instructions)
        if not _is_size(shared_memory):
            raise SizesError(
                name="shared_memory",
                found_value=repr(shared_memory),
                expected="a whole number of bytes, from 0",
                rewrite=_whole(shared_memory, 0),
            )
        memory = Allocations()
        parameters = self._bound(args, memory)
        for index, tensor in enumerate(allocations):
            name = f"allocation {index}"
            _register(memory, cpu_tensor(tensor, f"{name} is"), name)
        shape = LaunchShape(
            _sizes("grid", grid), _sizes("block", block), _sizes("cluster", cluster), shared_memory
        )
        launch = Launch(self._ptx, self._signature, shape, parameters)
        launch.check(architecture(self.target))
        return run_launch(launch, tuple(memory), options)

    def _bound(self, args: Sequence[Any], memory: Allocations) -> tuple[Parameter, ...]:
        """Return the parameters with their values, and register the tensors among them."""
        if not isinstance(args, (list, tuple)):
            raise ArgumentsError(found_value=described(args))
        if len(args) != len(self.parameters):
            raise ArgumentCountError(
                given=len(args),
                kernel=self.name,
                wanted=len(self.parameters),
                names=", ".join(slot.name for slot in self.parameters) or "none",
            )
        parameters = []
        for index, (value, slot) in enumerate(zip(args, self.parameters, strict=True)):
            argument = bound(value, slot, index, self.name)
            if argument.tensor is not None:
                _register(memory, argument.tensor, f"argument {index} ({slot.name})")
            parameters.append(Parameter(slot, argument.data))
        return tuple(parameters)


def _register(memory: Allocations, tensor: torch.Tensor, name: str) -> None:
    start, nbytes = extent(tensor)
    if nbytes:
        memory.register(start, nbytes, name, tensor)


def _is_size(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= 0


def _sizes(name: str, value: int | Sequence[int]) -> Dim3:
    sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not all(map(_is_size, sizes)) or not 1 <= len(sizes) <= 3:
        one = sizes[0] if len(sizes) == 1 else None
        raise SizesError(
            name=name,
            found_value=repr(value),
            expected="a whole number, or up to three: x, y, z",
            rewrite=_whole(one, 1),
        )
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return (x, y, z)


def _whole(value: object, least: int) -> int:
    """Return the whole number that a value may have been meant to be."""
    try:
        return max(int(value), least)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return least
