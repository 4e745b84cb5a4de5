"""What a launch must know of a kernel before it runs: read from the head of its PTX.

Sizes of parameters, since host code hands over addresses of values without their sizes; the
target; the static shared memory.  Only these are read: instructions, and whether the text is right
PTX at all, are the PTX reader's matter, which takes far longer.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

from flexfa4.emulator.host.errors import MissingEntryError, UnreadableParametersError

_NAME: Final = r"[\w$%]+"
_TARGET: Final = re.compile(r"^\s*\.target\s+(\w+)", re.MULTILINE)
_ENTRY: Final = re.compile(rf"\.entry\s+({_NAME})\s*(?:\(([^)]*)\))?")
_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PARAMETER: Final = re.compile(
    rf"""\.param \s+
    (?: \.align \s+ (?P<align>\d+) \s+ )?
    \.(?P<type>[bsuf]\d+) \s+
    (?: \.ptr \s+ (?: \.(?:global|shared|const|local) \s+ )? (?: \.align \s+ \d+ \s+ )? )?
    (?P<name>{_NAME}) (?: \s* \[ (?P<count>\d+) \] )?""",
    re.VERBOSE,
)
_SHARED: Final = re.compile(
    rf"""(?P<extern>\.extern \s+)? \.shared \s+ (?: \.align \s+ (?P<align>\d+) \s+ )?
    \.(?P<type>[bsuf]\d+) \s+ (?P<name>{_NAME}) (?: \s* \[ (?P<count>\d+) \] )?""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Slot:
    """The place of one parameter.

    Attributes:
        name: as the PTX has it.
        nbytes: its size.
        alignment: in bytes, too.
        type: of its elements as it is declared, such as ``u32``; bytes where nothing is said.
    """

    name: str
    nbytes: int
    alignment: int
    type: str = "b8"

    @property
    def elements(self) -> int:
        """How many elements it has: more than one where it is an array."""
        return 8 * self.nbytes // int(self.type[1:])

    @property
    def declared(self) -> str:
        """Its type as it is declared: ``.u32``, ``.b8[128]``."""
        return f".{self.type}" + (f"[{self.elements}]" if self.elements > 1 else "")


@dataclass(frozen=True)
class Signature:
    """A kernel as a launch sees it.

    Attributes:
        entry: its name.
        target: the architecture it is written for.
        slots: its parameters, in order.
        static_shared_memory: bytes of the shared variables that it names, each aligned.
    """

    entry: str
    target: str
    slots: tuple[Slot, ...]
    static_shared_memory: int


@functools.lru_cache(maxsize=256)
def signature(ptx: str, entry: str) -> Signature:
    """Read the signature of one kernel.

    Args:
        ptx: text of a whole PTX module.
        entry: name of the kernel.

    Raises:
        MissingEntryError: when no ``.entry`` of this name is there.
        UnreadableParametersError: when its parameter list is not one.
    """
    text = _COMMENT.sub(" ", ptx)
    heads = {match[1]: match for match in _ENTRY.finditer(text)}
    head = heads.get(entry)
    if head is None:
        raise MissingEntryError(entry=entry, entries=", ".join(heads) or "no entry at all")
    target = _TARGET.search(text)
    return Signature(
        entry=entry,
        target=target[1] if target else "",
        slots=tuple(_slot(entry, item) for item in (head[2] or "").split(",") if item.strip()),
        static_shared_memory=_static_shared_memory(text, _body(text, head.end())),
    )


def _slot(entry: str, text: str) -> Slot:
    match = _PARAMETER.fullmatch(text.strip())
    if match is None:
        raise UnreadableParametersError(entry=entry, text=text.strip())
    nbytes = _nbytes(match)
    return Slot(match["name"], nbytes, int(match["align"] or _element(match)), match["type"])


def _element(match: re.Match[str]) -> int:
    return int(match["type"][1:]) // 8


def _nbytes(match: re.Match[str]) -> int:
    return _element(match) * int(match["count"] or 1)


def _body(text: str, start: int) -> tuple[int, int]:
    """Return where the braces after a head begin and end; to the end of a text cut short."""
    opened = text.find("{", start)
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, max(opened, start)):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return opened, match.end()
    return max(opened, start), len(text)


def _static_shared_memory(text: str, body: tuple[int, int]) -> int:
    """Add up the shared variables of a body, and those outside of any body that it names."""
    used = set(re.findall(_NAME, text[slice(*body)]))
    total = 0
    for match in _SHARED.finditer(text):
        inside = body[0] <= match.start() < body[1]
        outside = text.count("{", 0, match.start()) == text.count("}", 0, match.start())
        if match["extern"] or not (inside or (outside and match["name"] in used)):
            continue
        alignment = int(match["align"] or _element(match))
        total = -(-total // alignment) * alignment + _nbytes(match)
    return total
