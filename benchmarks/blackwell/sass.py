"""Machine code as `nvdisasm` prints it: instructions, their branches, and blocks of a kernel.

    kernel = parsed(disassembled(cubin))
    kernel.blocks[0].instructions[0].opcode

Only what counting needs is read: opcodes, guards, where control goes, and which registers are
named.  What instructions do is not known here.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGE: Final = "nvidia-cuda-nvdisasm"
"""The package on PyPI that has the disassembler."""

_LINE: Final = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL: Final = re.compile(r"(\.L_x_\d+|\$\w+|[\w.$]+):$")
_TARGET: Final = re.compile(r"`\((\.L_x_\d+)\)")
_REGISTER: Final = re.compile(r"(?<![\w.])R(\d+)(\.64)?")
_WIDE: Final = re.compile(r"\.(?:x(\d+)|(64|128|256))\b")
_SECTION: Final = ".section\t.text."


@dataclass(frozen=True)
class Instruction:
    """An instruction.

    Attributes:
        guard: the predicate that it is executed under; empty for none.
        opcode: with its modifiers, such as ``MUFU.EX2``.
        operands: as they are printed.
    """

    guard: str
    opcode: str
    operands: str

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.split(".", 1)[0]

    @property
    def target(self) -> str | None:
        """The label it may go to; None for what only goes on."""
        if self.name != "BRA":
            return None
        found = _TARGET.search(self.operands)
        return found[1] if found else None

    @property
    def ends(self) -> bool:
        """Whether what follows is not reached from here."""
        if self.guard not in ("", "UPT", "PT"):
            return False
        if self.name in ("EXIT", "RET", "BRX"):
            return True
        return self.name == "BRA" and not self._tests

    @property
    def _tests(self) -> bool:
        """Whether a branch has a condition beside its guard: a uniform predicate, or divergence."""
        return self.operands.split("`")[0].strip(" ,") != "" and "`" in self.operands

    @property
    def highest_register(self) -> int:
        """The highest of the registers that are named, or belong to a vector that is; -1 for none.

        The first register of an instruction on vectors of several words is taken as the vector's
        first one.
        """
        registers = list(_REGISTER.finditer(self.operands))
        if not registers:
            return -1
        highest = max(int(found[1]) + (found[2] is not None) for found in registers)
        wide = _WIDE.search(self.opcode)
        if wide is not None and self.name in _VECTORS:
            words = int(wide[1]) if wide[1] else int(wide[2]) // 32
            vector = registers[-1 if self.name in _STORES else 0]
            highest = max(highest, int(vector[1]) + words - 1)
        return highest


_STORES: Final = ("STTM", "STS", "STG", "ST")
_VECTORS: Final = (*_STORES, "LDTM", "LDS", "LDG", "LD", "LDC")


@dataclass(frozen=True)
class Block:
    """Instructions that are executed one after the other.

    Attributes:
        instructions: at least one.
        successors: numbers of blocks where control may go behind the last one.
    """

    instructions: tuple[Instruction, ...]
    successors: tuple[int, ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel: its blocks in the order of the text; the first is the entry."""

    blocks: tuple[Block, ...]

    @property
    def instructions(self) -> Iterator[Instruction]:
        """All of them, without the padding behind the end."""
        for block in self.blocks:
            yield from (i for i in block.instructions if i.name != "NOP")


def disassembled(cubin: bytes) -> str:
    """Return what the disassembler prints of machine code."""
    with tempfile.TemporaryDirectory(prefix="flexfa4-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [disassembler(), "-c", str(file)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@functools.cache
def disassembler() -> str:
    """Return the path of nvdisasm: of PATH, or of the package."""
    found = shutil.which("nvdisasm")
    if found is not None:
        return found
    site = Path(sysconfig.get_paths()["purelib"])
    for file in sorted(site.glob("nvidia/*/bin/nvdisasm")):
        return str(file)
    raise FileNotFoundError(f"nvdisasm is neither in PATH nor installed: pip install {PACKAGE}")


def parsed(text: str) -> Kernel:
    """Return the first kernel of a disassembly."""
    lines: list[Instruction] = []
    labels: dict[str, int] = {}
    begun = False
    for line in text.splitlines():
        if _SECTION in line:
            if begun:
                break
            begun = True
        label = _LABEL.match(line.strip())
        if label is not None:
            labels[label[1]] = len(lines)
        found = _LINE.match(line)
        if found is not None:
            lines.append(Instruction(found[2] or "", found[3], found[4]))
    return Kernel(tuple(_blocks(lines, labels)))


def _blocks(lines: list[Instruction], labels: dict[str, int]) -> Iterator[Block]:
    """Cut at labels that are gone to, and behind what may go somewhere else."""
    starts = {0, *labels.values()}
    for at, line in enumerate(lines):
        if line.target is not None or line.ends:
            starts.add(at + 1)
    order = sorted(at for at in starts if at < len(lines))
    number = {at: i for i, at in enumerate(order)}
    for start, end in zip(order, [*order[1:], len(lines)], strict=True):
        last = lines[end - 1]
        goes_to = [] if last.target is None else [number[labels[last.target]]]
        if not last.ends and end in number:
            goes_to.append(number[end])
        yield Block(tuple(lines[start:end]), tuple(dict.fromkeys(goes_to)))
