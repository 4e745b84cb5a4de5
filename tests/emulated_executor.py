"""Backends for GPUs on tensors of the CPU, for as long as a test lasts.

with emulated_gpu() as executor:
    flexfa4.attention(query, key, value, backend="sm90")
executor.runs[-1].executed
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from flexfa4.kernels.launch.emulated import MULTIPROCESSORS, EmulatedExecutor, encoded
from flexfa4.kernels.launch.target import Target, standing_in

__all__ = ["CAPABILITIES", "EmulatedExecutor", "emulated_gpu", "encoded"]

CAPABILITIES: Final = {"sm90": (9, 0), "sm100": (10, 0)}
"""A compute capability of each backend."""


@contextmanager
def emulated_gpu(
    *,
    capability: tuple[int, int] = (9, 0),
    multiprocessors: int = MULTIPROCESSORS,
    **options: Any,
) -> Iterator[EmulatedExecutor]:
    """Let backends for GPUs run in the emulator, on tensors of the CPU.

    Args:
        capability: compute capability of the GPU.
        multiprocessors: of the GPU; few, so that blocks have several tiles of queries.
        options: of `flexfa4.emulator.Kernel.run`.
    """
    executor = EmulatedExecutor(**options)
    with standing_in(Target(executor, capability, multiprocessors)):
        yield executor
