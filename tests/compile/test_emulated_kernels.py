"""Kernels of ours run in the emulator: right to the last bit, under every schedule, no reports."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("cutlass")

from flexfa4.emulator import Device
from flexfa4.emulator.options import SCHEDULES
from tests.compile.compiled_cases import compiled
from tests.emulated_cases import CASES, Case


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_kernel_is_right_under_every_schedule(case: Case, schedule: str) -> None:
    tensors, checked = case.tensors()
    with Device(case.target, schedule=schedule, seed=1) as device:
        compiled(case, device, tensors)()
        (launch,) = device.launches
    for found, right in checked:
        assert torch.equal(found, right)
    assert launch.run is not None and launch.run.instructions > 0
