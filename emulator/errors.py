"""The root of everything that the emulator reports.

A message answers four questions, in this order: what was *found*, *where* in the PTX, what is
*allowed*, and what to do *instead*.  The texts are class attributes, so that a chapter of errors
reads as a table; the reader of PTX has its chapter in `flexfa4.emulator.ptx.errors`.

What this module deliberately does not do: decide when something is wrong, or know the rest of the
project.  The emulator serves kernels of any origin and stands on its own, so its errors have their
own root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from flexfa4.emulator.results import Run

SHOWN = 96
"""Characters of a line that a message shows; lines of matrix instructions have thousands."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in PTX text.

    Attributes:
        line: number of the line, counted from 1.
        text: that line, or as much as is known of it.
        column: first column to point at, counted from 0.
        width: number of columns to point at; 0 points at none.
    """

    line: int
    text: str = ""
    column: int = 0
    width: int = 0

    def __str__(self) -> str:
        text = self.text.expandtabs(1)
        start = len(text) - len(text.lstrip())
        if not text[start:]:
            return f"PTX line {self.line}"
        if self.column - start > SHOWN * 2 // 3:  # keep what is pointed at inside the window
            start = self.column - SHOWN // 3
        shown = text[start : start + SHOWN].rstrip()
        shown = f"{'... ' if text[:start].strip() else ''}{shown}"
        shown += " ..." if text[start + SHOWN :].strip() else ""
        quoted = f"PTX line {self.line}\n    {shown}"
        if not self.width:
            return quoted
        column = self.column - start + (4 if text[:start].strip() else 0)
        width = max(min(self.width, SHOWN - self.column + start), 1)
        return f"{quoted}\n    {' ' * column}{'^' * width}"


class EmulationError(Exception):
    """Base of every failure that the emulator reports.

    Subclasses fill ``found``, ``allowed`` and ``instead`` with ``str.format`` templates; the
    keyword arguments of the constructor are the fields of those templates and stay readable in
    ``fields``.

    Attributes:
        where: the line of the PTX.
        fields: what the texts are about.
        run: what a launch had done when a kernel failed; else None.
    """

    found: ClassVar[str] = "the kernel could not be emulated"
    allowed: ClassVar[str] = ""
    instead: ClassVar[str] = ""

    def __init__(self, *, where: Place | None = None, **fields: Any) -> None:
        self.where = where
        self.fields = fields
        self.run: Run | None = None
        lines = [self.found.format(**fields)]
        if where is not None:
            lines.append(f"  where:   {where}".replace("\n", "\n  "))
        for label, template in (("allowed:", self.allowed), ("instead:", self.instead)):
            if template:
                lines.append(f"  {label} {template.format(**fields)}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> Any:
        return (_rebuild, (type(self), self.where, self.fields))


def _rebuild(kind: type[EmulationError], where: Place | None, fields: dict[str, Any]) -> Any:
    return kind(where=where, **fields)
