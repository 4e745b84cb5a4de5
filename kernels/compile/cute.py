"""One compilation by CuTe-DSL: without a GPU, a driver, files left behind or settings changed.

CuTe-DSL is a singleton with settings from environment variables, some of which other libraries set
for themselves.  For the time of a compilation those that change what is compiled have fixed values,
so that the plan of a kernel says all about it; then they are as before.  One compilation runs at a
time.

What this module deliberately does not do: check what came out, or word what went wrong
(`flexfa4.kernels.compile.compiler`).  It loads cutlass, so it is imported inside of functions only,
behind `require_cute`.
"""

from __future__ import annotations

import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cutlass
from cutlass import cute
from cutlass.base_dsl.ast_helpers import DSLOptimizationWarning
from cutlass.base_dsl.compiler import (
    DumpDir,
    ExtraCompilerOpts,
    GPUArch,
    KeepCUBIN,
    KeepPTX,
    PtxasOptions,
    RemarkOutput,
)
from cutlass.cutlass_dsl import CuTeDSL

from flexfa4.kernels.compile.casters import quick_casters
from flexfa4.kernels.compile.errors import UnfittingCompilerError
from flexfa4.kernels.compile.signature import (
    Float32,
    Int32,
    Int64,
    Parameter,
    Pointer,
    Signature,
    TensorMap,
)
from flexfa4.kernels.compile.traced import Trace, dynamic_shared_memory, lacks_shared_memory

RELEASE: Final = str(cutlass.__version__)
ALIGNMENT: Final = 16  # bytes, of the pointers that kernels are traced with

_LOCK: Final = threading.RLock()
# settings of CuTe-DSL that change what is compiled, and what they have to be
_SETTINGS: Final = {
    "enable_tvm_ffi": False,
    "enable_assertions": False,
    "lineinfo": False,
    "compiler_opt": "",
    "compiler_backend": "legacy",
    "dryrun": False,
    "loc_tracebacks": 0,
}
_ELEMENTS: Final = {
    "u8": cutlass.Uint8,
    "u32": cutlass.Uint32,
    "f16": cutlass.Float16,
    "f32": cutlass.Float32,
    "bf16": cutlass.BFloat16,
}


@dataclass(frozen=True)
class Compilation:
    """What CuTe-DSL made.

    Attributes:
        ptx: text of the kernel.
        cubin: its machine code.
        smem_bytes: dynamic shared memory that it is launched with; None where it is not constant.
        lacks_smem: that is less than it allocates.
        trace: what was noted while it was traced.
        report: what ptxas said of registers and spills.
        release: of CuTe-DSL.
    """

    ptx: str
    cubin: bytes
    smem_bytes: int | None
    lacks_smem: bool
    trace: Trace
    report: str
    release: str


def compile_with_cute(
    jit: Any, example: Sequence[Any], arch: str, ptxas_options: str = ""
) -> Compilation:
    """Compile an object whose ``@cute.jit`` call launches a kernel.

    Args:
        jit: the object.
        example: arguments to trace it with.
        arch: such as ``sm_90a``.
        ptxas_options: for the compiler of PTX, behind its own.

    Raises:
        UnfittingCompilerError: this release of CuTe-DSL works in another way.
        Exception: whatever the object, or CuTe-DSL, raises.
    """
    trace = Trace()
    within = tempfile.TemporaryDirectory(prefix="flexfa4-")
    with _LOCK, _settings(arch), quick_casters(), within as folder:
        remarks = Path(folder) / "remarks"
        options: list[Any] = [
            GPUArch(arch),
            KeepPTX(True),
            KeepCUBIN(True),
            DumpDir(folder),
            # what ptxas says of spills; by RemarkFilter every operation would be traced with its
            # place in the source, which takes a quarter of the time
            ExtraCompilerOpts("diagnostic=ptx"),
            RemarkOutput(str(remarks)),
            PtxasOptions(f"-v {ptxas_options}".strip()),
        ]
        with warnings.catch_warnings():  # of loops that are unrolled as they are meant to be
            warnings.simplefilter("ignore", DSLOptimizationWarning)
            compiled = cute.compile[tuple(options)](
                jit, *example, no_jit_engine=True, trace_finalize_hooks=trace.note
            )
        ptx, cubin, lowered = compiled.__ptx__, compiled.__cubin__, compiled.ir_module
        report = remarks.read_text(encoding="utf-8") if remarks.exists() else ""
        if not isinstance(ptx, str) or not isinstance(cubin, bytes) or lowered is None:
            raise UnfittingCompilerError(version=RELEASE, what="the text of a compiled kernel")
        return Compilation(
            ptx,
            cubin,
            dynamic_shared_memory(lowered),
            lacks_shared_memory(lowered),
            trace,
            report,
            RELEASE,
        )


def example_of(signature: Signature) -> tuple[Any, ...]:
    """Return an argument for each parameter to trace with; for a tensor map a pointer."""
    return tuple(map(_example, signature))


def _example(parameter: Parameter) -> Any:
    if isinstance(parameter, TensorMap):
        return example_pointer(_ELEMENTS[parameter.element])
    if isinstance(parameter, Pointer):
        return example_pointer(cutlass.Uint8)
    kinds = {Int32: cutlass.Int32, Int64: cutlass.Int64, Float32: cutlass.Float32}
    return kinds[type(parameter)](ALIGNMENT)


def example_pointer(element: Any) -> Any:
    """Return a pointer to global memory to trace with; where it points is not looked at."""
    return cute.runtime.make_ptr(
        element, ALIGNMENT, cute.AddressSpace.gmem, assumed_align=ALIGNMENT
    )


@contextmanager
def _settings(arch: str) -> Iterator[None]:
    """Set CuTe-DSL's settings for a while; an architecture that was not asked for stays so."""
    settings = CuTeDSL._get_dsl().envar
    fixed: dict[str, Any] = dict(_SETTINGS)
    try:
        if settings._arch is None:  # reading it would ask the driver, where there may be none
            fixed["_arch"] = arch
        before = {name: getattr(settings, name) for name in fixed}
    except AttributeError as error:
        raise UnfittingCompilerError(version=RELEASE, what=f"the setting {error.name}") from error
    for name, value in fixed.items():
        setattr(settings, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(settings, name, value)
