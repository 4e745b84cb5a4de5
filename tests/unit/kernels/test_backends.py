"""Which backend serves a call, and what is said where the one that was named does not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor.exc import InductorError

import flexfa4
from flexfa4 import checks
from flexfa4.kernels import autograd, backends
from flexfa4.kernels.backends import NAMES, attend, backend_for
from flexfa4.kernels.compile.errors import MissingCompilerPackageError
from flexfa4.kernels.cpu.function import CPU
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.errors import CallMemoryError, UnservedCallError
from flexfa4.kernels.flex import function as function_of_torch
from flexfa4.kernels.flex.compiled import compiling_with
from flexfa4.kernels.flex.errors import FlexCompileError
from flexfa4.kernels.flex.function import FlexBackend
from flexfa4.kernels.forward import function
from flexfa4.kernels.forward import varlen as forward_of_packed
from flexfa4.kernels.forward.function import Launched
from flexfa4.kernels.launch.target import Target, standing_in
from flexfa4.kernels.refusal import BackendWarning, Refusal
from flexfa4.kernels.request import Choices, Inputs, Request
from flexfa4.kernels.varlen.call import Ends
from tests.compiled_kernels import compiled_kernel


class Recorder:
    """An executor that computes nothing."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def load(self, kernel: Any) -> None:
        pass

    def launch(self, *arguments: Any, **more: Any) -> None:
        self.launches.append((*arguments, more))


@pytest.fixture(autouse=True)
def no_compiled_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch compile nothing here, whatever this machine has."""
    refusal = Refusal("anything", "nothing", "another backend")
    monkeypatch.setitem(backends._SERVING, "flex", lambda *_: refusal)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A GPU of compute capability 9.0 whose kernels compute nothing."""
    monkeypatch.setattr(function, "kernel_for", lambda *_: compiled_kernel())
    executor = Recorder()
    with standing_in(Target(executor, (9, 0), 4)):
        yield executor


def test_too_little_memory_is_told_with_what_was_needed(
    gpu: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nMore.")

    monkeypatch.setattr(autograd, "attend", allocate)
    q = torch.zeros(1, dtype=torch.bfloat16).expand(1, 64, 4096, 64)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        backends.attend(replace(request(), return_lse=True), Inputs(q, q, q, None))
    assert isinstance(caught.value, CallMemoryError)
    text = str(caught.value)
    assert "33.0 MiB beside its inputs (out 32.0 MiB, lse 1.0 MiB)" in text
    assert "Tried to allocate 20.00 GiB." in text and "More" not in text


def drawn(dim: int = 64, dtype: torch.dtype = torch.bfloat16) -> Inputs:
    q = torch.zeros(1, 2, 70, dim, dtype=dtype)
    return Inputs(q, q, q, None)


def request(backend: str = "sm90") -> Request:
    return Request(None, None, 0.1, frozenset(), False, Choices(backend))


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    device = torch.device("cuda", 0)
    is_cuda = True


def on_gpu(inputs: Inputs) -> Inputs:
    q, k, v = (x.as_subclass(OnGpu) for x in inputs[:3])
    return inputs._replace(q=q, k=k, v=v)


def test_the_names_are_those_that_calls_are_checked_for() -> None:
    assert checks.BACKENDS == NAMES


def test_auto_leaves_tensors_on_the_cpu_to_the_cpu_backend(gpu: Recorder) -> None:
    assert backend_for(request("auto"), drawn(), False) is CPU


def test_auto_takes_the_kernels_on_their_gpus_where_they_serve_the_call(gpu: Recorder) -> None:
    assert isinstance(backend_for(request("auto"), on_gpu(drawn()), False), Launched)
    for other in (drawn(72), drawn(dtype=torch.float32)):
        assert backend_for(request("auto"), on_gpu(other), False) is CPU


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_auto_takes_the_cpu_backend_on_other_gpus(capability: tuple[int, int]) -> None:
    with standing_in(Target(Recorder(), capability, 4)):
        assert backend_for(request("auto"), on_gpu(drawn()), False) is CPU


@pytest.mark.parametrize(
    ("name", "capability", "taken"),
    [
        ("auto", (9, 0), "sm90"),
        ("auto", (10, 0), None),
        ("auto", (8, 0), None),
        ("sm100", (10, 3), "sm100"),
        ("sm90", (10, 0), "sm90"),  # which refuses the GPU
    ],
)
def test_packed_sequences_go_to_kernels_that_auto_takes_or_that_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int], taken: str | None
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        forward_of_packed, "attend", lambda architecture, *_: asked.append(architecture.backend)
    )
    ends = torch.tensor([0, 30, 70])
    with standing_in(Target(Recorder(), capability, 4)):
        backends.attend_varlen(request(name), None, on_gpu(drawn()), Ends(ends, ends))
    assert asked == ([] if taken is None else [taken])


def test_auto_warns_once_where_only_an_installation_is_lacking(
    gpu: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: Any) -> Any:
        raise MissingCompilerPackageError(arch="sm_90a", reason="No module named 'cutlass'")

    monkeypatch.setattr(function, "kernel_for", absent)
    backends._warn.cache_clear()
    with pytest.warns(BackendWarning, match="pip install nvidia-cutlass-dsl"):
        assert backend_for(request("auto"), on_gpu(drawn()), False) is CPU
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backend_for(request("auto"), on_gpu(drawn(128)), False) is CPU
    with pytest.raises(MissingCompilerPackageError, match="cutlass"):
        backend_for(request("sm90"), on_gpu(drawn()), False)


# What keeps a call from the kernels -> what the message names: what was found, what is allowed, and
# what works instead.
REFUSED: dict[str, tuple[Inputs, tuple[str, ...]]] = {
    "dtype": (drawn(dtype=torch.float32), ("float32", "bfloat16 and float16", "x.bfloat16()")),
    "head dimension": (drawn(72), ("72", "multiples of 16", "pad(x, (0, 8))", "scale=72 ** -0.5")),
    "too large": (drawn(512), ("512", "up to 256", "at most 256")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_named_backend_says_why_it_does_not_serve_a_call(gpu: Recorder, name: str) -> None:
    inputs, words = REFUSED[name]
    with pytest.raises(UnservedCallError) as caught:
        flexfa4.attention(*inputs[:3], backend="sm90")
    for word in (*words, 'backend="cpu"'):
        assert word in str(caught.value)
    assert not gpu.launches


def test_the_advice_for_other_head_dimensions_works(gpu: Recorder) -> None:
    q = torch.randn(1, 1, 40, 72)
    padded = torch.nn.functional.pad(q, (0, 8))
    out = flexfa4.attention(padded, padded, padded, scale=72**-0.5)[..., :72]
    torch.testing.assert_close(out, flexfa4.attention(q, q, q))
    low = padded.bfloat16()
    flexfa4.attention(low, low, low, scale=72**-0.5, backend="sm90")
    assert len(gpu.launches) == 1


def test_tensors_that_are_on_no_such_gpu_are_refused() -> None:
    with pytest.raises(UnservedCallError, match="tensors on cpu"):
        flexfa4.attention(*drawn()[:3], backend="sm90")
    target = Target(Recorder(), (8, 0), 4, "NVIDIA A100")
    with standing_in(target), pytest.raises(UnservedCallError, match=r"A100.* 8\.0"):
        flexfa4.attention(*drawn()[:3], backend="sm90")


def test_a_mod_that_kernels_have_no_code_for_is_refused(gpu: Recorder) -> None:
    table = torch.zeros(70, 128)
    with pytest.raises(KernelLimitError, match=r"128 elements|256 elements"):
        flexfa4.attention(
            *drawn()[:3],
            score_mod=lambda s, b, h, q, kv: s + (table[q] * table[kv]).sum(-1),
            backend="sm90",
        )


def test_a_tile_that_does_not_fit_is_refused(gpu: Recorder) -> None:
    for options, word in (
        (flexfa4.Options(tile=(128, 256), stages=4), "shared memory"),
        (flexfa4.Options(tile=(100, 64)), "64, 128, 192"),
        (flexfa4.Options(tile=(128, 72)), "multiple of 16"),
    ):
        with pytest.raises(UnservedCallError, match=word):
            flexfa4.attention(*drawn(128)[:3], backend="sm90", options=options)


def test_gradients_come_from_the_cpu_backend() -> None:
    q, k, v = (torch.randn(1, 2, 30, 16, requires_grad=True) for _ in range(3))
    inputs = Inputs(q, k, v, None)
    out, lse = attend(Request(None, None, 0.25, frozenset(), True), inputs)
    assert lse is not None
    wanted = torch.autograd.grad(out.sum() + lse.sum(), inputs[:3])

    class Same(function.Nothing):
        def forward(self, request: Request, inputs: Inputs) -> Any:
            out, lse = CPU.forward(request, inputs)
            return out, lse * CPU.lse_unit

    with mock.patch.object(backends, "backend_for", lambda *_: Same()):
        out, lse = attend(Request(None, None, 0.25, frozenset(), True), inputs)
    assert lse is not None
    found = torch.autograd.grad(out.sum() + lse.sum(), inputs[:3])
    torch.testing.assert_close(found, wanted)


# ---- torch's FlexAttention -----------------------------------------------------------------------


@pytest.fixture
def compiled_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch compile FlexAttention for every device, on a GPU without kernels of ours."""
    monkeypatch.setitem(backends._SERVING, "flex", backends._flex)
    with standing_in(Target(Recorder(), (8, 0), 4)), compiling_with("aot_eager"):
        yield


@pytest.mark.usefixtures("compiled_torch")
def test_auto_takes_torchs_flex_attention_where_there_are_no_kernels() -> None:
    assert isinstance(backend_for(request("auto"), on_gpu(drawn()), True), FlexBackend)
    wide = on_gpu(drawn(dtype=torch.float64))
    assert backend_for(request("auto"), wide, True) is CPU
    with pytest.raises(UnservedCallError, match="float64"):
        backend_for(request("flex"), wide, True)


@pytest.mark.usefixtures("compiled_torch")
def test_calls_without_queries_or_keys_are_left_to_the_cpu_backend() -> None:
    q, k, v, _ = drawn()
    assert backend_for(request("flex"), Inputs(q[:, :, :0], k, v, None), True) is CPU
    assert backend_for(request("flex"), Inputs(q, k[:, :, :0], v[:, :, :0], None), True) is CPU


@pytest.mark.usefixtures("compiled_torch")
def test_what_torch_fails_to_compile_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    failure = InductorError(ValueError("too many registers"), None)

    def fails(backend: FlexBackend, *call: Any, **more: Any) -> Any:
        raise backend._failed(failure)

    monkeypatch.setattr(FlexBackend, "_run", fails)
    monkeypatch.setattr(
        autograd, "attend", lambda backend, *call: served.append(backend) or (None, None)
    )
    backends._warn.cache_clear()
    inputs = on_gpu(drawn(24))
    with pytest.raises(FlexCompileError, match="too many registers"):
        attend(request("flex"), inputs)
    function_of_torch._FAILED.clear()
    with pytest.warns(BackendWarning, match="too many registers"):
        attend(request("auto"), inputs)
    assert served == [CPU] and backend_for(request("auto"), inputs, False) is CPU
    with pytest.raises(FlexCompileError, match="too many registers"):
        backend_for(request("flex"), inputs, False)
