"""Kernels of ours compiled by CuTe-DSL, with no GPU: what comes out, and what goes wrong."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

pytest.importorskip("cutlass")

import cutlass
from cutlass import cute
from cutlass.cutlass_dsl import CuTeDSL

import flexfa4
from flexfa4.emulator import Device
from flexfa4.errors import ArgumentError, FlexFA4Error
from flexfa4.kernels.compile.compiler import ARCHITECTURES, MAX_SMEM, compile_kernel
from flexfa4.kernels.compile.cubin import read_cubin
from flexfa4.kernels.compile.cute import example_pointer
from flexfa4.kernels.compile.errors import (
    ArchitectureError,
    KernelCompileError,
    KernelContractError,
    UnfittingCompilerError,
)
from flexfa4.kernels.compile.signature import Int32, Pointer, Signature, TensorMap
from flexfa4.kernels.launch.tensor_map import Tensor, tiled
from tests.compile.tensor_copy_kernels import Mapped, Scale
from tests.emulated_executor import encoded

SIGNATURE = Scale().signature


def compiled(kernel: Scale, signature: Signature | None = None, **options: Any) -> Any:
    options = {"arch": "sm_90a", **options}
    return compile_kernel(kernel, signature or kernel.signature, **options)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_kernel_is_compiled_for_each_architecture(arch: str) -> None:
    kernel = compiled(Scale(cluster=2), arch=arch)
    assert (kernel.name, kernel.arch, kernel.signature) == ("scale_0", arch, SIGNATURE)
    assert (kernel.block, kernel.cluster) == ((128, 1, 1), (2, 1, 1))
    assert kernel.smem_bytes == 1024 + 16 * 32 * 4  # the barrier is in front of an aligned tile
    assert 8 <= kernel.registers <= 40 and kernel.spills == 0
    assert f".target {arch}" in kernel.ptx
    assert kernel.cubin.startswith(b"\x7fELF")
    assert kernel.versions.dsl == cutlass.__version__
    assert re.fullmatch(r"V1\d\.\d+\.\d+", kernel.versions.tools)


def test_machine_code_says_the_same_as_the_text() -> None:
    kernel = compiled(Scale())
    info = read_cubin(kernel.cubin)[kernel.name]
    assert [nbytes for _, nbytes in info.parameters] == [128, 8, 4, 4, 4]
    assert info.block == kernel.block
    assert info.registers == kernel.registers


def test_spills_are_counted() -> None:
    def wide(number: Any) -> Any:
        """Keep more numbers than there are registers, until the last one is known."""
        numbers = [number]
        for _ in range(300):
            numbers.append(cute.math.exp2(numbers[-1], fastmath=True))
        number = numbers[-1]
        for kept in numbers:
            number = cute.math.exp2(number * kept, fastmath=True)
        return number

    plain = compiled(Scale())
    assert plain.spills == plain.resources.stack_frame == 0
    full = compiled(Scale(change=wide))
    assert full.spills >= full.resources.stack_frame >= 4 * (300 - 255)
    assert full.registers > 200


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = CuTeDSL._get_dsl().envar
    before = {name: value for name, value in vars(settings).items() if name != "log"}
    environment = dict(os.environ)
    compiled(Scale(), arch="sm_100a")
    assert {name: value for name, value in vars(settings).items() if name != "log"} == before
    assert dict(os.environ) == environment
    assert list(tmp_path.iterdir()) == []


def test_settings_of_other_libraries_do_not_change_what_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = compiled(Scale())
    settings = CuTeDSL._get_dsl().envar
    for name, value in (("enable_tvm_ffi", True), ("lineinfo", True), ("_arch", "sm_100a")):
        monkeypatch.setattr(settings, name, value)
    assert compiled(Scale()).ptx == plain.ptx
    assert settings.enable_tvm_ffi and settings._arch == "sm_100a"


def test_an_open_emulated_device_changes_nothing() -> None:
    plain = compiled(Scale())
    with Device("sm_100a") as device:
        inside = compiled(Scale())
    assert (inside.ptx, inside.resources) == (plain.ptx, plain.resources)
    assert device.launches == []


def test_threads_may_compile_at_once() -> None:
    texts: dict[str, str] = {}

    def work(arch: str) -> None:
        texts[arch] = compiled(Scale(), arch=arch).ptx

    threads = [threading.Thread(target=work, args=(arch,)) for arch in ARCHITECTURES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f".target {arch}" in texts[arch] for arch in ARCHITECTURES)


# ---- what goes wrong ----


def failing(error: Exception) -> Scale:
    def change(_number: Any) -> Any:
        raise error

    return Scale(change=change)


def test_a_failure_shows_the_mod_and_keeps_the_cause() -> None:
    mod = flexfa4.trace(lambda score, b, h, q, kv: score + 2.0 * (kv - q)).graph
    cause = RuntimeError("no such operation")
    with pytest.raises(KernelCompileError) as caught:
        compiled(failing(cause), mods=[mod])
    assert caught.value.__cause__ is cause
    text = str(caught.value)
    assert "could not be compiled for sm_90a: RuntimeError: no such operation" in text
    assert str(mod) in text
    assert "Traceback" not in text and "\x1b" not in text


def test_a_failure_of_another_release_names_the_one_that_is_tested() -> None:
    release = "flexfa4.kernels.compile.compiler.compiler_release"
    with (
        mock.patch(release, lambda: "4.5.0"),
        pytest.raises(UnfittingCompilerError) as caught,
    ):
        compiled(failing(TypeError("no such option")))
    text = str(caught.value)
    assert "CuTe-DSL 4.5.0 lacks" in text and "no such option" in text and "==4.8.1" in text


def test_what_the_compiler_says_is_quoted_without_colours() -> None:
    with pytest.raises(KernelCompileError) as caught:
        compiled(Scale(), ptxas_options="--no-such-option")
    assert "no-such-option" in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_an_error_of_ours_passes_through() -> None:
    ours = ArgumentError(name="x", found_value="y", expected="z", rewrite="w")
    with pytest.raises(FlexFA4Error) as caught:
        compiled(failing(ours))
    assert caught.value is ours


def test_a_kernel_is_compiled_after_one_that_failed() -> None:
    with pytest.raises(KernelCompileError):
        compiled(failing(RuntimeError("no")))
    assert compiled(Scale()).name == "scale_0"


def test_another_architecture_is_refused() -> None:
    with pytest.raises(ArchitectureError, match=r'sm_90a, sm_100a, sm_103a\n.*arch="sm_100a"'):
        compiled(Scale(), arch="sm_100")


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        (SIGNATURE[:4], "the number of parameters is 5"),
        ((*SIGNATURE, Int32("more")), "the number of parameters is 5"),
        ((*SIGNATURE[:3], *SIGNATURE[:2:-1]), "parameter 3 is .u32 of 4 bytes"),
        ((Pointer("source"), *SIGNATURE[1:]), "parameter 0 is .b8 of 128 bytes"),
    ],
)
def test_a_signature_that_is_not_the_kernels_is_refused(signature: Signature, message: str) -> None:
    kernel = Scale()
    example = (example_pointer(cutlass.Float32), example_pointer(cutlass.Float32), 1, 1, 1.0)
    with pytest.raises(KernelContractError, match=re.escape(message)):
        compiled(kernel, signature, example=example)


@pytest.mark.parametrize(
    "declared",
    [
        TensorMap("source", "f32", box=(32, 8)),
        TensorMap("source", "f32", box=(32, 16), swizzle=128),
        TensorMap("source", "bf16", box=(32, 16)),
        TensorMap("source", "f32", box=(32, 16, 1)),
    ],
)
def test_a_tensor_map_that_is_not_the_kernels_is_refused(declared: TensorMap) -> None:
    example = (example_pointer(cutlass.Float32), example_pointer(cutlass.Float32), 1, 1, 1.0)
    found = r"tensor map source is a box \(32, 16\) of f32 with swizzle 0, 2048 bytes"
    with pytest.raises(KernelContractError, match=found):
        compiled(Scale(), (declared, *SIGNATURE[1:]), example=example)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (Scale(shared_memory=MAX_SMEM + 1), f"its shared memory is {MAX_SMEM + 1} bytes"),
        (Scale(shared_memory=1024), "its shared memory is 1024 bytes"),
    ],
)
def test_shared_memory_has_to_be_enough_and_not_too_much(kernel: Scale, message: str) -> None:
    with pytest.raises(KernelContractError, match=message):
        compiled(kernel)


# ---- tensor maps as CuTe-DSL's host code encodes them ----

TYPES = {
    "bf16": (torch.bfloat16, cutlass.BFloat16),
    "f16": (torch.float16, cutlass.Float16),
    "f32": (torch.float32, cutlass.Float32),
    "u8": (torch.uint8, cutlass.Uint8),
}
MAPS = [
    ("bf16", Mapped((128, 64), 128), (64, 128)),
    ("bf16", Mapped((128, 128), 128, rank=4), (64, 128, 1, 1)),
    ("bf16", Mapped((64, 128), 128, rank=3, rows_first=True), (64, 128, 1)),
    ("f16", Mapped((64, 32), 64, rank=5), (32, 64, 1, 1, 1)),
    ("f16", Mapped((64, 16), 32, rank=3, stores=True), (16, 64, 1)),
    ("f32", Mapped((64, 32), 128, rank=4), (32, 64, 1, 1)),
    ("f32", Mapped((16, 24), 0), (24, 16)),
    ("u8", Mapped((8, 128), 128, rank=3), (128, 8, 1)),
]
SIZES = (320, 100, 7, 3, 2)
# bits of word 1 that say nothing of the tensor: how host code begins, and a hint for small tensors
IGNORED = 0xF | 1 << 21


@pytest.mark.parametrize(
    ("element", "kernel", "box"), MAPS, ids=lambda value: str(value).removeprefix("Mapped")
)
def test_an_encoded_map_is_the_one_that_cute_encodes(
    element: str, kernel: Mapped, box: tuple[int, ...]
) -> None:
    dtype, kind = TYPES[element]
    memory = torch.zeros(64, dtype=dtype)
    sizes = SIZES[: kernel.rank]
    strides: list[int] = []
    for size in sizes[:-1]:
        strides.append((strides or [1])[-1] * size + 16)
    pointer = cute.runtime.make_ptr(
        kind, memory.data_ptr(), cute.AddressSpace.gmem, assumed_align=16
    )
    arguments = (pointer, tuple(map(cutlass.Int32, sizes)), tuple(map(cutlass.Int64, strides)))
    with Device("sm_90a", execute=lambda launch: None) as device:
        cute.compile(kernel, *arguments)(*arguments)
        (parameter,) = device.launches[0].parameters
    spec = TensorMap("x", element, box, swizzle=kernel.swizzle)
    inside = tuple(stride * dtype.itemsize for stride in strides)
    ours = encoded(tiled(spec, Tensor(memory.data_ptr(), sizes, inside)))
    assert words(ours) == words(parameter.data)
    assert compile_kernel(kernel, (spec,), arch="sm_90a", example=arguments).signature == (spec,)


def words(data: bytes) -> list[int]:
    """Return the half of a map that copies read, as numbers of 64 bits."""
    found = [int.from_bytes(data[at : at + 8], "little") for at in range(0, 64, 8)]
    found[1] &= ~IGNORED
    return found
