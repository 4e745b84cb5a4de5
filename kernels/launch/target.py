"""`Target`: where the kernels of a call are launched.

For tensors on a GPU that is the GPU.  `standing_in` puts something else in the place of every
device for a while, such as an executor that runs kernels in the emulator on tensors of the CPU::

    with standing_in(Target(EmulatedExecutor(), capability=(9, 0), multiprocessors=3)):
        flexfa4.attention(query, key, value, backend="sm90")
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.kernels.launch.executor import Executor, cuda_executor


@dataclass(frozen=True, eq=False)
class Target:
    """A device that kernels are launched on, or what stands for one; compared by identity.

    Attributes:
        launcher: who launches, or the number of the GPU that does.
        capability: compute capability.
        multiprocessors: how many there are.
        name: of the device, for messages.
    """

    launcher: Executor | int
    capability: tuple[int, int]
    multiprocessors: int
    name: str = "a stand-in for a GPU"

    @property
    def executor(self) -> Executor:
        """Who launches.

        Raises:
            LaunchError: CUDA's driver is missing or too old.
        """
        return cuda_executor(self.launcher) if isinstance(self.launcher, int) else self.launcher


_STAND_IN: Final[ContextVar[Target | None]] = ContextVar("flexfa4_stand_in", default=None)


@contextmanager
def standing_in(target: Target) -> Iterator[Target]:
    """Launch on a target instead of the devices that tensors are on, in this thread."""
    token = _STAND_IN.set(target)
    try:
        yield target
    finally:
        _STAND_IN.reset(token)


def target_of(device: torch.device) -> Target | None:
    """Return where kernels for tensors on a device are launched; None where they cannot be."""
    stand_in = _STAND_IN.get()
    if stand_in is not None:
        return stand_in
    return _gpu(device)


@functools.lru_cache(maxsize=64)
def _gpu(device: torch.device) -> Target | None:
    version: Any = torch.version
    if device.type != "cuda" or version.hip is not None:  # torch calls GPUs of AMD "cuda", too
        return None
    found = torch.cuda.get_device_properties(device)
    return Target(device.index, (found.major, found.minor), found.multi_processor_count, found.name)
