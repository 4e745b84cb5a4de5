"""Control flow of a function: what each instruction does with registers, and blocks of them.

Analyses over it take sets of registers as integers, in which bit n stands for register number n.

What this module deliberately does not do: an analysis; `liveness` and `wgmma_registers` do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from flexfa4.emulator.ptx.forms import Access
from flexfa4.emulator.ptx.program import (
    Address,
    Instruction,
    Negated,
    Operand,
    Register,
    Target,
    Targets,
    TensorAddress,
    Vector,
)

_ENDS: Final = frozenset({"exit", "ret", "trap"})
_JUMPS: Final = frozenset({"bra", "brx.idx"})


@dataclass(frozen=True, slots=True)
class Effect:
    """What an instruction does with registers, by their numbers, and where control goes."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    certain: bool  # whether it writes for every thread that comes by
    targets: tuple[int, ...]  # instructions that it may jump to
    passes: bool  # whether the next instruction may follow

    @classmethod
    def of(cls, instruction: Instruction, numbers: dict[Register, int]) -> Effect:
        """Return what an instruction does.

        Args:
            instruction: any one of a function.
            numbers: of the function's registers.
        """
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


@dataclass(frozen=True)
class Block:
    """Instructions that run one after another.

    Attributes:
        start: its first instruction.
        stop: the one behind its last.
        successors: numbers of the blocks that may follow.
    """

    start: int
    stop: int
    successors: tuple[int, ...]


def blocks_of(code: list[Effect]) -> list[Block]:
    """Return the blocks of a function, in the order of the text."""
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
        successors = tuple(number_of[i] for i in after if i < len(code))
        blocks.append(Block(start, stop, successors))
    return blocks


def as_bits(numbers: tuple[int, ...]) -> int:
    """Return the set of registers with these numbers."""
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits
