"""The cases of `tests.emulated_cases` compiled by CuTe-DSL, for a device that is open."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from cutlass import cute
from cutlass.cute.runtime import from_dlpack
from torch import Tensor

from flexfa4.emulator import Device
from tests.emulated_cases import Case


def compiled(case: Case, device: Device, tensors: Sequence[Tensor]) -> Callable[[], object]:
    """Compile a case's kernel; return what launches it on these tensors."""
    module, function = case.function.split(".")
    kernels = importlib.import_module(f"tests.compile.emulated_kernels.{module}")
    args = [from_dlpack(device.tensor(tensor), assumed_align=16) for tensor in tensors]
    ready = cute.compile(getattr(kernels, function), *args, *case.constants)
    return lambda: ready(*args)
