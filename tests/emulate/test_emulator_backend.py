"""``backend="emulator"``: the kernels for a GPU on tensors of the CPU, with nothing set up."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.kernels.errors import UnservedCallError
from flexfa4.testing import Inputs, Mods, agrees, dense_reference


@pytest.mark.parametrize("backend", ["emulator", "emulator:sm_90a", "emulator:sm_103a"])
def test_a_call_is_what_the_reference_says(backend: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 140, 64).bfloat16() for _ in range(3))
    out = flexfa4.attention(q, k, v, block_mask="q >= kv", backend=backend)
    given, mods = Inputs(q, k, v, None), Mods(mask=lambda b, h, q, kv: q >= kv)
    exact, _ = dense_reference(given, mods)
    eager, _ = dense_reference(given, mods, dtype=q.dtype)
    assert agrees(out, exact, eager, terms=140)


def test_what_kernels_do_not_serve_the_emulator_does_not_either() -> None:
    q = torch.randn(1, 1, 8, 256).bfloat16()
    with pytest.raises(UnservedCallError, match="512 columns of tensor memory"):
        flexfa4.attention(q, q, q, backend="emulator")
    with pytest.raises(UnservedCallError, match="multiples of 16 up to 256"):
        flexfa4.attention(q[..., :72], q[..., :72], q[..., :72], backend="emulator:sm_90a")
