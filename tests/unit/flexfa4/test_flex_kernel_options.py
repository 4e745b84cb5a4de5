"""Kernel options: torch's are taken and explained, others are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.errors import ArgumentError
from flexfa4.flex import FlexKernelOptions, explain_kernel_options, flex_attention
from flexfa4.flex.errors import KernelOptionError
from flexfa4.flex.kernel_options import OPTIONS, check_kernel_options

VALUES: dict[str, Any] = {
    name: "TRITON" if isinstance(option.values, tuple) else {int: 64, bool: True}[option.values]
    for name, option in OPTIONS.items()
}


def test_every_option_is_in_the_table_and_explained() -> None:
    assert set(OPTIONS) == set(FlexKernelOptions.__annotations__)
    text = explain_kernel_options()
    assert [line.split(":")[0] for line in text.splitlines()] == list(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("prefix", ["", "fwd_", "bwd_"])
def test_an_option_changes_nothing(name: str, prefix: str) -> None:
    options: Any = {prefix + name: VALUES[name]}
    q, k, v = torch.randn(3, 1, 1, 5, 8)
    assert torch.equal(flex_attention(q, k, v, kernel_options=options), flex_attention(q, k, v))
    assert (
        explain_kernel_options(options) == f"{prefix}{name}={VALUES[name]!r}: {OPTIONS[name].here}"
    )


def test_no_options_are_explained_as_such() -> None:
    assert explain_kernel_options({}) == "no options"


@pytest.mark.parametrize("backend", ["AUTO", "TRITON", "FLASH", "TRITON_DECODE"])
def test_every_backend_of_torch_is_taken(backend: str) -> None:
    check_kernel_options({"BACKEND": backend})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"BLOK_M": 64}, "{'BLOCK_M': ...}"),
        ({"fwd_num_stage": 3}, "{'num_stages': ...}"),
        ({"xyz": 1}, "kernel_options without 'xyz'"),
        ({3: 1}, "no kernel option 3"),
        ({"OUTPUT_LOGSUMEXP": True}, "AuxRequest(lse=True)"),
        ({"BLOCK_M": 64.0}, "an int"),
        ({"BLOCK_M": True}, "an int"),
        ({"USE_TMA": 1}, "True or False"),
        ({"BACKEND": "CPU"}, "'AUTO', 'TRITON', 'FLASH', 'TRITON_DECODE'"),
        ({"BACKEND": "AUTO", "FORCE_USE_FLEX_ATTENTION": True}, "both set"),
    ],
)
def test_other_options_and_values_are_refused(options: Any, says: str) -> None:
    with pytest.raises(KernelOptionError) as caught:
        check_kernel_options(options)
    assert says in str(caught.value)


def test_options_are_a_dict() -> None:
    with pytest.raises(ArgumentError, match="a dict of options"):
        check_kernel_options([("BLOCK_M", 64)])
