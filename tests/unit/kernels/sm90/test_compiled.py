"""The compiled kernel of a plan where CuTe-DSL is absent; with it, tests/compile has the rest."""

from __future__ import annotations

import sys
from unittest import mock

import pytest

from flexfa4.ahead_of_time import Call, plan_of
from flexfa4.kernels.compile.errors import MissingCompilerPackageError
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.sm90.forward.compiled import ARCH, compile_plan


def test_without_the_compiler_a_kernel_that_has_to_be_compiled_says_what_is_missing() -> None:
    plan = plan_of(None, None, Call(), ARCH)
    assert not isinstance(plan, Refusal)
    kernel = "flexfa4.kernels.sm90.forward.kernel"  # imports cutlass in its first lines
    missing = dict.fromkeys(("cutlass", "flexfa4.kernels.compile.cute", kernel))
    with mock.patch.dict(sys.modules, missing), pytest.raises(MissingCompilerPackageError):
        compile_plan(plan)
