"""The compiled kernel of a plan: from memory, from disk, or traced and compiled now."""

from __future__ import annotations

import functools
from typing import Final

from flexfa4.counters import count
from flexfa4.kernels.cache.store import KERNELS
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.compile.compiler import compile_kernel, require_cute
from flexfa4.kernels.sm90.forward.plan import ForwardPlan

ARCH: Final = "sm_90a"


@functools.lru_cache(maxsize=4096)
def _note(plan: ForwardPlan) -> None:
    """Count a plan that this process has not seen."""
    count("plans")


def kernel_for(plan: ForwardPlan) -> CompiledKernel:
    """Return the kernel of a plan, kept in this process and on disk.

    Raises:
        KernelCompileError: the compiler refuses it.
        MissingCompilerPackageError: it has to be compiled, and CuTe-DSL is not installed.
    """
    _note(plan)
    return KERNELS.get(plan, ARCH, lambda: compile_plan(plan))


def compile_plan(plan: ForwardPlan) -> CompiledKernel:
    """Return the kernel of a plan, compiled now; takes no GPU.  Raises as `kernel_for`."""
    require_cute(ARCH)
    from flexfa4.kernels.compile.cute import example_of
    from flexfa4.kernels.sm90.forward.kernel import ForwardKernel

    signature, maps = plan.signature, len(plan.maps)
    example = example_of(signature)
    return compile_kernel(
        ForwardKernel(plan),
        signature,
        arch=ARCH,
        example=(tuple(example[:maps]), tuple(example[maps:])),
        mods=[graph for _, graph, _ in plan.graphs],
    )
