"""`CompiledKernel`: what compiling makes, and all that launching needs.

It holds text, bytes and numbers only, so that it can be written to a file and read where CuTe-DSL
is not installed (`flexfa4.kernels.cache.entry`).  It does not load or launch itself
(`flexfa4.kernels.launch`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from flexfa4.kernels.compile.signature import Signature

Dim3: TypeAlias = tuple[int, int, int]  # x, y, z


@dataclass(frozen=True)
class Resources:
    """What a kernel uses of a multiprocessor.

    Attributes:
        registers: of each thread when the kernel starts.
        register_budgets: what its warp roles ask for by setmaxnreg, in the order of the text; empty
            where every warp keeps what it starts with.
        spills: bytes that each thread spills to local memory.
        stack_frame: bytes of local memory of each thread, spills included.
        smem_bytes: dynamic shared memory of each block.
    """

    registers: int
    register_budgets: tuple[int, ...]
    spills: int
    stack_frame: int
    smem_bytes: int


@dataclass(frozen=True)
class Versions:
    """What compiled a kernel.

    Attributes:
        dsl: release of CuTe-DSL.
        tools: release of the compiler behind it, from PTX to machine code.
    """

    dsl: str
    tools: str


@dataclass(frozen=True, eq=False)
class CompiledKernel:
    """A kernel for one architecture; compared by identity.

    Attributes:
        name: of its entry.
        arch: such as ``sm_90a``.
        signature: its parameters in order.
        block: threads along x, y, z.
        cluster: blocks of a cluster along x, y, z.
        resources: registers, spills and shared memory.
        versions: what compiled it.
        ptx: its text.
        cubin: its machine code.
        programmatic: it waits itself for the launch before it (programmatic dependent launch).
    """

    name: str
    arch: str
    signature: Signature
    block: Dim3
    cluster: Dim3
    resources: Resources
    versions: Versions
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)
    programmatic: bool = False

    @property
    def registers(self) -> int:
        """Registers of each thread when the kernel starts."""
        return self.resources.registers

    @property
    def spills(self) -> int:
        """Bytes that each thread spills to local memory."""
        return self.resources.spills

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of each block, in bytes."""
        return self.resources.smem_bytes
