"""Which mutants of a GPU kernel nobody finds out: one instruction spoilt, on several launches.

A launch is recorded from a call of `flexfa4.attention` in the emulator, and repeated with mutants
of its kernel's text.  A mutant is found by any error that the emulator reports, or by results that
differ, in any of the schedules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flexfa4.emulator import EmulationError
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel, Dim3
from flexfa4.kernels.launch.target import Target, standing_in
from tests.emulated_executor import EmulatedExecutor
from tests.mutations import Mutant

RUNS = (("eager", 0), ("late", 0), ("random", 1), ("priority", 1), ("random", 2), ("priority", 2))
LIMIT = 5_000_000  # instructions of a launch; these have some 100,000


@dataclass(frozen=True)
class RecordedLaunch:
    """A launch and the results of the kernel as it is.

    What lies in memory behind it may depend on the order of blocks where nobody reads it: on which
    one was first, say.  That is not compared.
    """

    kernel: CompiledKernel
    grid: Dim3
    values: Sequence[Any]
    memory: Sequence[torch.Tensor]
    before: Sequence[torch.Tensor]
    behind: Sequence[torch.Tensor]

    def shows(self, mutant: Mutant, schedule: str, seed: int) -> bool:
        """Return whether a launch of a mutant differs from that of the kernel.

        Memory is as before the launch when it returns: the counter of items is every launch's.
        """
        try:
            same = self._same(replace(self.kernel, ptx=mutant.ptx), schedule, seed)
        except EmulationError:
            return True
        return any(steady and not equal for steady, equal in zip(self.steady, same, strict=True))

    @functools.cached_property
    def steady(self) -> list[bool]:
        """Which memory is the same in all schedules."""
        runs = [self._same(self.kernel, schedule, seed) for schedule, seed in RUNS]
        return [all(of_tensor) for of_tensor in zip(*runs, strict=True)]

    def _same(self, kernel: CompiledKernel, schedule: str, seed: int) -> list[bool]:
        """Return which memory is the same behind a launch of a kernel as it was recorded."""
        executor = EmulatedExecutor(schedule=schedule, seed=seed, max_instructions=LIMIT)
        self.reset()
        try:
            executor.launch(kernel, self.grid, self.values, memory=self.memory)
            return list(map(torch.equal, self.memory, self.behind))
        finally:
            self.reset()

    def reset(self) -> None:
        """Let memory be as it was before the launch."""
        for tensor, value in zip(self.memory, self.before, strict=True):
            tensor.copy_(value)


class _Recorder(EmulatedExecutor):
    """Keeps what each launch was."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[RecordedLaunch] = []

    def launch(
        self,
        kernel: CompiledKernel,
        grid: Dim3,
        values: Sequence[Any],
        *,
        stream: int = 0,
        memory: Sequence[Any] = (),
    ) -> None:
        """Run a kernel to its end."""
        tensors = [tensor.detach() for tensor in memory if tensor is not None]
        before = [tensor.clone() for tensor in tensors]
        super().launch(kernel, grid, values, stream=stream, memory=tensors)
        behind = [tensor.clone() for tensor in tensors]
        self.launches.append(RecordedLaunch(kernel, grid, values, tensors, before, behind))


def recorded(
    call: Callable[[], Any],
    multiprocessors: int,
    capability: tuple[int, int] = (9, 0),
    which: int = -1,
) -> RecordedLaunch:
    """Return a launch, if need be by its number, of a call of `flexfa4.attention` on a GPU."""
    executor = _Recorder()
    with standing_in(Target(executor, capability, multiprocessors)):
        call()
    return executor.launches[which]


def survivors(mutants: Iterable[Mutant], launches: Sequence[RecordedLaunch]) -> set[str]:
    """Return the names of the mutants that no launch shows; all launches are of one kernel."""
    return {
        mutant.name
        for mutant in mutants
        if not any(
            launch.shows(mutant, schedule, seed) for schedule, seed in RUNS for launch in launches
        )
    }
