"""The functions that a kernel reaches by calls; none of them by way of itself.

What this module deliberately does not do: look for calls of addresses, which PTX's reader knows
but no core executes.
"""

from __future__ import annotations

from collections.abc import Iterator

from flexfa4.emulator.failures.program import RecursionFoundError
from flexfa4.emulator.ptx.forms import Access
from flexfa4.emulator.ptx.program import Function, FunctionAddress, Module


def reachable(module: Module, kernel: Function) -> list[Function]:
    """Return the kernel and the functions that it calls, and those below them, each once.

    Raises:
        RecursionFoundError: a function is called while it runs.
    """
    found: dict[str, Function] = {}
    _visit(module, kernel, [], found)
    return list(found.values())


def _visit(module: Module, function: Function, way: list[str], found: dict[str, Function]) -> None:
    if function.name in way:
        raise RecursionFoundError(
            where=module.place(function.line),
            name=function.name,
            way=" -> ".join([*way[way.index(function.name) :], function.name]),
        )
    if function.name in found:
        return
    found[function.name] = function
    for name in _called(function):
        _visit(module, module.functions[name], [*way, function.name], found)


def _called(function: Function) -> Iterator[str]:
    for instruction in function.instructions:
        for role, operand in zip(instruction.operation.roles, instruction.operands, strict=True):
            if role.access is Access.FUNCTION and isinstance(operand, FunctionAddress):
                yield operand.name
