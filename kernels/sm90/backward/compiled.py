"""The compiled kernels of a backward pass: from memory, from disk, or traced and compiled now."""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple

from flexfa4.counters import count
from flexfa4.kernels.cache.store import KERNELS
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.compile.compiler import compile_kernel, require_cute
from flexfa4.kernels.sm90.backward.call import PlannedBackward
from flexfa4.kernels.sm90.backward.plan import BackwardPlan, PostprocessPlan, PreprocessPlan

ARCH: Final = "sm_90a"

Plan = BackwardPlan | PreprocessPlan | PostprocessPlan


class Kernels(NamedTuple):
    """The kernels in the order in which they run."""

    preprocess: CompiledKernel
    main: CompiledKernel
    postprocess: CompiledKernel


def kernels_for(call: PlannedBackward) -> Kernels:
    """Return the kernels of a call, kept in this process and on disk.

    Raises:
        KernelCompileError: the compiler refuses one.
        MissingCompilerPackageError: one has to be compiled, and CuTe-DSL is not installed.
    """
    _note(call.main)
    plans = (call.preprocess, call.main, call.postprocess)
    return Kernels(*(KERNELS.get(p, ARCH, functools.partial(compile_plan, p)) for p in plans))


@functools.lru_cache(maxsize=4096)
def _note(plan: BackwardPlan) -> None:
    """Count a plan that this process has not seen."""
    count("plans")


def compile_plan(plan: Plan) -> CompiledKernel:
    """Return the kernel of a plan, compiled now; takes no GPU.  Raises as `kernels_for`."""
    require_cute(ARCH)
    from flexfa4.kernels.compile.cute import example_of

    signature = plan.signature
    maps = 0 if isinstance(plan, PreprocessPlan) else len(plan.maps)
    example = example_of(signature)
    given = (tuple(example[:maps]), tuple(example[maps:])) if maps else (tuple(example),)
    mods = [graph for _, graph, _ in plan.graphs] if isinstance(plan, BackwardPlan) else []
    return compile_kernel(_traced(plan), signature, arch=ARCH, example=given, mods=mods)


def _traced(plan: Plan) -> Any:
    """Return what CuTe-DSL traces."""
    from flexfa4.kernels.sm90.backward.kernel import BackwardKernel
    from flexfa4.kernels.sm90.backward.postprocess import PostprocessKernel
    from flexfa4.kernels.sm90.backward.preprocess import PreprocessKernel

    if isinstance(plan, BackwardPlan):
        return BackwardKernel(plan)
    return PreprocessKernel(plan) if isinstance(plan, PreprocessPlan) else PostprocessKernel(plan)
