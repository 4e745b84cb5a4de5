"""The architectures that there are kernels for: to add one is a line in each table here.

Each is a `flexfa4.kernels.forward.architecture.Architecture`, imported when it is first asked for.
"""

from __future__ import annotations

import functools
from typing import Final

from flexfa4.kernels.forward.architecture import AnyArchitecture

BACKENDS: Final = {"sm_90a": "sm90", "sm_100a": "sm100", "sm_103a": "sm100"}
"""What kernels are compiled for, and the backends that launch them."""

CAPABILITIES: Final = {(9, 0): "sm90", (10, 0): "sm100", (10, 3): "sm100"}
"""Compute capabilities of GPUs, and the backends that are for them."""

AUTOMATIC: Final = ("sm90",)
"""Backends whose kernels have been launched on a GPU: those that ``"auto"`` takes."""


@functools.cache
def architecture(backend: str) -> AnyArchitecture:
    """Return the architecture that a backend is for."""
    if backend == "sm90":
        from flexfa4.kernels.sm90.architecture import Hopper

        return Hopper()
    assert backend == "sm100"
    from flexfa4.kernels.sm100.architecture import Blackwell

    return Blackwell()


def named(name: str) -> AnyArchitecture:
    """Return the architecture of what kernels are compiled for, such as ``sm_90a``."""
    return architecture(BACKENDS[name])
