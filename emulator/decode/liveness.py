"""Places for the registers of a function: registers that hold no value at the same time share one.

Compilers write PTX with a new register for nearly every result: thousands, of which a few hundred
hold a value that is still needed at any one time.  The register file of a warp should fit the
caches of the host, so places are given out as a compiler's register allocator does it: which
registers are live where, by the usual backward analysis over the control flow graph; for each one
the range of instructions, in the order of the text, from the first to the last at which it is
live; and places by a scan over the ranges (Poletto and Sarkar, "Linear Scan Register Allocation",
TOPLAS 1999).

What holds for a thread holds for a warp, since lanes are columns: a lane's column is touched by
that lane's way through the code alone, wherever the other lanes are.

Two rules keep execution simple.  Results never get the place of an operand of the same instruction,
unless they are one register in the text.  Registers of asynchronous instructions, which read and
write them after the instruction, have places of their own for the whole function.

What this module deliberately does not do: give places to values that are filled when a warp starts,
or spill: there are as many places as it takes.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from flexfa4.emulator.ptx.forms import Access
from flexfa4.emulator.ptx.program import (
    Address,
    Function,
    Instruction,
    Negated,
    Operand,
    Register,
    Target,
    Targets,
    TensorAddress,
    Vector,
)

ASYNCHRONOUS: Final = ("wgmma.mma_async",)
"""Beginnings of the names of instructions whose registers are in use after them."""

_ENDS: Final = frozenset({"exit", "ret", "trap"})
_JUMPS: Final = frozenset({"bra", "brx.idx"})


@dataclass(frozen=True)
class Allocation:
    """Places in the banks of a function.

    Attributes:
        slots: the place of each register in the bank of its size.
        banks: number of places of each size in bits; 1 for predicates.
    """

    slots: dict[Register, int]
    banks: dict[int, int]


def allocate(function: Function) -> Allocation:
    """Give each register of a function a place."""
    numbers = {register: number for number, register in enumerate(function.registers)}
    code = [_Effect.of(instruction, numbers) for instruction in function.instructions]
    ranges = _ranges(code, len(numbers))
    for instruction, effect in zip(function.instructions, code, strict=True):
        if instruction.operation.name.startswith(ASYNCHRONOUS):
            for number in (*effect.reads, *effect.writes):
                ranges[number] = (0, len(code))
    slots: dict[Register, int] = {}
    banks: dict[int, int] = {}
    for bits in function.banks:
        bank = [r for r in function.registers if r.type.bits == bits]
        places, banks[bits] = _scan([ranges[numbers[register]] for register in bank])
        slots |= dict(zip(bank, places, strict=True))
    return Allocation(slots, banks)


# ---- what instructions do -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Effect:
    """What an instruction does with registers, by their numbers, and where control goes."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    certain: bool  # whether it writes for every thread that comes by
    targets: tuple[int, ...]  # instructions that it may jump to
    passes: bool  # whether the next instruction may follow

    @classmethod
    def of(cls, instruction: Instruction, numbers: dict[Register, int]) -> _Effect:
        reads: list[int] = []
        writes: list[int] = []
        targets: list[int] = []
        guard = instruction.guard
        if guard is not None:
            reads.append(numbers[guard.register])
        for role, operand in zip(instruction.operation.roles, instruction.operands, strict=True):
            if isinstance(operand, Target):
                targets.append(operand.index)
            elif isinstance(operand, Targets):
                targets += [target.index for target in operand.targets]
            else:
                found = [numbers[register] for register in registers_of(operand)]
                if role.access is not Access.WRITE:
                    reads += found
                if role.access in (Access.WRITE, Access.UPDATE):
                    writes += found
        name = instruction.operation.name
        leaves = guard is None and (name in _ENDS or name in _JUMPS)
        return cls(tuple(reads), tuple(writes), guard is None, tuple(targets), not leaves)


def registers_of(operand: Operand | None) -> Iterator[Register]:
    """Yield the registers that an operand names."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Negated):
        yield operand.register
    elif isinstance(operand, Address):
        if isinstance(operand.base, Register):
            yield operand.base
    elif isinstance(operand, TensorAddress):
        yield from registers_of(operand.tensor)
        yield from (c for c in operand.coordinates if isinstance(c, Register))
    elif isinstance(operand, Vector):
        yield from (element for element in operand.elements if isinstance(element, Register))


# ---- where registers are live -------------------------------------------------------------------


@dataclass
class _Block:
    """Instructions that run one after another; sets of registers are bits of numbers."""

    start: int
    stop: int
    successors: list[int]  # numbers of blocks
    reads: int = 0  # before any certain write in the block
    writes: int = 0  # certainly
    live_in: int = 0
    live_out: int = 0


def _blocks(code: list[_Effect]) -> list[_Block]:
    starts = {0, len(code)}
    for index, effect in enumerate(code):
        starts.update(effect.targets)
        if effect.targets or not effect.passes:
            starts.add(index + 1)
    ordered = sorted(start for start in starts if start < len(code))
    number_of = {start: number for number, start in enumerate(ordered)}
    blocks = []
    for start, stop in itertools.pairwise([*ordered, len(code)]):
        last = code[stop - 1]
        after = [*last.targets, *([stop] if last.passes else [])]
        block = _Block(start, stop, [number_of[i] for i in after if i < len(code)])
        for effect in code[start:stop]:
            block.reads |= _bits(effect.reads) & ~block.writes
            if effect.certain:
                block.writes |= _bits(effect.writes)
        blocks.append(block)
    return blocks


def _bits(numbers: tuple[int, ...]) -> int:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def _solve(blocks: list[_Block]) -> None:
    """Find what is live at the ends of each block, until nothing changes."""
    before: list[list[int]] = [[] for _ in blocks]
    for number, block in enumerate(blocks):
        for successor in block.successors:
            before[successor].append(number)
    waiting = list(range(len(blocks)))  # its end is the last block, a good one to begin with
    queued = set(waiting)
    while waiting:
        number = waiting.pop()
        queued.discard(number)
        block = blocks[number]
        for successor in block.successors:
            block.live_out |= blocks[successor].live_in
        live_in = block.reads | block.live_out & ~block.writes
        if live_in != block.live_in:
            block.live_in = live_in
            for other in before[number]:
                if other not in queued:
                    queued.add(other)
                    waiting.append(other)


def _ranges(code: list[_Effect], registers: int) -> list[tuple[int, int]]:
    """Return the first and the last instruction at which each register is live or touched."""
    first = [len(code)] * registers
    last = [0] * registers

    def touch(number: int, index: int) -> None:
        first[number] = min(first[number], index)
        last[number] = max(last[number], index)

    blocks = _blocks(code)
    _solve(blocks)
    for block in blocks:
        for number in _numbers(block.live_in):
            touch(number, block.start)
        for number in _numbers(block.live_out):
            touch(number, block.stop - 1)
        for index in range(block.start, block.stop):
            for number in (*code[index].reads, *code[index].writes):
                touch(number, index)
    return list(zip(first, last, strict=True))


def _numbers(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


# ---- places -------------------------------------------------------------------------------------


def _scan(ranges: list[tuple[int, int]]) -> tuple[list[int], int]:
    """Give each range a place that no overlapping range has; return places and their number."""
    places = [0] * len(ranges)
    free: list[int] = []
    taken: list[tuple[int, int]] = []  # last instruction, place
    count = 0
    for index in sorted(range(len(ranges)), key=lambda i: ranges[i]):
        first, last = ranges[index]
        while taken and taken[0][0] < first:
            heapq.heappush(free, heapq.heappop(taken)[1])
        if not free:
            heapq.heappush(free, count)
            count += 1
        places[index] = heapq.heappop(free)
        heapq.heappush(taken, (last, places[index]))
    return places, count
