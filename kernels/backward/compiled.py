"""The compiled kernels of a backward pass: from memory, from disk, or traced and compiled now."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from flexfa4.counters import count
from flexfa4.kernels.backward.architecture import BackwardKernels
from flexfa4.kernels.backward.call import PlannedBackward
from flexfa4.kernels.backward.plan import GradientPlan, PostprocessPlan, PreprocessPlan
from flexfa4.kernels.cache.store import KERNELS
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel

Plan = GradientPlan | PreprocessPlan | PostprocessPlan


class Kernels(NamedTuple):
    """The kernels in the order in which they run; some plans have no last one."""

    preprocess: CompiledKernel
    main: CompiledKernel
    postprocess: CompiledKernel | None


def kernels_for(call: PlannedBackward, name: str) -> Kernels:
    """Return the kernels of a call, kept in this process and on disk.

    Args:
        call: the call.
        name: what is compiled for, such as ``sm_90a``.

    Raises:
        KernelCompileError: the compiler refuses one.
        MissingCompilerPackageError: one has to be compiled, and CuTe-DSL is not installed.
    """
    _note(call.main)
    make = functools.partial(compile_plan, call.kernels, name)

    def kept(plan: Plan) -> CompiledKernel:
        return KERNELS.get(plan, name, functools.partial(make, plan))

    after = None if call.postprocess is None else kept(call.postprocess)
    return Kernels(kept(call.preprocess), kept(call.main), after)


@functools.lru_cache(maxsize=4096)
def _note(plan: GradientPlan) -> None:
    """Count a plan that this process has not seen."""
    count("plans")


def compile_plan(kernels: BackwardKernels, name: str, plan: Plan) -> CompiledKernel:
    """Return the kernel of a plan, compiled now; takes no GPU.  See `kernels_for`."""
    from flexfa4.kernels.compile.compiler import compile_kernel, require_cute

    require_cute(name)
    from flexfa4.kernels.compile.cute import example_of

    signature = plan.signature
    maps = 0 if isinstance(plan, PreprocessPlan) else len(plan.maps)
    example = example_of(signature)
    given = (tuple(example[:maps]), tuple(example[maps:])) if maps else (tuple(example),)
    mods = [graph for _, graph, _ in plan.graphs] if isinstance(plan, GradientPlan) else []
    return compile_kernel(_traced(kernels, plan), signature, arch=name, example=given, mods=mods)


def _traced(kernels: BackwardKernels, plan: Plan) -> Any:
    """Return what CuTe-DSL traces."""
    if isinstance(plan, GradientPlan):
        return kernels.main(plan)
    if isinstance(plan, PostprocessPlan):
        return kernels.postprocess(plan)
    from flexfa4.kernels.backward.preprocess import PreprocessKernel

    return PreprocessKernel(plan)
