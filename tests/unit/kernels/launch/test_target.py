"""Where kernels are launched: on the GPU of the tensors, or on what stands for every device."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flexfa4.kernels.launch import target as module
from flexfa4.kernels.launch.target import Target, standing_in, target_of

CPU = torch.device("cpu")


def stand_in() -> Target:
    executor: Any = object()
    return Target(executor, (9, 0), 2)


def test_kernels_are_not_launched_on_the_cpu_without_a_stand_in() -> None:
    assert target_of(CPU) is None


def test_a_stand_in_is_there_for_every_device_and_for_a_while() -> None:
    outer, inner = stand_in(), stand_in()
    with standing_in(outer):
        with standing_in(inner):
            assert target_of(CPU) is inner and target_of(torch.device("cuda", 1)) is inner
        assert target_of(CPU) is outer
    assert target_of(CPU) is None


def test_a_stand_in_is_that_of_one_thread() -> None:
    found: list[Target | None] = []
    with standing_in(stand_in()):
        thread = threading.Thread(target=lambda: found.append(target_of(CPU)))
        thread.start()
        thread.join()
    assert found == [None]


def test_a_gpu_is_asked_once_and_its_driver_when_it_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def properties(device: torch.device) -> Any:
        asked.append(device)
        return SimpleNamespace(major=9, minor=0, multi_processor_count=132, name="NVIDIA H200")

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(module, "cuda_executor", lambda number: ("executor", number))
    module._gpu.cache_clear()
    try:
        found = [target_of(torch.device("cuda", 3)) for _ in range(2)]
    finally:
        module._gpu.cache_clear()
    assert asked == [torch.device("cuda", 3)] and found[0] is found[1]
    assert found[0] is not None
    assert (found[0].capability, found[0].multiprocessors) == ((9, 0), 132)
    assert found[0].executor == ("executor", 3)  # type: ignore[comparison-overlap]
