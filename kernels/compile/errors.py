"""The chapter of the error catalogue for compiling kernels.

Texts only: the modules beside it decide when something is wrong.
"""

from __future__ import annotations

from flexfa4.errors import FlexFA4Error


class CompileError(FlexFA4Error, RuntimeError):
    """A kernel that could not be compiled."""


class KernelCompileError(CompileError):
    """The compiler refused a kernel with the user's mods in it; the cause is kept."""

    found = "the kernel could not be compiled for {arch}: {reason}{mods}"
    allowed = "what the mods say was accepted; this is a limit, or a bug, of the compiler"
    instead = 'backend="cpu", which runs every mod; a smaller mod; or a report with this text'


class KernelContractError(CompileError):
    """A compiled kernel that is not what its signature says."""

    found = "kernel {kernel}: {what} is {found_value}"
    allowed = "{expected}"
    instead = "{rewrite}"


class MissingCompilerPackageError(CompileError, ImportError):
    """CuTe-DSL is not installed, and no compiled kernel was found."""

    found = "a kernel for {arch} has to be compiled, and CuTe-DSL cannot be imported: {reason}"
    allowed = "kernels that were compiled before, from the cache, without it"
    instead = "pip install nvidia-cutlass-dsl==4.8.1"


class UnfittingCompilerError(CompileError):
    """A release of CuTe-DSL that does not have what compilation uses of it."""

    found = "CuTe-DSL {version} lacks {what}"
    allowed = "release 4.8.1"
    instead = "pip install nvidia-cutlass-dsl==4.8.1"


class ArchitectureError(CompileError, ValueError):
    """An architecture that no kernel is compiled for."""

    found = "kernels are not compiled for {arch!r}"
    allowed = "{names}"
    instead = 'arch="{nearest}"'


class TensorMapSpecError(CompileError, ValueError):
    """A declaration of a tensor map that the hardware has not."""

    found = "tensor map {name} has {found_value}"
    allowed = "{expected}"
    instead = "another box, or another layout in shared memory"


class DamagedCubinError(CompileError, ValueError):
    """Machine code that cannot be read."""

    found = "machine code cannot be read: {problem}"
    allowed = "an ELF file for a GPU, as the compiler writes it"
    instead = "compile it again"
