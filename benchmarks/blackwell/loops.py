"""The loops of softmax warps in machine code, and what a warp executes in one of them.

A loop is a strongly connected part of the control flow that a back edge closes (a natural loop).
Those of softmax read scores from tensor memory, exponentiate and write probabilities back.  What is
executed in an iteration is the shortest way around that reads all of a tile's scores: no barrier is
waited for twice, and no output is corrected.  An instruction whose guard is false is issued all the
same, so it counts.
"""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from blackwell.sass import Instruction, Kernel

_COLUMNS: Final = re.compile(r"\.x(\d+)")


@dataclass(frozen=True)
class SoftmaxLoop:
    """What a warp executes in an iteration of a loop.

    Attributes:
        instructions: one after the other.
        keys: of an iteration: the columns of scores that are read.
    """

    instructions: tuple[Instruction, ...]
    keys: int

    @property
    def per_128_keys(self) -> float:
        """Instructions of a warp for each 128 keys."""
        return len(self.instructions) * 128 / self.keys

    def count(self, opcode: str) -> float:
        """Return how many instructions for each 128 keys begin with an opcode."""
        found = sum(i.opcode.startswith(opcode) for i in self.instructions)
        return found * 128 / self.keys

    def opcodes(self) -> dict[str, int]:
        """Return how many there are of each opcode without its modifiers, most frequent first."""
        counts = collections.Counter(i.name for i in self.instructions)
        return dict(counts.most_common())


def softmax_loops(kernel: Kernel) -> list[SoftmaxLoop]:
    """Return the innermost loops of softmax warps, the shortest for each key first."""
    bodies = [body for body in natural_loops(kernel) if _is_softmax(kernel, body[1])]
    inner = [
        (header, body) for header, body in bodies if not any(other < body for _, other in bodies)
    ]
    found = [_around(kernel, header, body) for header, body in inner]
    return sorted(found, key=lambda loop: loop.per_128_keys)


def steady_loop(kernel: Kernel) -> SoftmaxLoop:
    """Return the loop of tiles that no mask cuts: the shortest."""
    return softmax_loops(kernel)[0]


def _is_softmax(kernel: Kernel, body: frozenset[int]) -> bool:
    opcodes = [i.opcode for b in body for i in kernel.blocks[b].instructions]
    return all(
        any(o.startswith(wanted) for o in opcodes) for wanted in ("LDTM", "MUFU.EX2", "STTM")
    )


# ---- loops ---------------------------------------------------------------------------------------


def natural_loops(kernel: Kernel) -> list[tuple[int, frozenset[int]]]:
    """Return the header and the blocks of each loop."""
    above = dominators(kernel)
    before: dict[int, set[int]] = collections.defaultdict(set)
    for number, block in enumerate(kernel.blocks):
        for successor in block.successors:
            before[successor].add(number)
    bodies: dict[int, set[int]] = {}
    for number, block in enumerate(kernel.blocks):
        for header in block.successors:
            if number in above and header in above[number]:
                body = bodies.setdefault(header, {header})
                waiting = [number]
                while waiting:
                    one = waiting.pop()
                    if one not in body and one in above:
                        body.add(one)
                        waiting.extend(before[one])
    return [(header, frozenset(body)) for header, body in bodies.items()]


def dominators(kernel: Kernel) -> dict[int, set[int]]:
    """Return the blocks that every way from the entry to a block passes, of those reached."""
    order = _reverse_postorder(kernel)
    reached = set(order)
    before: dict[int, list[int]] = collections.defaultdict(list)
    for number in order:
        for successor in kernel.blocks[number].successors:
            before[successor].append(number)
    found = {number: set(reached) for number in order}
    found[order[0]] = {order[0]}
    changed = True
    while changed:
        changed = False
        for number in order[1:]:
            new = set.intersection(*(found[p] for p in before[number] if p in reached)) | {number}
            changed |= new != found[number]
            found[number] = new
    return found


def _reverse_postorder(kernel: Kernel) -> list[int]:
    order: list[int] = []
    seen = {0}
    stack: list[tuple[int, Iterator[int]]] = [(0, iter(kernel.blocks[0].successors))]
    while stack:
        number, rest = stack[-1]
        following = next((s for s in rest if s not in seen), None)
        if following is None:
            order.append(number)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(kernel.blocks[following].successors)))
    return order[::-1]


def _around(kernel: Kernel, header: int, body: frozenset[int]) -> SoftmaxLoop:
    """Return the way around a loop: of those that read most scores, the shortest."""
    above = dominators(kernel)

    @functools.cache
    def rest(number: int) -> tuple[int, int, tuple[int, ...]] | None:
        """Return minus the columns, the instructions and the blocks from a block to the header."""
        block = kernel.blocks[number]
        own = (-sum(map(_columns, block.instructions)), len(block.instructions))
        ways: list[tuple[int, int, tuple[int, ...]]] = []
        for successor in block.successors:
            if successor == header:
                ways.append((*own, (number,)))
            elif successor in body and successor not in above[number]:
                way = rest(successor)
                if way is not None:
                    ways.append((own[0] + way[0], own[1] + way[1], (number, *way[2])))
        return min(ways, default=None)

    way = rest(header)
    assert way is not None, "a loop without a way around"
    instructions = tuple(i for b in way[2] for i in kernel.blocks[b].instructions)
    return SoftmaxLoop(instructions, -way[0])


def _columns(instruction: Instruction) -> int:
    """Return the columns of tensor memory that an instruction reads."""
    if instruction.name != "LDTM":
        return 0
    found = _COLUMNS.search(instruction.opcode)
    return int(found[1]) if found else 1


# ---- registers -----------------------------------------------------------------------------------


def registers_by_budget(kernel: Kernel) -> list[tuple[int, int]]:
    """Return the budget that each warp role asks for, and the registers that it uses.

    A role's code is what is reached only through its request (`USETMAXREG`), in the order of the
    text; calls are not followed.
    """
    above = dominators(kernel)
    found = []
    for number, block in enumerate(kernel.blocks):
        asks = [i for i in block.instructions if i.name == "USETMAXREG"]
        if not asks or number not in above:
            continue
        own = [b for b, dominating in above.items() if number in dominating]
        highest = max(i.highest_register for b in own for i in kernel.blocks[b].instructions)
        found.append((int(asks[-1].operands.split(",")[-1], 16), highest + 1))
    return found
