"""Mutants of a kernel: its PTX with one of the instructions that put things in order spoilt.

`without` leaves out a wait, an arrival, a fence or a commit.  A wait for an mbarrier stands in a
loop, which then ends at once.  Results of what is left out are defined.  `weaker` makes a wait one
for the other phase of its mbarrier, or for all groups but one more.  `later` moves one of them
behind the next access, or a commit behind the next wait for groups; an arrival may always be later.
`fewer` makes an mbarrier complete its phases with one arrival less.

What this module deliberately does not do: look for instructions inside a line; it takes PTX as
compilers write it, an instruction for each line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

LEFT_OUT = (
    "bar.sync",
    "bar.warp.sync",
    "barrier.cluster.",
    "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group",
    "cp.async.commit_group",
    "cp.async.wait_group",
    "fence.",
    "mbarrier.arrive.",
    "tcgen05.commit.",
    "tcgen05.wait::",
    "wgmma.commit_group.",
    "wgmma.fence.",
    "wgmma.wait_group.",
)
WAIT = "mbarrier.try_wait."
INIT = "mbarrier.init."
GROUPS = ("cp.async.bulk.wait_group", "cp.async.wait_group", "wgmma.wait_group.")
ACCESSES = (
    "atom.", "cp.async.bulk.global", "cp.async.bulk.shared", "cp.async.bulk.tensor", "cp.async.c",
    "ld.", "ldmatrix.", "mbarrier.arrive.", "red.", "st.", "stmatrix.", "tcgen05.ld", "tcgen05.mma",
    "tcgen05.st", "wgmma.mma_async.",
)  # fmt: skip
LATER = (*(opcode for opcode in LEFT_OUT if opcode != "mbarrier.arrive."), WAIT)
ASM = "// begin inline asm", "// end inline asm"
INSTRUCTION = re.compile(r"\s*(?P<guard>@!?[%\w]+\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<rest>.*)")
STATE = re.compile(r"(?P<register>%rd\d+),")  # that an arrival returns
CONSTANT = re.compile(r"mov\.[bsu]32\s+(%r\d+), (\d+);")
PHASE = re.compile(r"(?P<before>\w+, \[[^]]*\], )(?P<parity>[%\w]+)(?P<behind>.*)")

Edit = Callable[[str, str], str | None]
"""What stands in place of an instruction, from its opcode and the rest; None leaves it as it is."""


@dataclass(frozen=True)
class Mutant:
    """A kernel with one instruction spoilt.

    Attributes:
        name: its opcode, and the how manieth it is of those of this opcode.
        line: where it stands, from 1.
        ptx: the edited text.
    """

    name: str
    line: int
    ptx: str = field(repr=False)


def without(opcode: str, rest: str) -> str | None:
    """Leave out what puts things in order."""
    if opcode.startswith(WAIT):
        return f"setp.eq.u32 {rest.split(',')[0]}, 0, 0;"
    if not opcode.startswith(LEFT_OUT):
        return None
    state = STATE.match(rest)
    return f"mov.b64 {state['register']}, 0;" if state else ""


def weaker(opcode: str, rest: str) -> str | None:
    """Wait for too little."""
    if opcode.startswith(GROUPS):
        return f"{opcode} {int(rest.rstrip(';')) + 1};"
    phase = PHASE.fullmatch(rest) if opcode.startswith(WAIT) else None
    if phase is None:
        return None
    return (
        f"{{ .reg .b32 other; xor.b32 other, {phase['parity']}, 1;"
        f" {opcode} {phase['before']}other{phase['behind']} }}"
    )


def mutants(ptx: str, edit: Edit = without) -> Iterator[Mutant]:
    """Spoil each instruction that an edit is for."""
    lines = ptx.split("\n")
    seen: Counter[str] = Counter()
    for index, line in enumerate(lines):
        found = INSTRUCTION.fullmatch(line)
        instead = edit(found["opcode"], found["rest"]) if found else None
        if found is None or instead is None:
            continue
        seen[found["opcode"]] += 1
        text = "\n".join([*lines[:index], instead, *lines[index + 1 :]])
        yield Mutant(f"{found['opcode']} {seen[found['opcode']]}", index + 1, text)


def fewer(ptx: str) -> Iterator[Mutant]:
    """Let an arrival less complete the phases of each mbarrier that has several."""
    counts = {register: int(count) for register, count in CONSTANT.findall(ptx)}
    lines = ptx.split("\n")
    seen = 0
    for index, line in enumerate(lines):
        found = INSTRUCTION.fullmatch(line)
        if not found or not found["opcode"].startswith(INIT):
            continue
        seen += 1
        place, count = found["rest"].rstrip(";").rsplit(", ", 1)
        arrivals = counts.get(count) or int(count)
        if arrivals > 1:
            text = f"{found['opcode']} {place}, {arrivals - 1};"
            changed = "\n".join([*lines[:index], text, *lines[index + 1 :]])
            yield Mutant(f"{found['opcode']} {seen}", index + 1, changed)


def later(ptx: str) -> Iterator[Mutant]:
    """Move each instruction that orders accesses behind the next one.

    A wait takes its loop along.  What stands in a branch of its own is passed with all of the
    branch.
    """
    lines = ptx.split("\n")
    seen: Counter[str] = Counter()
    for index, line in enumerate(lines):
        found = INSTRUCTION.fullmatch(line)
        if not found or not found["opcode"].startswith(LATER) or found["guard"]:
            continue
        opcode = found["opcode"]
        seen[opcode] += 1
        first, stop = _statement(lines, index)
        to = _behind_next(lines, stop, GROUPS if ".commit" in opcode else ACCESSES)
        if to is not None:
            moved = [*lines[:first], *lines[stop:to], *lines[first:stop], *lines[to:]]
            yield Mutant(f"{opcode} {seen[opcode]}", index + 1, "\n".join(moved))


def _statement(lines: Sequence[str], index: int) -> tuple[int, int]:
    """Return the lines that belong to an instruction: its own, or all of the inline assembly."""
    for first in range(index, -1, -1):
        if ASM[1] in lines[first]:
            break
        if ASM[0] in lines[first]:
            return first, next(i for i in range(index, len(lines)) if ASM[1] in lines[i]) + 1
    return index, index + 1


def _behind_next(lines: Sequence[str], start: int, opcodes: tuple[str, ...]) -> int | None:
    """Return the line behind the next of some instructions; None if no straight way leads there."""
    label = ""
    index = start
    while index < len(lines):
        if label and lines[index].startswith(label):
            label = ""
        found = INSTRUCTION.fullmatch(lines[index])
        _, stop = _statement(lines, index)
        if not found:
            stop = index + 1
        elif found["opcode"].startswith(opcodes) and not found["opcode"].startswith("ld.param"):
            behind = [i + 1 for i in range(stop, len(lines)) if lines[i].startswith(label)]
            return behind[0] if label else stop
        elif found["opcode"].startswith(WAIT):
            pass  # with its loop
        elif found["opcode"].startswith(("bra", "ret", "exit")):
            target = found["rest"].rstrip(";") + ":"
            ahead = any(line.startswith(target) for line in lines[index:])
            if not found["guard"] or not ahead:
                return None
            label = label or target
        index = stop
    return None
