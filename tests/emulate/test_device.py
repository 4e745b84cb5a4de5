"""Kernels that CuTe-DSL launches are run: their results, what is counted, and what goes wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

from cutlass import cute
from cutlass.cute.runtime import from_dlpack

from flexfa4.emulator import Device, EmulationError
from flexfa4.emulator.options import SCHEDULES
from tests.emulate import small_kernels as kernels

FFI = "--enable-tvm-ffi"


def scaled(device: Device, path: str, count: int = 128, blocks: int = 2) -> torch.Tensor:
    """Return what the kernel `scale` makes of 0, 1, ... by 1.5."""
    x, y = torch.arange(float(count)), torch.zeros(count)
    args: list[Any] = [from_dlpack(device.tensor(t), enable_tvm_ffi=True) for t in (x, y)]
    if path == "ffi":
        pytest.importorskip("tvm_ffi")
        compiled = cute.compile(kernels.scale, *args, 1.5, blocks, options=FFI)
    else:
        compiled = cute.compile(kernels.scale, *args, 1.5, blocks)
    compiled(*args, 1.5, blocks)
    return y


@pytest.mark.parametrize("path", ["plain", "ffi"])
@pytest.mark.parametrize("name", ["sm_90a", "sm_100a", "sm_103a"])
def test_a_kernel_writes_its_results_into_the_tensors(name: str, path: str) -> None:
    with Device(name) as device:
        assert torch.equal(scaled(device, path), torch.arange(128.0) * 1.5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_runs_a_kernel_to_its_end(schedule: str) -> None:
    with Device(schedule=schedule, seed=3, workers=2, sms=4) as device:
        assert torch.equal(scaled(device, "plain"), torch.arange(128.0) * 1.5)


def test_a_launch_records_what_was_executed_and_moved() -> None:
    with Device() as device:
        scaled(device, "plain")
        (launch,) = device.launches
    run = launch.run
    assert run is not None
    assert run.executed["mul.f32"] == 4  # two warps of two blocks
    assert [warp["mul.f32"] for warp in run.by_warp] == [2, 2]
    assert run.traffic.global_read == run.traffic.global_written == 128 * 4
    assert run.matrices == {}


def test_an_access_out_of_bounds_raises_where_the_kernel_is_called() -> None:
    with Device() as device:
        with pytest.raises(EmulationError, match=r"tensor 0(.|\n)*PTX line \d+(.|\n)*ld\.global"):
            scaled(device, "plain", blocks=3)
        (launch,) = device.launches
        assert launch.run is None
        assert torch.equal(scaled(device, "plain"), torch.arange(128.0) * 1.5)


def test_what_a_kernel_prints_is_printed_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with Device() as device:
        args = from_dlpack(device.tensor(torch.arange(32, dtype=torch.int32)))
        cute.compile(kernels.greet, args)(args)
        assert capsys.readouterr().out == "thread 1 says 1\n"
        assert device.launches[0].run is not None
        assert "".join(device.launches[0].run.printed) == "thread 1 says 1\n"


def test_edited_text_is_what_runs() -> None:
    with Device(edit_ptx=lambda ptx: ptx.replace("mul.f32", "add.f32")) as device:
        assert torch.equal(scaled(device, "plain"), torch.arange(128.0) + 1.5)
