"""Kernels that CuTe-DSL launches arrive on an emulated device as they were launched."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import cutlass
from cutlass import cute
from cutlass.cute.runtime import from_dlpack

from flexfa4.emulator.host.binding import unfitting
from flexfa4.emulator.host.device import Device
from flexfa4.emulator.host.errors import (
    CompiledElsewhereError,
    EditedTextError,
    ExportError,
    LaunchShapeError,
    LoadedModuleError,
    NestedDeviceError,
    UnfittingCutlassError,
    WrongTargetError,
)
from flexfa4.emulator.host.launch import Launch
from tests.compile import launched_kernels as kernels

ROOT = Path(__file__).parents[2]
FFI = "--enable-tvm-ffi"


def compiled(path: str, function: Any, *args: Any) -> Any:
    if path == "ffi":
        pytest.importorskip("tvm_ffi")
        return cute.compile(function, *args, options=FFI)
    return cute.compile(function, *args)


def vectors(device: Device, count: int = 300) -> tuple[list[torch.Tensor], list[Any]]:
    """Two vectors of numbers and one of zeros; and what a kernel gets for them."""
    tensors = [torch.arange(count) * 0.5, torch.arange(count) * 2.0, torch.zeros(count)]
    return tensors, [from_dlpack(device.tensor(t), enable_tvm_ffi=True) for t in tensors]


def add_in_python(launch: Launch) -> None:
    """What the kernel `add` does, from the record of its launch alone."""
    *pointers, count = (parameter.integer() for parameter in launch.parameters)
    left, right, total = ((ctypes.c_float * count).from_address(p) for p in pointers)
    for index in range(count):
        total[index] = left[index] + right[index]


@pytest.mark.parametrize("path", ["plain", "ffi"])
def test_a_launch_tells_the_kernel_its_shape_and_its_parameters(path: str) -> None:
    with Device("sm_100a", execute=add_in_python) as device:
        tensors, given = vectors(device)
        add = compiled(path, kernels.add, *given, 300)
        assert device.launches == []  # compiling launches nothing
        add(*given, 300)
        (launch,) = device.launches
        assert launch.ptx.count(f".entry {launch.entry}(") == 1
        assert "kernel_cutlass_add_kernel" in launch.entry
        assert (launch.grid, launch.block, launch.cluster) == ((3, 1, 1), (128, 1, 1), (1, 1, 1))
        assert (launch.shared_memory, launch.programmatic, launch.tensor_maps) == (0, False, {})
        assert [p.integer() for p in launch.parameters] == [*(t.data_ptr() for t in tensors), 300]
        assert [len(p.data) for p in launch.parameters] == [8, 8, 8, 4]
        for tensor in tensors:
            found = device.allocations.find(tensor.data_ptr(), tensor.nbytes)
            assert found is not None and found.owner.data_ptr() == tensor.data_ptr()
    assert torch.equal(tensors[2], tensors[0] + tensors[1])


@pytest.mark.parametrize("path", ["plain", "ffi"])
def test_a_function_compiled_on_one_device_runs_on_the_next(path: str) -> None:
    with Device("sm_100a") as first:
        _, given = vectors(first)
        add = compiled(path, kernels.add, *given, 300)
        add(*given, 300)
    with Device("sm_100a", execute=add_in_python) as second:
        tensors, given = vectors(second)
        add(*given, 300)
        assert (len(first.launches), len(second.launches)) == (1, 1)
    assert torch.equal(tensors[2], tensors[0] + tensors[1])
    with Device("sm_90a") as third, pytest.raises(WrongTargetError, match="sm_100a"):
        add(*vectors(third)[1], 300)


def test_a_function_called_without_compiling_it_first_is_compiled_once() -> None:
    with Device("sm_100a", execute=add_in_python) as device:
        tensors, given = vectors(device)
        kernels.add(*given, 300)
        kernels.add(*given, 300)
        first, second = device.launches
        assert first.ptx is second.ptx
    assert torch.equal(tensors[2], tensors[0] + tensors[1])


def test_dlpack_wrappers_themselves_are_arguments_of_the_ffi_path() -> None:
    with Device("sm_100a", execute=add_in_python) as device:
        tensors, given = vectors(device)
        add = compiled("ffi", kernels.add, *given, 300)
        add(*(device.tensor(t) for t in tensors), 300)
    assert torch.equal(tensors[2], tensors[0] + tensors[1])


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
def test_kernels_are_compiled_for_the_device(arch: str) -> None:
    with Device(arch) as device:
        out = from_dlpack(device.tensor(torch.zeros(8, dtype=torch.int32)))
        kernels.ranks(out, 8, 2, 4096, True)
        (launch,) = device.launches
    assert launch.signature.target == arch
    assert f".target {arch}" in launch.ptx


def test_clusters_shared_memory_and_dependent_launches_are_recorded() -> None:
    with Device("sm_100a") as device:
        out = from_dlpack(device.tensor(torch.zeros(8, dtype=torch.int32)))
        kernels.ranks(out, 8, 4, 4096, True)
        kernels.ranks(out, 6, 2, 0, False)
        kernels.cooperating(out)
        one, two, three = device.launches
    assert (one.grid, one.block, one.cluster) == ((8, 1, 1), (32, 2, 1), (4, 1, 1))
    assert (two.grid, two.block, two.cluster) == ((6, 1, 1), (32, 2, 1), (2, 1, 1))
    assert (one.shared_memory, one.programmatic) == (4096, True)
    assert (two.shared_memory, two.programmatic) == (0, False)
    assert (one.cooperative, two.cooperative, three.cooperative) == (False, False, True)


@pytest.mark.parametrize(
    ("dtype", "element", "swizzle", "width"),
    [
        (torch.float16, "f16", None, 0),
        (torch.bfloat16, "bf16", (3, 4, 3), 128),
        (torch.float32, "f32", (2, 4, 3), 64),
        (torch.uint8, "b8", (1, 4, 3), 32),
        (torch.int16, "b16", None, 0),
        (torch.int32, "b32", None, 0),
        (torch.int64, "b64", None, 0),
        (torch.float64, "f64", None, 0),
    ],
)
def test_tensor_maps_are_decoded(dtype: Any, element: str, swizzle: Any, width: int) -> None:
    source = torch.zeros(512, 384, dtype=dtype)[:, :320]
    target = torch.zeros(512, 320, dtype=dtype)
    columns = (width or 64) // dtype.itemsize
    with Device("sm_100a") as device:
        given = [from_dlpack(device.tensor(t), assumed_align=16) for t in (source, target)]
        kernels.copy(*given, (32, columns), swizzle)
        (launch,) = device.launches
        loaded, stored = launch.tensor_maps.values()
        assert (loaded.address, stored.address) == (source.data_ptr(), target.data_ptr())
        assert {loaded.element.name, stored.element.name} == {element}
        assert loaded.sizes == stored.sizes == (320, 512)
        assert loaded.strides == (dtype.itemsize, 384 * dtype.itemsize)
        assert stored.strides == (dtype.itemsize, 320 * dtype.itemsize)
        assert loaded.box == stored.box == (columns, 32)
        assert loaded.swizzle == stored.swizzle == width
        assert loaded.box_nbytes <= launch.shared_memory  # and the barrier
        for view in (loaded, stored):
            assert device.allocations.find(view.address, view.span)
            assert not device.allocations.find(view.address, view.span + 1)


def test_the_text_is_what_the_compiler_wrote(tmp_path: Path) -> None:
    with Device("sm_100a") as device:
        _, given = vectors(device)
        add = cute.compile(kernels.add, *given, 300, options=f"--keep-ptx --dump-dir={tmp_path}")
        add(*given, 300)
        (launch,) = device.launches
    (kept,) = tmp_path.glob("*.ptx")
    assert launch.ptx == kept.read_text() == add.__ptx__


def test_a_function_without_kernels_runs_and_launches_nothing() -> None:
    with Device("sm_100a") as device:
        cute.compile(kernels.host_only, 3)(3)
        assert device.launches == []


# ---- what goes wrong ----------------------------------------------------------------------------


class BrokenKernel(Exception):
    """What an executor raises."""


def break_down(_launch: Launch) -> None:
    raise BrokenKernel


@pytest.mark.parametrize("path", ["plain", "ffi"])
def test_what_the_executor_raises_reaches_the_caller(path: str) -> None:
    with Device("sm_100a", execute=break_down) as device:
        _, given = vectors(device)
        add = compiled(path, kernels.add, *given, 300)
        with pytest.raises(BrokenKernel):
            add(*given, 300)
        with pytest.raises(BrokenKernel):
            add(*given, 300)  # and again
        assert len(device.launches) == 2


def test_what_no_function_of_cutlass_could_raise_is_raised_at_the_end() -> None:
    with pytest.raises(BrokenKernel) as raised, Device("sm_100a", execute=break_down) as device:
        _, given = vectors(device)
        add = compiled("ffi", kernels.add, *given, 300)
        add.__tvm_ffi_object__()(*given, 300)
    assert "cudaErrorLaunchFailure" in str(raised.value.__cause__)


@pytest.mark.parametrize("path", ["plain", "ffi"])
def test_a_launch_beyond_the_limits_is_refused(path: str) -> None:
    with Device("sm_100a") as device:
        out = from_dlpack(device.tensor(torch.zeros(9, dtype=torch.int32)), enable_tvm_ffi=True)
        ranks = compiled(path, kernels.ranks, out, 9, 2, 0, False)
        with pytest.raises(LaunchShapeError, match="multiple of the cluster"):
            ranks(out)
        assert device.launches == []


def test_a_kernel_with_a_smaller_cluster_to_fall_back_to_gets_the_larger() -> None:
    with Device("sm_100a") as device:
        out = from_dlpack(device.tensor(torch.zeros(8, dtype=torch.int32)))
        kernels.with_fallback(out)
        assert device.launches[0].cluster == (4, 1, 1)


def test_a_function_compiled_before_the_device_is_refused(monkeypatch: Any) -> None:
    given = [from_dlpack(torch.zeros(4)) for _ in range(3)]
    for dsl in all_dsls():
        monkeypatch.setattr(dsl.envar, "_arch", "sm_100a")
    outside = cute.compile(kernels.add, *given, 4)
    with Device("sm_100a"), pytest.raises(CompiledElsewhereError, match="add"):
        outside(*given, 4)


def test_a_module_that_cannot_be_bound_is_not_called_a_bug_of_the_compiler(
    monkeypatch: Any,
) -> None:
    def refuse(_module: Any, _ptx: str) -> None:
        raise unfitting("this module")

    with Device("sm_100a") as device:
        out = from_dlpack(device.tensor(torch.zeros(8, dtype=torch.int32)))
        monkeypatch.setattr("flexfa4.emulator.host.installation.bind", refuse)
        with pytest.raises(UnfittingCutlassError, match="this module"):
            kernels.ranks(out, 8, 2, 0, False)


def test_a_bound_function_is_not_exported(tmp_path: Path) -> None:
    with Device("sm_100a") as device:
        _, given = vectors(device)
        add = compiled("plain", kernels.add, *given, 300)
        with pytest.raises(ExportError, match="add"):
            add.export_to_c(str(tmp_path), "add")


def test_a_module_in_a_file_is_not_loaded(tmp_path: Path) -> None:
    with Device("sm_100a"), pytest.raises(LoadedModuleError, match="module"):
        cute.runtime.load_module(str(tmp_path / "module.o"))


def test_one_device_is_open_at_a_time() -> None:
    with Device("sm_100a") as device:
        with pytest.raises(NestedDeviceError, match="sm_90a"), Device("sm_90a"):
            pass
        with pytest.raises(NestedDeviceError), device:
            pass
        kernels.ranks(from_dlpack(device.tensor(torch.zeros(2, dtype=torch.int32))), 2, 1, 0, False)
        assert len(device.launches) == 1  # it is still open


# ---- what is changed, and undone ----------------------------------------------------------------


def all_dsls() -> list[Any]:
    from cutlass.base_dsl.dsl import DSLSingletonMeta

    return list(DSLSingletonMeta._instances.values())


def state_of_cutlass() -> list[Any]:
    """Everything that a device changes."""
    from cutlass.base_dsl.compiler import Compiler
    from cutlass.base_dsl.dsl import BaseDSL
    from cutlass.base_dsl.export.external_binary_module import ExternalBinaryModule
    from cutlass.base_dsl.jit_executor import JitExecutor
    from cutlass.base_dsl.runtime import cuda as driver
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction
    from cutlass.utils import HardwareInfo

    owners: list[Any] = [
        Compiler,
        BaseDSL,
        ExternalBinaryModule,
        JitExecutor,
        CudaDialectJitCompiledFunction,
        HardwareInfo,
        driver,
    ]
    owners += [owner for dsl in all_dsls() for owner in (dsl, dsl.envar)]
    return [dict(vars(owner)) for owner in owners]


def test_cutlass_is_as_before_when_a_device_is_closed() -> None:
    before = state_of_cutlass()
    with Device("sm_90a"):
        assert state_of_cutlass() != before
    assert state_of_cutlass() == before
    with pytest.raises(BrokenKernel), Device("sm_90a"):
        raise BrokenKernel
    assert state_of_cutlass() == before


def test_hardware_is_the_devices_however_it_was_imported() -> None:
    from cutlass.utils.hardware_info import HardwareInfo

    with Device("sm_100a", sms=8):
        for hardware in (HardwareInfo(), cutlass.utils.HardwareInfo()):
            assert hardware.get_device_multiprocessor_count() == 8
            assert hardware.get_max_active_clusters(2) == 4
    with Device("sm_90a"):
        assert HardwareInfo(0).get_device_multiprocessor_count() == 132


def test_ptx_is_edited_for_each_device() -> None:
    mark = "// edited"
    with Device("sm_100a", edit_ptx=lambda ptx: f"{mark}\n{ptx}") as editing:
        _, given = vectors(editing)
        add = compiled("plain", kernels.add, *given, 300)
        add(*given, 300)
    with Device("sm_100a") as plain:
        add(*vectors(plain)[1], 300)
    (edited,), (unedited,) = editing.launches, plain.launches
    assert edited.ptx == f"{mark}\n{unedited.ptx}"


def test_an_edit_that_makes_no_text_is_an_error() -> None:
    def forget(_ptx: str) -> Any:
        return None

    with Device("sm_100a", edit_ptx=forget) as device:
        out = from_dlpack(device.tensor(torch.zeros(8, dtype=torch.int32)))
        with pytest.raises(EditedTextError, match="NoneType"):
            kernels.ranks(out, 8, 2, 0, False)


def test_launches_of_several_threads_all_arrive() -> None:
    with Device("sm_100a", execute=add_in_python) as device:
        _, given = vectors(device)
        add = compiled("plain", kernels.add, *given, 300)
        sums = [vectors(device) for _ in range(4)]
        threads = [threading.Thread(target=add, args=(*views, 300)) for _, views in sums]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(device.launches) == 4
    assert all(torch.equal(total, left + right) for (left, right, total), _ in sums)


LOADED_BEFORE = {
    "nothing": [],
    "the runtime library, for all to see": [  # as flash-attn-4 does
        "import ctypes, cutlass.cute.runtime",
        "for path in cutlass.cute.runtime.find_runtime_libraries(enable_tvm_ffi=False):",
        "    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)",
    ],
}


@pytest.mark.cxx  # it runs kernels in a process of its own
@pytest.mark.parametrize("order", LOADED_BEFORE)
def test_it_does_not_matter_what_was_loaded_before(order: str) -> None:
    program = """
        import torch
        from flexfa4.emulator.host.device import Device
        with Device("sm_100a") as device:
            from cutlass.cute.runtime import from_dlpack
            from tests.compile import launched_kernels as kernels
            out = from_dlpack(device.tensor(torch.zeros(8, dtype=torch.int32)))
            kernels.ranks(out, 8, 2, 0, False)
            print(len(device.launches), device.launches[0].cluster)"""
    command = [sys.executable, "-c", "\n".join([*LOADED_BEFORE[order], textwrap.dedent(program)])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "1 (2, 1, 1)"), done.stderr
