"""What a PTX module is, once it is read: immutable and resolved, for any execution core.

Names are gone where they mean something: a register is a place in a bank, a label an index into
the instructions, a variable an offset in its state space.  Names stay beside these for messages.

What this module deliberately does not do: read text, or run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from flexfa4.emulator.errors import Place
from flexfa4.emulator.ptx.errors import MissingKernelError
from flexfa4.emulator.ptx.forms import Operation
from flexfa4.emulator.ptx.types import ScalarType

# ---- operands -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """A register of a function.

    Attributes:
        name: as the text spells it; registers of other blocks may have the same name.
        type: as declared.
        slot: its place in the bank of its size, ``Function.banks[type.bits]``.
    """

    name: str
    type: ScalarType = field(hash=False)  # else a seventh of the time of decoding
    slot: int


@dataclass(frozen=True, slots=True)
class Special:
    """A register that can only be read, such as ``%tid.x``."""

    name: str
    type: ScalarType


@dataclass(frozen=True, slots=True)
class Immediate:
    """A number, as the bits of the type that its operand has."""

    bits: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a module or function.

    Attributes:
        name: as the text spells it.
        space: ``global``, ``const``, ``shared``, ``local``, ``param`` for a kernel's parameters, or
            ``call`` for what is passed to functions.
        type: type of an element.
        align: alignment in bytes.
        size: size in bytes; None for ``extern`` arrays, whose size the launch gives.
        offset: place in its state space, from the start of the module's or function's part of it;
            0 for ``extern`` arrays, which all begin at ``Module.dynamic_shared``.
        initial: its first bytes; empty without initialiser.
        addresses: initial values that are addresses: offset in the variable, the variable pointed
            to, what is added, and whether the address is generic.
    """

    name: str
    space: str
    type: ScalarType
    align: int
    size: int | None
    offset: int
    initial: bytes = b""
    addresses: tuple[tuple[int, str, int, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class VariableAddress:
    """The address of a variable in its state space, as a value."""

    variable: Variable
    offset: int


@dataclass(frozen=True, slots=True)
class FunctionAddress:
    """The address of a function, as a value."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """What stands in square brackets: a base and bytes beside it; without base, the bytes alone."""

    base: Register | Variable | None
    offset: int


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """A tensor map in memory, and coordinates of a box: the first is the contiguous one."""

    tensor: Address
    coordinates: tuple[Register | Immediate, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """A predicate that is read negated."""

    register: Register


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: a result that nobody wants."""


@dataclass(frozen=True, slots=True)
class Vector:
    """Registers or numbers in braces."""

    elements: tuple[Register | Immediate | Sink, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """A label: the index of the instruction that follows it, which may be one past the last."""

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class Targets:
    """A list of labels that an index chooses from."""

    name: str
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Arguments:
    """The variables of space ``call`` that a call passes or returns."""

    variables: tuple[Variable, ...]


Operand: TypeAlias = (
    Register
    | Special
    | Immediate
    | VariableAddress
    | FunctionAddress
    | Address
    | TensorAddress
    | Negated
    | Sink
    | Vector
    | Target
    | Targets
    | Arguments
)


# ---- instructions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guard:
    """The predicate before an instruction: ``@p`` or ``@!p``."""

    register: Register
    negated: bool


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The line of the kernel's own source that an instruction comes from, by ``.loc``."""

    file: int
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        operation: the opcode with its modifiers, shared by all instructions of one text.
        operands: one for each of ``operation.roles``; None for an optional one that is missing.
        guard: the predicate before it.
        line: line of the PTX text, counted from 1.
        source: line of the kernel's source, if the text tells.
    """

    operation: Operation
    operands: tuple[Operand | None, ...]
    guard: Guard | None
    line: int
    source: SourceLine | None = None

    def operand(self, name: str) -> Operand | None:
        """Return an operand by its name in the table; None if an optional one is missing."""
        return self.operands[self.operation.positions[name]]


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel or a device function.

    Attributes:
        name: as the text spells it.
        entry: whether it is a kernel.
        parameters: variables of space ``param`` for a kernel, ``call`` for a function.
        returns: variables that a function returns.
        instructions: its code; empty for a function that the run-time library supplies.
        labels: index of the instruction after each label; labels of blocks that repeat a name are
            told apart by the line, ``DONE@120``.
        registers: all registers that the code names.
        banks: number of registers of each size in bits (1 for predicates).
        variables: variables that it declares itself.
        local_size: bytes of local memory of a thread.
        limits: performance directives, such as ``{"reqntid": (128, 1, 1)}``.
        line: line of its name.
    """

    name: str
    entry: bool
    parameters: tuple[Variable, ...]
    returns: tuple[Variable, ...]
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]
    registers: tuple[Register, ...]
    banks: Mapping[int, int]
    variables: tuple[Variable, ...]
    local_size: int
    limits: Mapping[str, tuple[int, ...]]
    line: int

    @property
    def parameter_size(self) -> int:
        """Bytes that all parameters take."""
        return max((p.offset + (p.size or 0) for p in self.parameters), default=0)


@dataclass(frozen=True)
class Module:
    """A PTX module.

    Attributes:
        version: of the PTX ISA.
        target: the architecture, ``sm_100a``.
        kernels: its kernels by name.
        functions: its device functions by name.
        variables: the variables outside of functions.
        sizes: bytes that the module's variables take in each state space.
        dynamic_shared: where shared memory begins whose size the launch gives.
        files: source files by the number that `SourceLine` has.
        text: the PTX.
    """

    version: tuple[int, int]
    target: str
    kernels: Mapping[str, Function]
    functions: Mapping[str, Function]
    variables: Mapping[str, Variable]
    sizes: Mapping[str, int]
    dynamic_shared: int
    files: Mapping[int, str]
    text: str = field(repr=False)

    def kernel(self, name: str | None = None) -> Function:
        """Return a kernel by name, or the only one.

        Raises:
            MissingKernelError: no kernel has the name, or there is not just one.
        """
        if name is None and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if name is None or name not in self.kernels:
            raise MissingKernelError(
                problem=self._without(name),
                names=", ".join(self.kernels) or "a module with at least one .entry",
                rewrite=f'kernel="{next(iter(self.kernels))}"' if self.kernels else "such a module",
            )
        return self.kernels[name]

    def _without(self, name: str | None) -> str:
        """Say why no kernel can be returned for a name."""
        if not self.kernels:
            return "the module has no kernel"
        if name is None:
            return f"the module has {len(self.kernels)} kernels, and none of them was chosen"
        return f"the module has no kernel named {name!r}"

    def place(self, line: int) -> Place:
        """Return a line of the text, for a message."""
        return Place(line, self.text.splitlines()[line - 1])
