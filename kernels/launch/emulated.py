"""`EmulatedExecutor`: kernels run in the emulator, on tensors of the CPU.

What computes attention does not see a difference::

    target = emulated_target((10, 0))
    target.executor.launch(kernel, (4, 1, 1), values, memory=(x, out))

The emulator runs the text of a kernel as it would run on a GPU, slowly, and fails where it races,
reads outside of what it was given or what nobody wrote (docs/emulator.md).
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from flexfa4.kernels.compile.compiled_kernel import CompiledKernel, Dim3
from flexfa4.kernels.compile.signature import TensorMap
from flexfa4.kernels.launch.target import Target
from flexfa4.kernels.launch.tensor_map import Tiled, tiled

if TYPE_CHECKING:
    from flexfa4.emulator.results import Run

MULTIPROCESSORS: Final = 3
"""Of the GPU that is emulated: few, so that blocks have several tiles of queries."""


class EmulatedExecutor:
    """See `flexfa4.kernels.launch.executor.Executor`.

    Attributes:
        runs: what each launch did, of the last ones.
    """

    def __init__(self, most: int | None = None, **options: Any) -> None:
        """Stand for a GPU.

        Args:
            most: how many runs are kept; None for all.
            options: of `flexfa4.emulator.Kernel.run`.
        """
        self._options = options
        self.runs: collections.deque[Run] = collections.deque(maxlen=most)

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
        """Run a kernel to its end.

        Raises:
            EmulationError: the core cannot be built, or the kernel does what no kernel may.
        """
        from flexfa4 import emulator

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
    from flexfa4.emulator.host.tensor_map_encoding import TiledArguments

    return TiledArguments(*arguments).encode()


@functools.cache
def emulated_target(capability: tuple[int, int]) -> Target:
    """Return what stands for a GPU of a compute capability."""
    return Target(EmulatedExecutor(most=1), capability, MULTIPROCESSORS, "the emulator")
