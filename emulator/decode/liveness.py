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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from flexfa4.emulator.decode.flow import Block, Effect, as_bits, blocks_of
from flexfa4.emulator.ptx.program import Function, Register

ASYNCHRONOUS: Final = ("wgmma.mma_async",)
"""Beginnings of the names of instructions whose registers are in use after them."""


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
    code = [Effect.of(instruction, numbers) for instruction in function.instructions]
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


# ---- where registers are live -------------------------------------------------------------------


class _Live:
    """The registers of a block that are live at its ends, and those that decide that."""

    def __init__(self, block: Block, code: list[Effect]) -> None:
        self.reads = 0  # before any certain write in the block
        self.writes = 0  # certainly
        self.before = self.behind = 0  # live there
        for effect in code[block.start : block.stop]:
            self.reads |= as_bits(effect.reads) & ~self.writes
            if effect.certain:
                self.writes |= as_bits(effect.writes)


def _solve(blocks: list[Block], code: list[Effect]) -> list[_Live]:
    """Find what is live at the ends of each block, until nothing changes."""
    found = [_Live(block, code) for block in blocks]
    before: list[list[int]] = [[] for _ in blocks]
    for number, block in enumerate(blocks):
        for successor in block.successors:
            before[successor].append(number)
    waiting = list(range(len(blocks)))  # its end is the last block, a good one to begin with
    queued = set(waiting)
    while waiting:
        number = waiting.pop()
        queued.discard(number)
        live = found[number]
        for successor in blocks[number].successors:
            live.behind |= found[successor].before
        now = live.reads | live.behind & ~live.writes
        if now != live.before:
            live.before = now
            for other in before[number]:
                if other not in queued:
                    queued.add(other)
                    waiting.append(other)
    return found


def _ranges(code: list[Effect], registers: int) -> list[tuple[int, int]]:
    """Return the first and the last instruction at which each register is live or touched."""
    first = [len(code)] * registers
    last = [0] * registers

    def touch(number: int, index: int) -> None:
        if index < first[number]:
            first[number] = index
        if index > last[number]:
            last[number] = index

    blocks = blocks_of(code)
    for block, live in zip(blocks, _solve(blocks, code), strict=True):
        for number in _numbers(live.before):
            touch(number, block.start)
        for number in _numbers(live.behind):
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
