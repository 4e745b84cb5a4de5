"""What the functions of a kernel get of the memories that are laid out before the launch.

Each function has a frame of its own in local memory and in space call, behind those of the
functions before it, since none calls itself.  Shared memory holds the variables that the kernel's
functions name, and no others, then the arrays whose size the launch gives: a module's kernels do
not take each other's room.

What this module deliberately does not do: lay out variables within a function's frame, or global
memory; the reader of PTX has done that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from flexfa4.emulator.ptx.program import (
    Address,
    Arguments,
    Function,
    Instruction,
    TensorAddress,
    Variable,
    VariableAddress,
)

ALIGNMENT: Final = 16  # of frames: that of the widest access


@dataclass(frozen=True)
class Frames:
    """Where frames and shared variables begin.

    Attributes:
        local: offset of each function's frame in a thread's local memory, by name.
        call: likewise in space call.
        shared: offset of each shared variable in a block's shared memory.
        local_size: bytes of local memory of a thread.
        call_size: bytes of space call of a thread.
        shared_size: bytes of shared memory before the arrays that the launch gives a size.
    """

    local: dict[str, int]
    call: dict[str, int]
    shared: dict[Variable, int]
    local_size: int
    call_size: int
    shared_size: int

    @classmethod
    def of(cls, functions: list[Function]) -> Frames:
        """Lay out the frames of all functions of a kernel."""
        local, local_size = _stacked({f.name: f.local_size for f in functions})
        call, call_size = _stacked({f.name: _call_size(f) for f in functions})
        shared, shared_size = _shared(functions)
        return cls(local, call, shared, local_size, call_size, shared_size)


def _stacked(sizes: dict[str, int]) -> tuple[dict[str, int], int]:
    starts = {}
    end = 0
    for name, size in sizes.items():
        starts[name] = end
        end += _rounded(size, ALIGNMENT)
    return starts, end


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _call_size(function: Function) -> int:
    variables = (*function.variables, *function.parameters, *function.returns)
    return max((v.offset + (v.size or 0) for v in variables if v.space == "call"), default=0)


def _shared(functions: list[Function]) -> tuple[dict[Variable, int], int]:
    named = {
        variable
        for function in functions
        for instruction in function.instructions
        for variable in _variables(instruction)
        if variable.space == "shared"
    }
    offsets = {}
    end = 0
    for variable in sorted((v for v in named if v.size is not None), key=lambda v: v.offset):
        offsets[variable] = _rounded(end, variable.align)
        end = offsets[variable] + (variable.size or 0)
    dynamic = [variable for variable in named if variable.size is None]
    end = _rounded(end, max((variable.align for variable in dynamic), default=1))
    return offsets | dict.fromkeys(dynamic, end), end


def _variables(instruction: Instruction) -> Iterator[Variable]:
    for operand in instruction.operands:
        if isinstance(operand, TensorAddress):
            operand = operand.tensor
        if isinstance(operand, Address):
            if isinstance(operand.base, Variable):
                yield operand.base
        elif isinstance(operand, VariableAddress):
            yield operand.variable
        elif isinstance(operand, Arguments):
            yield from operand.variables
