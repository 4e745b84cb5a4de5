"""`TablePlan`: all that the code of the kernel that makes a table depends on, and its signature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexfa4.frontend.ir import Graph
from flexfa4.kernels.blocks.walk import WalkPlan
from flexfa4.kernels.cache.store import KERNELS
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.compile.compiler import compile_kernel, require_cute
from flexfa4.kernels.compile.signature import Int32, Parameter, Pointer, Signature
from flexfa4.kernels.emit.captures import CapturePlan
from flexfa4.kernels.forward.plan import capture_parameters

NUMBERS: Final = (
    "sequences", "q_total", "kv_total", "heads", "kv_heads", "item_heads", "section_heads",
    "least", "most", "group_keys", "levels_log2",
)  # fmt: skip
"""Numbers of a call: ``item_heads`` have items (key heads, where query heads are packed),
``section_heads`` of them make a section; the table has ``least`` to ``most`` entries; a group has
about ``group_keys`` keys; its entries are sorted by ``2**levels_log2`` levels."""


_NOTHING: Final = CapturePlan()


@dataclass(frozen=True)
class TablePlan:
    """See the module.

    Attributes:
        walk: how tiles of keys are found.
        captures: what is known of the captures of its interval.
        wide: whether cumulative lengths of queries, and of keys, are of 64 bits.
    """

    walk: WalkPlan
    captures: CapturePlan = _NOTHING
    wide: tuple[bool, bool] = (False, False)

    @property
    def graph(self) -> Graph | None:
        """The graph of the interval."""
        return None if self.walk.interval is None else self.walk.interval.graph

    @property
    def scalars(self) -> tuple[Parameter, ...]:
        """The parameters but for captures."""
        pointers = ("q_ends", "kv_ends", "table")
        return (*map(Pointer, pointers), *map(Int32, NUMBERS))

    @property
    def signature(self) -> Signature:
        """All parameters of the kernel, in order."""
        graphs = [] if self.graph is None else [("limit", self.graph, self.captures)]
        return (*self.scalars, *capture_parameters(graphs))


def kernel_for(plan: TablePlan, arch: str) -> CompiledKernel:
    """Return the kernel of a plan, kept in this process and on disk.

    Raises:
        KernelCompileError: the compiler refuses it.
        MissingCompilerPackageError: it has to be compiled, and CuTe-DSL is not installed.
    """
    return KERNELS.get(plan, arch, lambda: compile_plan(plan, arch))


def compile_plan(plan: TablePlan, arch: str) -> CompiledKernel:
    """Return the kernel of a plan, compiled now; takes no GPU.  Raises as `kernel_for`."""
    require_cute(arch)
    from flexfa4.kernels.compile.cute import example_of
    from flexfa4.kernels.varlen.kernel import TableKernel

    graph = plan.graph
    return compile_kernel(
        TableKernel(plan),
        plan.signature,
        arch=arch,
        example=(example_of(plan.signature),),
        mods=[] if graph is None else [graph],
    )
