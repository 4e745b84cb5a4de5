"""Compiling where CuTe-DSL is not installed; with it, see tests/compile/test_kernel_compiler.py."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import pytest

from flexfa4.kernels.compile.compiler import compile_kernel
from flexfa4.kernels.compile.errors import (
    ArchitectureError,
    MissingCompilerPackageError,
    UnfittingCompilerError,
)
from tests.compiled_kernels import EVERY_KIND

ROOT = Path(__file__).parents[4]


def test_without_the_compiler_the_message_says_how_to_get_it() -> None:
    missing = {"cutlass": None, "flexfa4.kernels.compile.cute": None}
    with (
        mock.patch.dict(sys.modules, missing),
        pytest.raises(MissingCompilerPackageError) as caught,
    ):
        compile_kernel(None, EVERY_KIND, arch="sm_90a")
    assert "a kernel for sm_90a has to be compiled" in str(caught.value)
    assert isinstance(caught.value.__cause__, ImportError)


@pytest.mark.parametrize(
    ("arch", "nearest"),
    [("sm_90", "sm_90a"), ("sm_100", "sm_100a"), ("103", "sm_103a"), ("sm_80", "sm_90a")],
)
def test_an_unknown_architecture_is_refused_with_the_nearest_one(arch: str, nearest: str) -> None:
    with pytest.raises(ArchitectureError, match=f'arch="{nearest}"'):
        compile_kernel(None, EVERY_KIND, arch=arch)


def test_messages_name_the_release_that_is_tested() -> None:
    wanted = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for error in (MissingCompilerPackageError, UnfittingCompilerError):
        assert error.instead.removeprefix("pip install ") in wanted
