"""`compile_kernel`: a CuTe-DSL object becomes a `CompiledKernel`, checked against its signature.

A kernel is an object that is called with one argument for each parameter of its signature, and
launches one ``@cute.kernel`` with what the signature says, in that order.  Tensor maps arrive as
pointers, of which the object makes its copy atoms; the sizes and strides that it makes them with do
not matter, for launches of ours encode maps by themselves::

    signature = (TensorMap("x", "bf16", box=(64, 128), swizzle=128), Pointer("out"), Int32("rows"))
    kernel = compile_kernel(Copy(), signature, arch="sm_90a")

What is checked here would otherwise show on a device as wrong numbers: the order and sizes of the
parameters, in the PTX and in the machine code; box, swizzle and element type of every tensor map;
constant sizes of the launch; the limit of shared memory.

What this module deliberately does not do: keep kernels (`flexfa4.kernels.cache`).  It loads cutlass
when the first kernel is compiled.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from flexfa4.errors import FlexFA4Error
from flexfa4.frontend.ir import Graph
from flexfa4.kernels.cache.keys import RELEASE, compiler_release
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel, Dim3, Resources, Versions
from flexfa4.kernels.compile.cubin import KernelInfo, read_cubin
from flexfa4.kernels.compile.errors import (
    ArchitectureError,
    KernelCompileError,
    KernelContractError,
    MissingCompilerPackageError,
    UnfittingCompilerError,
)
from flexfa4.kernels.compile.ptx_entry import Entry, entries
from flexfa4.kernels.compile.signature import Signature, TensorMap
from flexfa4.kernels.compile.traced import Trace, TracedMap, described

if TYPE_CHECKING:
    from flexfa4.kernels.compile.cute import Compilation

ARCHITECTURES: Final = ("sm_90a", "sm_100a", "sm_103a")
MAX_SMEM: Final = 227 * 1024  # bytes of a block, on each of them

_SPILLS: Final = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")
_SHOWN_LINES: Final = 12  # of what the compiler says


def compile_kernel(
    jit: Any,
    signature: Signature,
    *,
    arch: str,
    example: Sequence[Any] | None = None,
    mods: Sequence[Graph] = (),
    programmatic: bool = False,
    ptxas_options: str = "",
) -> CompiledKernel:
    """Compile a kernel for an architecture; takes no GPU.

    Args:
        jit: an object whose ``@cute.jit`` call launches one kernel.
        signature: the parameters of that kernel.
        arch: one of `ARCHITECTURES`.
        example: arguments to call the object with, where they are not one for each parameter.
        mods: the user's graphs in the kernel, for messages.
        programmatic: the kernel waits itself for the launch before it.
        ptxas_options: for the compiler of PTX.

    Raises:
        ArchitectureError: for another architecture.
        MissingCompilerPackageError: CuTe-DSL is not installed.
        KernelCompileError: CuTe-DSL refuses the kernel; its own exception is the cause.
        KernelContractError: the kernel is not what its signature says.
        UnfittingCompilerError: this release of CuTe-DSL works in another way.
        FlexFA4Error: what the object raises itself passes through.
    """
    if arch not in ARCHITECTURES:
        raise ArchitectureError(
            arch=arch, names=", ".join(ARCHITECTURES), nearest=_nearest_architecture(arch)
        )
    compilation = _compiled(jit, signature, arch, example, mods, ptxas_options)
    entry = _only_entry(compilation.ptx, arch)
    info = read_cubin(compilation.cubin)[entry.name]
    for found, what, expected, rewrite in _broken_promises(signature, entry, info, compilation):
        raise KernelContractError(
            kernel=entry.name, what=what, found_value=found, expected=expected, rewrite=rewrite
        )
    assert compilation.smem_bytes is not None and entry.block is not None
    return CompiledKernel(
        name=entry.name,
        arch=arch,
        signature=signature,
        block=entry.block,
        cluster=_cluster(compilation.trace),
        resources=Resources(
            info.registers,
            entry.budgets,
            _spills(compilation),
            info.stack_frame,
            compilation.smem_bytes,
        ),
        versions=Versions(compilation.release, entry.tools),
        ptx=compilation.ptx,
        cubin=compilation.cubin,
        programmatic=programmatic,
    )


def require_cute(arch: str) -> None:
    """Load CuTe-DSL; before modules of kernels are imported, whose first line is that import.

    Raises:
        MissingCompilerPackageError: it is not installed.
    """
    try:
        importlib.import_module("flexfa4.kernels.compile.cute")
    except ImportError as error:
        raise MissingCompilerPackageError(arch=arch, reason=error) from error


def _spills(compilation: Compilation) -> int:
    """Return the bytes that ptxas said a thread spills, stores and loads together."""
    said = _SPILLS.search(compilation.report)
    if said is None:
        raise UnfittingCompilerError(version=compilation.release, what="ptxas's count of spills")
    return int(said[1]) + int(said[2])


def _nearest_architecture(arch: str) -> str:
    """Return the architecture that was meant, most likely."""
    return next((name for name in ARCHITECTURES if arch in (name[:-1], name[3:-1])), "sm_90a")


def _compiled(
    jit: Any,
    signature: Signature,
    arch: str,
    example: Sequence[Any] | None,
    mods: Sequence[Graph],
    ptxas_options: str,
) -> Compilation:
    """Compile, and make one error of ours of whatever goes wrong."""
    require_cute(arch)
    from flexfa4.kernels.compile.cute import compile_with_cute, example_of

    try:
        arguments = example_of(signature) if example is None else example
        return compile_with_cute(jit, arguments, arch, ptxas_options)
    except FlexFA4Error:
        raise  # a refusal of ours, or of the emission of a mod, says more
    except Exception as error:
        release = compiler_release()
        if release != RELEASE:  # which is what it fails for, most likely
            lacks = f"what kernels are compiled by, or has it in another way: {_reason(error)}"
            raise UnfittingCompilerError(version=release, what=lacks) from error
        raise KernelCompileError(arch=arch, reason=_reason(error), mods=_shown(mods)) from error


def _reason(error: Exception) -> str:
    """Return what the compiler says, without colours, and its first lines only."""
    said = getattr(error, "ptxas_error", "") or getattr(error, "nvvm_error", "") or str(error)
    lines = [line for line in _COLOURS.sub("", said).splitlines() if line.strip()]
    shown = lines[:_SHOWN_LINES] + ["..."] * (len(lines) > _SHOWN_LINES)
    return f"{type(error).__name__}: " + "\n    ".join(shown)


def _shown(mods: Sequence[Graph]) -> str:
    return "".join(f"\n  {mod.kind}:   " + str(mod).replace("\n", "\n    ") for mod in mods)


# ---- checks -------------------------------------------------------------------------------------


def _only_entry(ptx: str, arch: str) -> Entry:
    found = entries(ptx)
    if len(found) != 1:
        raise KernelContractError(
            kernel=", ".join(entry.name for entry in found) or "without a name",
            what="the number of kernels that are launched",
            found_value=len(found),
            expected="one kernel in a compilation",
            rewrite="a compilation for each kernel",
        )
    assert found[0].target == arch
    return found[0]


def _cluster(trace: Trace) -> Dim3:
    cluster = trace.cluster()
    assert cluster is not None
    return cluster


Broken = tuple[object, str, str, str]  # what was found, of what, what is allowed, what to write


def _broken_promises(
    signature: Signature, entry: Entry, info: KernelInfo, compilation: Compilation
) -> Iterator[Broken]:
    """Yield what differs between a signature and what was compiled; the first is reported."""
    yield from _broken_parameters(signature, entry)
    wanted = [parameter.nbytes for parameter in signature]
    if [nbytes for _, nbytes in info.parameters] != wanted:
        yield (
            [nbytes for _, nbytes in info.parameters],
            "the sizes of its parameters in machine code",
            f"{wanted}, as in its PTX",
            "the compiler that its text is from",
        )
    for index, parameter in enumerate(signature):
        if isinstance(parameter, TensorMap):
            yield from _broken_map(parameter, compilation.trace.tensor_map(index))
    constant = "constants, known when it is compiled"
    for name, size in (("block", entry.block), ("cluster", compilation.trace.cluster())):
        if size is None:
            yield "a value of the call", f"the {name} of its launch", constant, f"{name}=[x, y, z]"
    smem = compilation.smem_bytes
    if smem is None:
        yield "a value of the call", "its shared memory", constant, "launch(...) without smem="
    elif compilation.lacks_smem:
        yield (
            f"{smem} bytes",
            "its shared memory",
            "as much as it allocates, or more",
            "launch(...) without smem=, which takes what is allocated",
        )
    elif smem > MAX_SMEM:
        limit = f"at most {MAX_SMEM} bytes"
        yield f"{smem} bytes", "its shared memory", limit, "fewer stages, or a smaller tile"


def _broken_parameters(signature: Signature, entry: Entry) -> Iterator[Broken]:
    rewrite = "the signature in the order of the kernel's parameters, one for each"
    if len(entry.parameters) != len(signature):
        declared = ", ".join(f"{p.type}[{p.nbytes}]" for p in entry.parameters) or "none"
        names = ", ".join(f"{type(p).__name__}({p.name})" for p in signature) or "none"
        yield f"{len(entry.parameters)} ({declared})", "the number of parameters", names, rewrite
        return
    for index, (found, parameter) in enumerate(zip(entry.parameters, signature, strict=True)):
        if (found.type, found.nbytes) != (parameter.ptx, parameter.nbytes):
            yield (
                f"{found.type} of {found.nbytes} bytes",
                f"parameter {index}",
                f"{parameter.ptx} of {parameter.nbytes} bytes, for the signature has"
                f" {type(parameter).__name__} {parameter.name}",
                rewrite,
            )


def _broken_map(declared: TensorMap, traced: TracedMap | None) -> Iterator[Broken]:
    fits = (
        traced is not None
        and (traced.element, traced.swizzle) == (declared.element, declared.swizzle)
        and declared.box in (traced.box, traced.by_mode)
    )
    if not fits:
        wanted = described(declared.element, declared.box, declared.swizzle)
        yield (
            described(traced.element, traced.box, traced.swizzle) if traced else "no tensor map",
            f"tensor map {declared.name}",
            f"{wanted}, as its signature says",
            "the box and the swizzle of the layout in shared memory",
        )
