"""Devices without CuTe-DSL: what can be said before any kernel is compiled."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from flexfa4.emulator.errors import EmulationError
from flexfa4.emulator.host.architectures import ARCHITECTURES
from flexfa4.emulator.host.cuda_calls import RUNTIME
from flexfa4.emulator.host.device import Device
from flexfa4.emulator.host.errors import (
    ClosedDeviceError,
    MissingCutlassError,
    SmCountError,
    UnfittingCutlassError,
    UnknownArchitectureError,
    UnregisteredTensorError,
)


@pytest.mark.parametrize("name", ["sm_80", "sm_100", "", None, ["sm_100a"]])
def test_an_unknown_device_is_an_error_that_lists_those_there_are(name: Any) -> None:
    with pytest.raises(UnknownArchitectureError, match="sm_90a, sm_100a, sm_103a"):
        Device(name)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_device_is_of_its_architecture_with_other_sms_if_wanted(name: str) -> None:
    row = ARCHITECTURES[name]
    assert Device(name).architecture == row
    few = Device(name, sms=4).architecture
    assert (few.sms, few.name, few.l2_cache) == (4, name, row.l2_cache)


@pytest.mark.parametrize("sms", [0, -1, 2.5, "4"])
def test_a_device_has_at_least_one_multiprocessor(sms: Any) -> None:
    with pytest.raises(SmCountError, match="a whole number from 1"):
        Device(sms=sms)


def test_a_device_that_is_not_open_presents_no_tensors() -> None:
    with pytest.raises(ClosedDeviceError, match="with Device\\('sm_90a'\\)"):
        Device("sm_90a").tensor(torch.zeros(1))


def test_presented_tensors_are_registered_until_they_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device()
    monkeypatch.setattr(RUNTIME, "target", device)
    tensor = torch.zeros(4, 6)
    view = tensor[1:3, ::2]
    device.tensor(tensor, "whole")
    device.tensor(view)
    device.tensor(tensor[:0])
    assert [a.name for a in device.allocations] == ["whole", "tensor 1"]
    device.release(tensor)
    assert device.allocations.find(view.data_ptr(), 4)
    assert not device.allocations.find(tensor.data_ptr(), 4)
    device.release(tensor[:0])
    with pytest.raises(UnregisteredTensorError, match="96 bytes"):
        device.release(tensor)


def test_without_cutlass_a_device_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cutlass", None)
    device = Device()
    with pytest.raises(MissingCutlassError, match="pip install nvidia-cutlass-dsl"), device:
        pass
    assert RUNTIME.target is None
    assert issubclass(MissingCutlassError, ImportError) and issubclass(
        MissingCutlassError, EmulationError
    )


def test_another_cutlass_is_refused_before_anything_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [module for module in sys.modules if module.split(".")[0] == "cutlass"]:
        monkeypatch.delitem(sys.modules, name)
    other: Any = ModuleType("cutlass")
    other.__version__, other.__path__ = "9.9", []
    monkeypatch.setitem(sys.modules, "cutlass", other)
    with pytest.raises(UnfittingCutlassError, match=r"of nvidia-cutlass-dsl 9\.9 is not"), Device():
        pass
    assert RUNTIME.target is None
