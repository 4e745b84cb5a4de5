"""The compiled kernel of a plan: from memory, from disk, or traced and compiled now."""

from __future__ import annotations

import functools

from flexfa4.counters import count
from flexfa4.kernels.cache.store import KERNELS
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.forward.architecture import AnyArchitecture
from flexfa4.kernels.forward.plan import VariantPlan


@functools.lru_cache(maxsize=4096)
def _note(plan: VariantPlan) -> None:
    """Count a plan that this process has not seen."""
    count("plans")


def kernel_for(architecture: AnyArchitecture, plan: VariantPlan, name: str) -> CompiledKernel:
    """Return the kernel of a plan, kept in this process and on disk.

    Args:
        architecture: that the plan is for.
        plan: all that its code depends on.
        name: what is compiled for, such as ``sm_90a``.

    Raises:
        KernelCompileError: the compiler refuses it.
        MissingCompilerPackageError: it has to be compiled, and CuTe-DSL is not installed.
    """
    _note(plan)
    return KERNELS.get(plan, name, lambda: compile_plan(architecture, plan, name))


def compile_plan(architecture: AnyArchitecture, plan: VariantPlan, name: str) -> CompiledKernel:
    """Return the kernel of a plan, compiled now; takes no GPU.  See `kernel_for`."""
    from flexfa4.kernels.compile.compiler import compile_kernel, require_cute

    require_cute(name)
    from flexfa4.kernels.compile.cute import example_of

    signature, maps = plan.signature, len(plan.maps)
    example = example_of(signature)
    return compile_kernel(
        architecture.kernel(plan),
        signature,
        arch=name,
        example=(tuple(example[:maps]), tuple(example[maps:])),
        mods=[graph for _, graph, _ in plan.graphs],
    )
