"""An executor whose kernels run in the emulator: what computes attention does not see a difference.

executor = EmulatedExecutor(schedule="random", seed=1)
executor.launch(kernel, (4, 1, 1), values, memory=(x, out))
executor.runs[-1].executed

with emulated_gpu() as executor:  # for the whole of flexfa4.attention
    flexfa4.attention(query, key, value, backend="sm90")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flexfa4 import emulator
from flexfa4.emulator.host.tensor_map_encoding import TiledArguments
from flexfa4.emulator.results import Run
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel, Dim3
from flexfa4.kernels.compile.signature import TensorMap
from flexfa4.kernels.launch.target import Target, standing_in
from flexfa4.kernels.launch.tensor_map import Tiled, tiled


class EmulatedExecutor:
    """See `flexfa4.kernels.launch.executor.Executor`.

    Attributes:
        runs: what each launch did.
    """

    def __init__(self, **options: Any) -> None:
        """Take options of `flexfa4.emulator.Kernel.run`."""
        self._options = options
        self.runs: list[Run] = []

    def load(self, kernel: CompiledKernel) -> None:
        """Do nothing: `launch` reads a kernel's text once."""

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
        arguments = [
            encoded(tiled(parameter, value)) if isinstance(parameter, TensorMap) else value
            for parameter, value in zip(kernel.signature, values, strict=True)
        ]
        run = emulator.load(kernel.ptx, kernel.name).run(
            grid=grid,
            block=kernel.block,
            cluster=kernel.cluster,
            shared_memory=kernel.smem_bytes,
            args=arguments,
            allocations=[tensor for tensor in memory if tensor is not None],
            **self._options,
        )
        self.runs.append(run)


def encoded(arguments: Tiled) -> bytes:
    """Return a tensor map as the emulator writes it, which an H200's driver does, too."""
    return TiledArguments(*arguments).encode()


@contextmanager
def emulated_gpu(
    *, capability: tuple[int, int] = (9, 0), multiprocessors: int = 3, **options: Any
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
