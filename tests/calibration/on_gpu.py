"""A plugin of pytest: the programs of the emulator's unit tests run on a GPU instead.

    python -m pytest -p tests.calibration.on_gpu tests/unit/emulator/native/arithmetic

So the values that tests expect are themselves tested.  Left out are tests that expect a failure,
since a GPU would have no answer; programs that the GPU's assembler refuses are skipped.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import flexfa4.emulator
import flexfa4.emulator.kernel
from tests.calibration.gpu import DeviceKernel, PtxRefusedError


def load(ptx: str, kernel: str | None = None) -> DeviceKernel:
    """Load a kernel on the GPU, or skip the test."""
    try:
        return DeviceKernel(ptx, kernel)
    except PtxRefusedError as error:
        pytest.skip(str(error))


flexfa4.emulator.load = load  # type: ignore[assignment]
flexfa4.emulator.kernel.load = load  # type: ignore[assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Leave out tests that expect a failure."""
    expects = [item for item in items if "raises" in inspect.getsource(item.function)]
    config.hook.pytest_deselected(items=expects)
    items[:] = [item for item in items if item not in expects]
