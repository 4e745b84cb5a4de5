"""Running a launch: its kernel is read, decoded and loaded once, and then run.

Both ways into the emulator end here: launches that arrive from compiled host code
(`flexfa4.emulator.host`) and those of `flexfa4.emulator.kernel`.

What this module deliberately does not do: check sizes against an architecture (`Launch.check`), or
keep memory alive, which its caller holds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flexfa4.emulator.decode import decode
from flexfa4.emulator.failures.options import BlockSizeError
from flexfa4.emulator.host.allocations import Allocation
from flexfa4.emulator.host.architectures import architecture
from flexfa4.emulator.host.launch import Dim3, Launch
from flexfa4.emulator.native.library import Program, Shape
from flexfa4.emulator.options import Options
from flexfa4.emulator.ptx import Function, Module, parse
from flexfa4.emulator.results import Run

REGISTERS = 65536  # of a multiprocessor
MOST_REGISTERS = 255  # of a thread


@dataclass(frozen=True)
class Loaded:
    """A kernel that the core has loaded, and its text as read."""

    module: Module
    function: Function
    program: Program


def loaded(ptx: str, kernel: str | None = None) -> Loaded:
    """Read a module, and load one of its kernels: the named one, or the only one.

    Raises:
        PtxError: the text cannot be read.
        ProgramError: the kernel has something that the core does not run.
        CoreBuildError: the core cannot be built.
    """
    return _loaded(ptx, _module(ptx).kernel(kernel).name)


@functools.lru_cache(maxsize=32)
def _loaded(ptx: str, kernel: str) -> Loaded:
    module = _module(ptx)
    program = Program(decode(module, kernel), module.place)
    return Loaded(module, module.kernel(kernel), program)


@functools.lru_cache(maxsize=32)
def _module(ptx: str) -> Module:
    return parse(ptx)


def run(launch: Launch, allocations: Sequence[Allocation], options: Options) -> Run:
    """Run a launch to its end.

    Args:
        launch: right for its architecture, see `Launch.check`.
        allocations: the memory that the kernel may touch.
        options: how it is run.

    Raises:
        EmulationError: the kernel cannot be loaded, or something went wrong in it.
    """
    kernel = loaded(launch.ptx, launch.entry)
    device = architecture(launch.signature.target)
    limits = kernel.function.limits
    cluster = launch.cluster
    if cluster == (1, 1, 1) and "reqnctapercluster" in limits:
        cluster = _sizes(limits["reqnctapercluster"])
    _check_limits(kernel.function, launch, cluster)
    shape = Shape(
        grid=launch.grid,
        block=launch.block,
        cluster=cluster,
        dynamic_shared=launch.shared_memory,
        max_shared=device.max_shared_memory,
        registers=registers_of_thread(kernel.function),
    )
    chosen = replace(options, sms=device.sms if options.sms is None else options.sms)
    return kernel.program.run(shape, _parameters(kernel.function, launch), allocations, chosen)


def _parameters(function: Function, launch: Launch) -> bytes:
    data = bytearray(function.parameter_size)
    for variable, parameter in zip(function.parameters, launch.parameters, strict=True):
        data[variable.offset : variable.offset + len(parameter.data)] = parameter.data
    return bytes(data)


def _sizes(values: Sequence[int]) -> Dim3:
    x, y, z = (*values, 1, 1, 1)[:3]
    return (x, y, z)


def _check_limits(function: Function, launch: Launch, cluster: Dim3) -> None:
    """Refuse sizes against which the kernel's own text speaks."""
    limits, block = function.limits, launch.block
    threads, blocks = math.prod(block), math.prod(cluster)
    whole = all(g % c == 0 for g, c in zip(launch.grid, cluster, strict=True))
    # the directive, what it is about, whether sizes fit it, and what would
    rules = (
        ("reqntid", "block", block, lambda v: block == _sizes(v), "these sizes"),
        ("maxntid", "block", block, lambda v: threads <= math.prod(v), "at most as many threads"),
        ("reqnctapercluster", "cluster", cluster, lambda v: cluster == _sizes(v), "these sizes"),
        ("reqnctapercluster", "grid", launch.grid, lambda v: whole, "multiples of these sizes"),
        ("maxclusterrank", "cluster", cluster, lambda v: blocks <= v[0], "at most as many blocks"),
    )
    for directive, name, given, fits, expected in rules:
        values = limits.get(directive)
        if values and not fits(values):
            raise BlockSizeError(
                kernel=function.name,
                what=name,
                name=name,
                found_value=given,
                directive=directive,
                wanted=values,
                expected=expected,
            )


def registers_of_thread(function: Function) -> int:
    """Return the registers of a thread that the text lets the assembler give, or 0.

    What `.maxnreg` says; else, where several blocks are to fit, as many as their threads can have
    each, in steps of 8, which is what ptxas takes for kernels with `setmaxnreg`.
    """
    limits = function.limits
    if "maxnreg" in limits:
        return limits["maxnreg"][0]
    sizes = limits.get("reqntid") or limits.get("maxntid")
    blocks = max(1, *limits.get("minnctapersm", (1,)))
    if not sizes or blocks == 1:
        return 0
    warps = -(-math.prod(sizes) // 32)
    return min(MOST_REGISTERS, REGISTERS // (warps * 32 * blocks)) // 8 * 8
