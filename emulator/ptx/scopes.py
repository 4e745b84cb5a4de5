"""Which register, variable or label a name is, block by block.

Braces open a block: names declared in it hide those around it, and the block's end frees them for
the next, as repeated inline assembly needs.  A register gets its place in a bank when it is first
named, so a function's banks hold the registers that its code uses and no others.

What this module deliberately does not do: read tokens.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from flexfa4.emulator.errors import Place
from flexfa4.emulator.ptx.errors import DuplicateError, UndeclaredError, UndefinedLabelError
from flexfa4.emulator.ptx.program import Register, Variable
from flexfa4.emulator.ptx.scanner import Token
from flexfa4.emulator.ptx.types import ScalarType


@dataclass
class Registers:
    """The registers of a function, as they are named."""

    all: list[Register] = field(default_factory=list)
    banks: Counter[int] = field(default_factory=Counter)

    def new(self, name: str, type_: ScalarType) -> Register:
        """Return a register in the next place of its bank."""
        register = Register(name, type_, self.banks[type_.bits])
        self.banks[type_.bits] += 1
        self.all.append(register)
        return register


@dataclass(frozen=True, slots=True)
class Range:
    """Registers that one declaration numbers: ``%r<count>``, or one register without number."""

    type: ScalarType
    count: int
    line: int


@dataclass
class Block:
    """The names of one block, and the blocks around it.

    Attributes:
        parent: the block around it; None for the module.
        registers: where the function's registers are kept; None for the module.
    """

    parent: Block | None = None
    registers: Registers | None = None
    _known: dict[str, Register | Variable] = field(default_factory=dict)
    _ranges: dict[str, Range] = field(default_factory=dict)  # by what stands before the number
    _names: dict[str, int] = field(default_factory=dict)  # line in which each was declared
    _labels: dict[str, tuple[int, int]] = field(default_factory=dict)  # index, line
    _targets: dict[str, list[Token]] = field(default_factory=dict)  # lists of labels

    def inner(self) -> Block:
        """Return a block inside this one."""
        return Block(self, self.registers)

    def declare_register(self, name: str, type_: ScalarType, count: int | None, at: Place) -> None:
        """Declare a register, or with a count the registers ``name0`` up to ``name{count - 1}``.

        Raises:
            DuplicateError: this block declares the name already.
        """
        numbered = "" if count is None else "<>"
        self._claim("register", name + numbered, at)
        self._ranges[name + numbered] = Range(type_, count or 0, at.line)

    def declare_variable(self, variable: Variable, at: Place) -> None:
        """Declare a variable.

        Raises:
            DuplicateError: this block declares the name already.
        """
        self._claim("variable", variable.name, at)
        self._known[variable.name] = variable

    def declare_label(self, name: str, index: int, at: Place) -> None:
        """Set a label before the instruction of an index.

        Raises:
            DuplicateError: this block has the label already.
        """
        if name in self._labels:
            _, first = self._labels[name]
            raise DuplicateError(where=at, what="label", name=name, first=first)
        self._labels[name] = (index, at.line)

    def declare_targets(self, name: str, labels: list[Token], at: Place) -> None:
        """Declare a list of labels, which may follow.

        Raises:
            DuplicateError: this block declares the name already.
        """
        self._claim("list of labels", name, at)
        self._targets[name] = labels

    def targets(self, name: str, at: Place) -> list[Token]:
        """Return the labels of a list.

        Raises:
            UndefinedLabelError: neither this block nor one around it has the list.
        """
        for block in self._outwards():
            if name in block._targets:
                return block._targets[name]
        known = [targets for block in self._outwards() for targets in block._targets]
        raise UndefinedLabelError(where=at, name=name, nearest=nearest(name, known))

    def find(self, name: str) -> Register | Variable | None:
        """Return what a name is in this block, or None."""
        block: Block | None = self
        while block is not None:
            found = block._known.get(name) or block._first_use(name)
            if found is not None:
                return found
            block = block.parent
        return None

    def label(self, name: str, at: Place) -> int:
        """Return the index that a label stands for.

        Raises:
            UndefinedLabelError: neither this block nor one around it has the label.
        """
        for block in self._outwards():
            if name in block._labels:
                return block._labels[name][0]
        known = [label for block in self._outwards() for label in block._labels]
        raise UndefinedLabelError(where=at, name=name, nearest=nearest(name, known))

    def undeclared(self, name: str, at: Place) -> UndeclaredError:
        """Return the error that a name makes which is nothing here."""
        known = [known for block in self._outwards() for known in block._names]
        ranges = [name.removesuffix("<>") + "0" for name in known if name.endswith("<>")]
        return UndeclaredError(where=at, name=name, nearest=nearest(name, [*known, *ranges]))

    def labels(self) -> Iterator[tuple[str, int, int]]:
        """Yield each label of this block with its index and its line."""
        for name, (index, line) in self._labels.items():
            yield name, index, line

    def _outwards(self) -> Iterator[Block]:
        block: Block | None = self
        while block is not None:
            yield block
            block = block.parent

    def _claim(self, what: str, name: str, at: Place) -> None:
        if name in self._names:
            first = self._names[name]
            raise DuplicateError(where=at, what=what, name=name.removesuffix("<>"), first=first)
        self._names[name] = at.line

    def _first_use(self, name: str) -> Register | None:
        """Give a declared register its place, when it is named for the first time."""
        if self.registers is None:
            return None
        range_ = self._ranges.get(name)
        if range_ is None:
            stem = name.rstrip("0123456789")
            number = name[len(stem) :]
            range_ = self._ranges.get(stem + "<>")
            if range_ is None or not number or (number[0] == "0" and number != "0"):
                return None
            if int(number) >= range_.count:
                return None
        register = self.registers.new(name, range_.type)
        self._known[name] = register
        return register


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known names most like one, as the end of a sentence; nothing without."""
    found = difflib.get_close_matches(name, sorted(set(known)), n=3)
    return f"; nearest: {', '.join(found)}" if found else ""
