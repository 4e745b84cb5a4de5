"""The compiled kernel of a plan where CuTe-DSL is absent; with it, tests/compile has the rest."""

from __future__ import annotations

import sys
from unittest import mock

import pytest

from flexfa4.ahead_of_time import Call, plan_of
from flexfa4.kernels.architectures import BACKENDS, named
from flexfa4.kernels.compile.errors import MissingCompilerPackageError
from flexfa4.kernels.forward.compiled import compile_plan
from flexfa4.kernels.refusal import Refusal


@pytest.mark.parametrize("arch", BACKENDS)
def test_without_the_compiler_a_kernel_that_has_to_be_compiled_says_what_is_missing(
    arch: str,
) -> None:
    plan = plan_of(None, None, Call(), arch)
    assert not isinstance(plan, Refusal)
    kernel = f"flexfa4.kernels.{BACKENDS[arch]}.forward.kernel"  # imports cutlass
    missing = dict.fromkeys(("cutlass", "flexfa4.kernels.compile.cute", kernel))
    with mock.patch.dict(sys.modules, missing), pytest.raises(MissingCompilerPackageError):
        compile_plan(named(arch), plan, arch)
