"""Kernels of PTX run by hand: arguments, sizes, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flexfa4.emulator import EmulationError, load
from flexfa4.emulator.failures.options import (
    ArgumentCountError,
    BlockSizeError,
    KernelArgumentError,
    OptionError,
    PathAsTextError,
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


@pytest.mark.parametrize(
    ("index", "value", "said"),
    [
        (0, 1.5, None),
        (0, STRUCT, "8 bytes"),
        (0, None, "a CPU tensor, an int, a float or bytes"),
        (0, -(2**63) - 1, r"from -2\*\*63"),
        (2, torch.zeros(1), "a pointer has 8 bytes"),
        (2, 2**32, r"up to 2\*\*32"),
        (3, bytes(8), "12 bytes"),
        (3, 0.0, "a float for parameters of 4 or 8 bytes only"),
    ],
)
def test_an_argument_that_does_not_fit_its_parameter_is_an_error(
    index: int, value: Any, said: str | None
) -> None:
    args: list[Any] = [torch.zeros(32), torch.zeros(32), 1.0, STRUCT]
    args[index] = value
    names = ("out", "in", "factor", "shift")
    if said is None:  # a float of 8 bytes: no address of anything
        with pytest.raises(EmulationError, match="PTX line"):
            load(scale_text()).run(grid=1, block=32, args=args)
        return
    with pytest.raises(KernelArgumentError, match=rf"parameter {names[index]}(.|\n)*{said}"):
        load(scale_text()).run(grid=1, block=32, args=args)


def test_a_wrong_number_of_arguments_is_an_error_that_names_the_parameters() -> None:
    with pytest.raises(ArgumentCountError, match=r"2 arguments .* 4 parameters: out, in, factor"):
        load(scale_text()).run(grid=1, block=32, args=[1, 2])


def test_a_tensor_that_is_not_the_cpus_is_an_error() -> None:
    with pytest.raises(NotACpuTensorError):
        load(scale_text()).run(
            grid=1, block=1, args=[torch.zeros(1, device="meta"), 0, 1.0, STRUCT]
        )


def test_memory_that_is_no_arguments_can_be_given_too() -> None:
    x, y = torch.ones(32), torch.zeros(32)
    args = [y.data_ptr(), x.data_ptr(), 2.0, STRUCT]
    with pytest.raises(EmulationError, match="PTX line"):
        load(scale_text()).run(grid=1, block=32, args=args)
    load(scale_text()).run(grid=1, block=32, args=args, allocations=[x, y])
    assert torch.equal(y, torch.full((32,), 3.0))


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


def test_the_name_of_a_file_as_a_string_is_an_error_that_says_to_pass_a_path() -> None:
    with pytest.raises(PathAsTextError, match=r"instead: load\(Path\('kernel.ptx'\)\)"):
        load("kernel.ptx")


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
