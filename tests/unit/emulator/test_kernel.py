"""Kernels of PTX run by hand: arguments, sizes, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from flexfa4.emulator import EmulationError, load
from flexfa4.emulator.failures.memory import NullPointerError
from flexfa4.emulator.failures.options import (
    ArgumentCountError,
    ArgumentsError,
    BlockSizeError,
    KernelArgumentError,
    OptionError,
    PtxSourceError,
    SizesError,
)
from flexfa4.emulator.host.errors import LaunchShapeError, NotACpuTensorError
from flexfa4.emulator.ptx.errors import MissingKernelError, PtxError
from tests.kernel_texts import SOFTMAX

SCALE = """
.version 8.8
.target {target}
.address_size 64
.visible .entry scale(
    .param .u64 out, .param .u64 in, .param .f32 factor, .param .align 8 .b8 shift[12]
){limits}
{{
    .reg .b64 o, i, at;
    .reg .b32 t, n, s;
    .reg .f32 x, f;
    mov.u32 t, %ctaid.x;
    mov.u32 n, %ntid.x;
    mul.lo.u32 t, t, n;
    mov.u32 n, %tid.x;
    add.u32 t, t, n;
    ld.param.u64 o, [out];
    ld.param.u64 i, [in];
    ld.param.f32 f, [factor];
    ld.param.u32 s, [shift+8];
    mul.wide.u32 at, t, 4;
    add.u64 i, i, at;
    add.u64 o, o, at;
    ld.global.f32 x, [i];
    fma.rn.f32 x, x, f, 0f3F800000;
    shl.b32 s, s, 0;
    add.rn.f32 x, x, 0f00000000;
    st.global.f32 [o], x;
    ret;
}}
"""
STRUCT = bytes(12)


def scale_text(target: str = "sm_100a", limits: str = "") -> str:
    return SCALE.format(target=target, limits=limits)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_103a"])
def test_a_kernel_reads_its_arguments_and_writes_its_results(target: str) -> None:
    x, y = torch.arange(96.0), torch.zeros(96)
    run = load(scale_text(target)).run(grid=3, block=(32,), args=[y, x, 0.5, STRUCT])
    assert torch.equal(y, x * 0.5 + 1)
    assert run.executed["ret"] == 3


def test_a_kernel_can_be_loaded_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "scale.ptx"
    path.write_text(scale_text())
    kernel = load(path)
    assert kernel.name == "scale" and kernel.target == "sm_100a"
    assert [(p.name, p.nbytes) for p in kernel.parameters] == [
        ("out", 8), ("in", 8), ("factor", 4), ("shift", 12),
    ]  # fmt: skip


def test_a_compiled_kernel_computes_what_it_was_written_for() -> None:
    kernel = load(SOFTMAX)
    x, y = torch.randn(4, 64), torch.zeros(4, 64)
    kernel.run(grid=4, block=64, shared_memory=1024, args=[x, y])
    expected = torch.softmax(x.double().view(4, 2, 32), 2).view(4, 64)
    excess = (y - expected).abs().max()
    assert excess < 8 * torch.finfo(torch.float32).eps


def test_an_argument_that_does_not_fit_its_parameter_is_an_error_that_names_both() -> None:
    args = [torch.zeros(32), torch.zeros(32), 2, STRUCT]
    with pytest.raises(KernelArgumentError) as caught:
        load(scale_text()).run(grid=1, block=32, args=args)
    assert str(caught.value) == (
        "argument 2 of scale is the int 2; the parameter factor is .f32\n"
        "  allowed: a float within the range of .f32, or 4 bytes\n"
        "  instead: 2.0"
    )


def test_a_wrong_number_of_arguments_is_an_error_that_names_the_parameters() -> None:
    with pytest.raises(ArgumentCountError, match=r"2 arguments .* 4 parameters: out, in, factor"):
        load(scale_text()).run(grid=1, block=32, args=[1, 2])


def test_a_tensor_that_is_not_the_cpus_is_an_error_that_says_what_it_was_given_to() -> None:
    other = torch.zeros(1, device="meta")
    with pytest.raises(
        NotACpuTensorError,
        match=r"argument 0 \(out\) of scale is a torch\.strided tensor on the device meta",
    ):
        load(scale_text()).run(grid=1, block=1, args=[other, 0, 1.0, STRUCT])
    with pytest.raises(NotACpuTensorError, match="allocation 0 is a"):
        load(scale_text()).run(grid=1, block=1, args=[0, 0, 1.0, STRUCT], allocations=[other])


def test_memory_that_is_no_arguments_can_be_given_too() -> None:
    x, y = torch.ones(32), torch.zeros(32)
    args = [y.data_ptr(), x.data_ptr(), 2.0, STRUCT]
    with pytest.raises(EmulationError, match="PTX line"):
        load(scale_text()).run(grid=1, block=32, args=args)
    load(scale_text()).run(grid=1, block=32, args=args, allocations=[x, y])
    assert torch.equal(y, torch.full((32,), 3.0))


@pytest.mark.parametrize("pointer", [0, torch.zeros(0)], ids=["zero", "empty"])
def test_a_null_pointer_is_told_as_one(pointer: Any) -> None:
    with pytest.raises(NullPointerError, match="address 0x0: the pointer is null"):
        load(scale_text()).run(grid=1, block=32, args=[torch.zeros(32), pointer, 1.0, STRUCT])


def test_an_access_behind_a_tensor_is_an_error_that_names_it_and_the_line() -> None:
    args = [torch.zeros(32), torch.zeros(31), 1.0, STRUCT]
    with pytest.raises(EmulationError, match=r"argument 1 \(in\)(.|\n)*ld\.global\.f32 x, \[i\]"):
        load(scale_text()).run(grid=1, block=32, args=args)


@pytest.mark.parametrize(
    ("sizes", "error", "said"),
    [
        ({"grid": 0, "block": 32}, LaunchShapeError, "grid"),
        ({"grid": 1, "block": 1025}, LaunchShapeError, "1025"),
        ({"grid": 1, "block": (32, 8, 8)}, LaunchShapeError, "2048 threads"),
        ({"grid": 3, "block": 32, "cluster": 2}, LaunchShapeError, "multiple of the cluster"),
        ({"grid": 1, "block": 32, "shared_memory": 233472}, LaunchShapeError, "shared memory"),
        ({"grid": (1, 1, 1, 1), "block": 32}, SizesError, "grid"),
        ({"grid": "1", "block": 32}, SizesError, "grid"),
        ({"grid": 1, "block": 1.5}, SizesError, "block"),
        ({"grid": 1, "block": 1, "shared_memory": -1}, SizesError, "shared_memory is -1"),
        ({"grid": 1, "block": 1, "schedule": "none"}, OptionError, "schedule"),
    ],
)
def test_sizes_that_no_device_has_are_errors(
    sizes: dict[str, Any], error: type[EmulationError], said: str
) -> None:
    args = [torch.zeros(32), torch.zeros(32), 1.0, STRUCT]
    with pytest.raises(error, match=said):
        load(scale_text()).run(**sizes, args=args)


@pytest.mark.parametrize(
    ("limits", "sizes", "said"),
    [
        (".reqntid 64, 1, 1", {"grid": 1, "block": 32}, r"\.reqntid \(64, 1, 1\)"),
        (".maxntid 16", {"grid": 1, "block": 32}, r"\.maxntid \(16,\)"),
        (".explicitcluster .reqnctapercluster 2, 1, 1", {"grid": 4, "block": 32, "cluster": 4},
         r"\.reqnctapercluster"),
        (".maxclusterrank 1", {"grid": 2, "block": 32, "cluster": 2}, r"\.maxclusterrank"),
    ],
)  # fmt: skip
def test_sizes_against_which_the_kernel_speaks_are_errors(
    limits: str, sizes: dict[str, Any], said: str
) -> None:
    args = [torch.zeros(128), torch.zeros(128), 1.0, STRUCT]
    with pytest.raises(BlockSizeError, match=said):
        load(scale_text(limits=limits)).run(**sizes, args=args)


def test_a_cluster_that_the_kernel_requires_needs_not_be_said() -> None:
    text = scale_text(limits=".explicitcluster .reqnctapercluster 2, 1, 1")
    args = [torch.zeros(64), torch.zeros(64), 1.0, STRUCT]
    load(text).run(grid=2, block=32, args=args)
    with pytest.raises(BlockSizeError, match="multiple"):
        load(text).run(grid=1, block=32, args=args)


def test_a_kernel_that_is_not_there_is_an_error() -> None:
    with pytest.raises(MissingKernelError, match="scale"):
        load(scale_text(), "other")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("kernel.ptx", r"name of a file(.|\n)*instead: load\(Path\('kernel.ptx'\)\)"),
        (b".version 8.8", r"type bytes(.|\n)*instead: load\(ptx.decode\(\)\)"),
        (None, r"type NoneType(.|\n)*instead: load\(Path\(...\)\)"),
    ],
)
def test_what_is_neither_a_text_nor_a_path_is_an_error(given: Any, said: str) -> None:
    with pytest.raises(PtxSourceError, match=said):
        load(given)


def test_machine_code_is_an_error_that_asks_for_ptx(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cubin"
    path.write_bytes(b"\x7fELF\2\xff")
    with pytest.raises(PtxSourceError, match=r"kernel.cubin, which is no text(.|\n)*nvcc -ptx"):
        load(path)


@pytest.mark.parametrize("args", [torch.zeros(4), 5, "text", {"out": 1}])
def test_arguments_come_in_a_list(args: Any) -> None:
    with pytest.raises(ArgumentsError, match=r"instead: args=\[x, ...\]"):
        load(scale_text()).run(grid=1, block=32, args=args)


@pytest.mark.parametrize(
    ("sizes", "instead"),
    [
        ({"grid": 2.0}, "grid=2"),
        ({"grid": torch.tensor(3)}, "grid=3"),
        ({"grid": -1}, "grid=1"),
        ({"block": (1, 1, 1, 1)}, "block=1"),
        ({"shared_memory": -1}, "shared_memory=0"),
        ({"shared_memory": 1024.0}, "shared_memory=1024"),
    ],
)
def test_sizes_that_are_no_whole_numbers_come_with_what_was_meant(
    sizes: dict[str, Any], instead: str
) -> None:
    args = [torch.zeros(32), torch.zeros(32), 1.0, STRUCT]
    with pytest.raises(SizesError, match=f"instead: {instead}$"):
        load(scale_text()).run(**{"grid": 1, "block": 32, "args": args, **sizes})


def test_sizes_may_be_numbers_of_numpy() -> None:
    x, y = torch.zeros(64), torch.zeros(64)
    args = [y, x, 0.5, STRUCT]
    sizes: dict[str, Any] = {"grid": numpy.int64(2), "block": (numpy.int32(32),)}
    run = load(scale_text()).run(**sizes, args=args)
    assert run.executed["ret"] == 2 and y.sum() == 64


def test_text_that_is_no_ptx_is_an_error() -> None:
    with pytest.raises(PtxError):
        load("hello")


@pytest.mark.parametrize("workers", [2, 5])
def test_blocks_may_run_side_by_side(workers: int) -> None:
    x, y = torch.arange(1280.0), torch.zeros(1280)
    args = [y, x, 0.5, STRUCT]
    run = load(scale_text()).run(grid=40, block=32, args=args, workers=workers)
    assert torch.equal(y, x * 0.5 + 1)
    assert run.executed["ret"] == 40
