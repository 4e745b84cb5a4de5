"""The entry of a PTX text: what its declaration says, and the register budgets in its body.

Only what a launch depends on is read, by patterns: PTX of a kernel of ours has one entry, whose
parameters stand one in a line.  The emulator has a reader of all of PTX, which kernels do without.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_ENTRY: Final = re.compile(
    r"\.entry\s+(?P<name>[\w$]+)\s*\((?P<parameters>[^)]*)\)(?P<directives>[^{]*)\{"
)
_PARAMETER: Final = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?(?P<type>\.\w+)[^,\[]*(?:\[(?P<count>\d+)\])?"
)
_BLOCK: Final = re.compile(r"\.reqntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
_TARGET: Final = re.compile(r"^\.target\s+(\w+)", re.MULTILINE)
_BUDGET: Final = re.compile(r"\bsetmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32\s+(\d+)")
_TOOLS: Final = re.compile(r"^// Cuda compilation tools, release [\d.]+, (V[\d.]+)", re.MULTILINE)
_BITS: Final = re.compile(r"\d+$")


@dataclass(frozen=True)
class EntryParameter:
    """A parameter as an entry declares it.

    Attributes:
        type: such as ``.u64``; of an array that of its elements.
        nbytes: of the whole.
        alignment: as declared, or else its size.
    """

    type: str
    nbytes: int
    alignment: int


@dataclass(frozen=True)
class Entry:
    """What a PTX text says of its kernel.

    Attributes:
        name: of the kernel.
        target: the architecture, such as ``sm_90a``.
        parameters: in order.
        block: threads along x, y, z that a launch has to have; None where it may have others.
        budgets: numbers of registers that warps of the kernel ask for by setmaxnreg, in the order
            of the text; one that is asked for again right away is named once.
        tools: version of the compiler that wrote the text; empty where it does not say.
    """

    name: str
    target: str
    parameters: tuple[EntryParameter, ...]
    block: tuple[int, int, int] | None
    budgets: tuple[int, ...]
    tools: str


def entries(ptx: str) -> tuple[Entry, ...]:
    """Return the entries of a text."""
    target, tools = _TARGET.search(ptx), _TOOLS.search(ptx)
    heads = list(_ENTRY.finditer(ptx))
    ends = [head.start() for head in heads[1:]] + [len(ptx)]
    return tuple(
        Entry(
            name=head["name"],
            target=target[1] if target else "",
            parameters=tuple(map(_parameter, _PARAMETER.finditer(head["parameters"]))),
            block=_block(head["directives"]),
            budgets=_budgets(ptx[head.end() : end]),
            tools=tools[1] if tools else "",
        )
        for head, end in zip(heads, ends, strict=True)
    )


def _parameter(match: re.Match[str]) -> EntryParameter:
    bits = _BITS.search(match["type"])
    nbytes = int(bits[0]) // 8 if bits else 1
    alignment = int(match["align"] or nbytes)
    return EntryParameter(match["type"], nbytes * int(match["count"] or 1), alignment)


def _block(directives: str) -> tuple[int, int, int] | None:
    match = _BLOCK.search(directives)
    if match is None:
        return None
    x, y, z = (int(extent or 1) for extent in match.groups())
    return (x, y, z)


def _budgets(body: str) -> tuple[int, ...]:
    found = [int(number) for number in _BUDGET.findall(body)]
    return tuple(n for n, before in zip(found, [0, *found], strict=False) if n != before)
