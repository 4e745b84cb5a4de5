"""`flexfa4.flex` as a whole: names and signatures are torch's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from torch.nn.attention import flex_attention as torch_flex

from flexfa4 import flex


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults; a function as a default stands by its name."""
    return [
        (p.name, p.kind, getattr(p.default, "__name__", p.default))
        for p in inspect.signature(function).parameters.values()
    ]


def test_every_public_name_of_torch_is_there() -> None:
    assert set(torch_flex.__all__) <= set(flex.__all__)


@pytest.mark.parametrize("name", [n for n in torch_flex.__all__ if n != "FlexKernelOptions"])
def test_parameters_are_torchs(name: str) -> None:
    assert parameters(getattr(flex, name)) == parameters(getattr(torch_flex, name))


@pytest.mark.parametrize(
    "method",
    ["from_kv_blocks", "as_tuple", "numel", "sparsity", "to_dense", "to_string", "to", "_adjust"],
)
def test_parameters_of_methods_are_torchs(method: str) -> None:
    ours, theirs = (getattr(kind, method) for kind in (flex.BlockMask, torch_flex.BlockMask))
    assert parameters(ours) == parameters(theirs)


def test_kernel_options_are_torchs() -> None:
    theirs = torch_flex.FlexKernelOptions.__annotations__
    assert set(flex.FlexKernelOptions.__annotations__) == set(theirs)


@pytest.mark.parametrize("name", ["AuxRequest", "AuxOutput"])
def test_requests_and_outputs_have_torchs_fields_and_defaults(name: str) -> None:
    assert getattr(flex, name)._fields == getattr(torch_flex, name)._fields
    assert getattr(flex, name)() == getattr(torch_flex, name)()
