"""What CuTe-DSL traced: how a kernel is launched, and the tensor maps among its parameters.

CuTe-DSL builds a module with the kernel and the host code that launches it.  Our own code launches
instead, so what host code would have known is read from the module: sizes of block and cluster,
shared memory, and for each tensor map its element type, box and swizzle, which are held against
the signature.

The module is looked at twice: `note` while it is in CuTe-DSL's own dialects, as a hook that only
copies text, since CuTe-DSL reports what a hook raises as a bug of its own; and
`dynamic_shared_memory` when it is lowered to LLVM's, where sizes that the compiler chose are
constants.  Nothing of cutlass is imported: modules are objects that are handed in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from flexfa4.kernels.compile.compiled_kernel import Dim3
from flexfa4.kernels.compile.signature import ELEMENTS

_FACTS: Final = "cutlass_launch_facts"
_DIMENSIONS: Final = r"{name} = array<i64: (\d+), (\d+), (\d+)>"
_MAP: Final = re.compile(
    r'non_exec_tiled_tma_\w+<.*tma_gbasis = <"(?P<extents>[\d,()]+):(?P<axes>[\d,()@]+)">'
    r".*tma_format = (?P<format>\w+)"
)
_SWIZZLE: Final = re.compile(r"S<(\d),4,3>")
_CONFIG: Final = "!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>"
_TOO_LITTLE: Final = b"Error: shared memory usage in"
_KERNEL: Final = "cuda.kernel"
_SHARED_MEMORY: Final = [0, 2]  # where a launch configuration holds it


@dataclass(frozen=True)
class TracedMap:
    """A tensor map as CuTe-DSL's host code would encode it.

    Attributes:
        element: a key of `signature.ELEMENTS`, or CuTe-DSL's word for another type.
        box: elements along each axis, in the order of the map, as a tile lies in shared memory.
        by_mode: the same, in the order of the modes of the tensor that the map was made of: for
            kernels that use the copy atom as a carrier, and name coordinates themselves.
        swizzle: bytes of a row of the swizzled order.
    """

    element: str
    box: tuple[int, ...]
    by_mode: tuple[int, ...]
    swizzle: int


@dataclass
class Trace:
    """What was noted of one compilation.

    Attributes:
        kernels: name of each kernel, and its launch facts as text.
        types: types of the kernel's parameters as text.
        layouts: for each parameter the layout in shared memory that its tensor map was made for;
            empty for other parameters.
    """

    kernels: list[tuple[str, str]] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    layouts: list[str] = field(default_factory=list)

    def note(self, _dsl: Any, module: Any, _name: str) -> None:
        """Note what a traced module has; a hook of CuTe-DSL's ``cute.compile``."""
        for op in _walk(module.operation):
            if op.name == _KERNEL:
                attributes = op.attributes  # of cutlass: like a dict, but without get()
                facts = str(attributes[_FACTS]) if _FACTS in attributes else ""
                self.kernels.append((_symbol(attributes["sym_name"]), facts))
                self.types = [str(argument.type) for argument in op.regions[0].blocks[0].arguments]
            elif op.name == "cuda.launch_ex":
                self.layouts = [_layout(operand) for operand in list(op.operands)[1:]]

    def cluster(self) -> Dim3 | None:
        """Return blocks of a cluster along x, y, z; None where that is not constant."""
        facts = self.kernels[-1][1]
        if "cluster_launch = false" in facts:
            return (1, 1, 1)
        match = re.search(_DIMENSIONS.format(name="exact_cluster_dim"), facts)
        return (int(match[1]), int(match[2]), int(match[3])) if match else None

    def tensor_map(self, index: int) -> TracedMap | None:
        """Return the tensor map that a parameter is; None where it is none."""
        match = _MAP.search(self.types[index])
        if match is None:
            return None
        names = {element.cute: name for name, element in ELEMENTS.items()}
        swizzle = _SWIZZLE.search(self.layouts[index])
        box = tuple(map(int, re.findall(r"\d+", match["extents"])))
        modes = [int(mode) for mode in re.findall(r"@(\d+)", match["axes"])]
        return TracedMap(
            names.get(match["format"], match["format"]),
            box,
            tuple(extent for _, extent in sorted(zip(modes, box, strict=True))),
            16 << int(swizzle[1]) if swizzle and int(swizzle[1]) else 0,
        )


def dynamic_shared_memory(lowered: Any) -> int | None:
    """Return the bytes of dynamic shared memory that host code launches with.

    Args:
        lowered: the module in LLVM's dialect.

    Returns:
        The number; None where it is not one constant.
    """
    found = {
        _constant(op.operands[0])
        for op in _walk(lowered.operation)
        if op.name == "llvm.store" and _is_shared_memory(_producer(op.operands[1]))
    }
    return found.pop() if len(found) == 1 else None


def lacks_shared_memory(lowered: Any) -> bool:
    """Return whether a launch has less dynamic shared memory than its kernel allocates.

    Host code compares the two, and prints a warning; where they are constants the comparison is
    gone, and the warning's text is left unused if there was nothing to warn of.

    Args:
        lowered: the module in LLVM's dialect.
    """
    texts, used = set(), set()
    for op in _walk(lowered.operation):
        if op.name == "llvm.mlir.global" and "value" in op.attributes:
            # as bytes: machine code is among them, which takes long to write as text
            if _TOO_LITTLE in getattr(op.attributes["value"], "value_bytes", b""):
                texts.add(_symbol(op.attributes["sym_name"]))
        elif op.name == "llvm.mlir.addressof":
            used.add(_symbol(op.attributes["global_name"]))
    return bool(texts & used)


def _symbol(attribute: Any) -> str:
    return str(attribute).strip('"@')


def _is_shared_memory(place: Any) -> bool:
    return (
        getattr(place, "name", "") == "llvm.getelementptr"
        and str(place.attributes["elem_type"]) == _CONFIG
        and [int(i) for i in place.attributes["rawConstantIndices"]] == _SHARED_MEMORY
    )


def _constant(value: Any) -> int | None:
    op = _producer(value)
    if getattr(op, "name", "") != "llvm.mlir.constant":
        return None
    return int(op.attributes["value"].value)


def _producer(value: Any) -> Any:
    """Return the operation that a value is the result of; None for an argument."""
    return getattr(value, "owner", None)


def _layout(operand: Any) -> str:
    """Return the type of the layout in shared memory that a tensor map was made for."""
    made = _producer(operand)
    if "make_non_exec_tiled_tma" not in getattr(made, "name", ""):
        return ""
    return str(made.operands[1].type)


def _walk(op: Any) -> Iterator[Any]:
    """Yield an operation and all inside of it, but for the code of kernels: nearly all there is."""
    yield op
    if op.name == _KERNEL:
        return
    for region in op.regions:
        for block in region.blocks:
            for inside in block.operations:
                yield from _walk(inside.operation)


def described(element: str, box: tuple[int, ...], swizzle: int) -> str:
    """Return a map in words, with the bytes of a copy where they are known."""
    known = ELEMENTS.get(element)
    size = f", {math.prod(box) * known.nbytes} bytes" if known else ""
    return f"a box {box} of {element} with swizzle {swizzle}{size}"
