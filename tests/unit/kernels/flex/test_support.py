"""What is refused before torch is asked, for each kind of device."""

from __future__ import annotations

import pytest
import torch
import torch.utils._triton as torch_triton

from flexfa4.kernels.flex import support
from flexfa4.kernels.flex.compiled import compiling_with
from flexfa4.kernels.flex.support import refused_inputs
from flexfa4.kernels.request import Inputs


def inputs(heads: int = 2, dim: int = 16, dtype: torch.dtype = torch.float32) -> Inputs:
    q = torch.zeros(1, 1, 30, dim, dtype=dtype).expand(-1, heads, -1, -1)
    return Inputs(q, q, q, None)


@pytest.fixture
def as_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU are taken for those of a GPU with Triton."""
    monkeypatch.setitem(support._ROWS, "cpu", support._ROWS["cuda"])
    monkeypatch.setattr(support, "_lacking", lambda kind: None)


REFUSED = {
    "head dimension": (inputs(dim=8), "at least 16", "pad(x, (0, 8))"),
    "heads": (inputs(heads=70000), "at most 65535", "fewer"),
    "dtype": (inputs(dtype=torch.float64), "float32", "x.float()"),
}


@pytest.mark.usefixtures("as_a_gpu")
@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_triton_does_not_take_is_refused(name: str) -> None:
    call, allowed, rewrite = REFUSED[name]
    refused = refused_inputs(call, lse=True)
    assert refused is not None
    assert allowed in refused.allowed and rewrite in refused.rewrite and not refused.lacking


@pytest.mark.usefixtures("as_a_gpu")
def test_other_calls_are_served_with_lse() -> None:
    assert refused_inputs(inputs(dim=24, dtype=torch.bfloat16), lse=True) is None


def test_devices_without_a_compiler_of_flex_attention_are_refused() -> None:
    q = torch.zeros(1, 1, 30, 16, device="meta")
    refused = refused_inputs(Inputs(q, q, q, None), lse=False)
    assert refused is not None and "meta" in refused.found
    with compiling_with("aot_eager"):
        assert refused_inputs(Inputs(q, q, q, None), lse=True) is None


def test_a_gpu_without_triton_lacks_an_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_triton, "has_triton", lambda: False)
    refused = support._lacking.__wrapped__("cuda")
    assert refused is not None and refused.lacking and "triton" in refused.rewrite
    monkeypatch.setattr(torch_triton, "has_triton", lambda: True)
    assert support._lacking.__wrapped__("cuda") is None
