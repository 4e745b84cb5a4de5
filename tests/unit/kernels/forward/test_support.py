"""What keeps a call from kernels: device, dtype and head dims, with what works instead."""

from __future__ import annotations

import pytest
import torch

from flexfa4.kernels.architectures import architecture
from flexfa4.kernels.forward.support import refused_device, refused_dtype, refused_head_dims
from flexfa4.kernels.launch.emulated import emulated_target


@pytest.mark.parametrize(
    ("backend", "served", "other", "instead"),
    [
        ("sm90", (9, 0), (10, 0), 'backend="sm100"'),
        ("sm100", (10, 3), (9, 0), 'backend="sm90"'),
        ("sm100", (10, 0), (12, 0), 'backend="auto", which takes torch\'s FlexAttention'),
    ],
)
def test_kernels_serve_the_gpus_that_they_are_for(
    backend: str, served: tuple[int, int], other: tuple[int, int], instead: str
) -> None:
    gpus, device = architecture(backend).gpus, torch.device("cpu")
    assert refused_device(gpus, device, emulated_target(served)) is None
    refused = refused_device(gpus, device, emulated_target(other))
    assert refused is not None and "{}.{}".format(*other) in refused.found
    assert "{}.{}".format(*served) in refused.allowed and refused.rewrite.startswith(instead)


def test_tensors_that_no_kernel_reaches_have_to_move() -> None:
    refused = refused_device(architecture("sm100").gpus, torch.device("cpu"), None)
    assert refused is not None and "cpu" in refused.found and ".cuda()" in refused.rewrite


def test_kernels_take_numbers_of_16_bits() -> None:
    assert refused_dtype(torch.bfloat16) is None and refused_dtype(torch.float16) is None
    refused = refused_dtype(torch.float32)
    assert refused is not None and "bfloat16()" in refused.rewrite


def test_padding_is_told_for_the_dims_that_need_it() -> None:
    assert refused_head_dims((64, 128), 16, 256) is None
    refused = refused_head_dims((60, 128), 16, 256)
    assert refused is not None and "value" not in refused.rewrite.partition("scale=")[2]
    assert "pad(x, (0, 4))" in refused.rewrite and "scale=60 ** -0.5" in refused.rewrite
    refused = refused_head_dims((512, 128), 16, 256)
    assert refused is not None and "at most 256" in refused.rewrite
    assert refused_head_dims((512, 128), 16) is None
    refused = refused_head_dims((520, 8), 16)
    assert refused is not None and refused.allowed == "multiples of 16"
