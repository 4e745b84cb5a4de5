"""The bytes of a decoded kernel: records, and their order.

Everything is little-endian.  A text is its length (u32) and UTF-8; a list is its length (u32) and
its elements.  In this order:

==============  ==================================================================================
magic, version  u32 ``EMFX``, u32
kernel, target  texts
sizes           u32 each: register file, parameters, space call, local memory, shared memory
global, const   bytes as a list: the module's variables with their initial values
operations      text, name, modifiers (slot, value, u8 hint, u8 in_roles), roles (name, type name,
                u8 kind, u32 bits, u32 count, space, u32 rank)
operands        `OperandRecord`
instructions    `InstructionRecord`
functions       name, u8 host, u32 first, u32 count, parameters and returns (operands)
initials        `InitialRecord`
==============  ==================================================================================

The core reads them in ``native/program/load.cpp``; the numbers of the enumerations are those of
``native/program/program.hpp``.  Whoever changes the order changes `VERSION` on both sides.

What this module deliberately does not do: decide what stands in a record.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from flexfa4.emulator.ptx.forms import Operation, Role
from flexfa4.emulator.ptx.types import TYPES, Kind

MAGIC: Final = 0x58464D45
VERSION: Final = 1
NOWHERE: Final = 0xFFFF_FFFF

T = TypeVar("T")


class Is(enum.IntEnum):
    """What an operand is: ``Operand::Is``."""

    MISSING = 0
    REGISTER = 1
    PREDICATE = 2
    SINK = 3
    ADDRESS = 4
    TENSOR = 5
    VECTOR = 6
    NUMBER = 7
    TARGET = 8
    TARGETS = 9
    FUNCTION = 10
    VARIABLES = 11


class Filled(enum.IntEnum):
    """What fills a register when a warp starts: ``Initial::Is``."""

    NUMBER = 0
    SHARED = 1
    SHARED_GENERIC = 2
    GLOBAL = 3
    CONST = 4
    CONST_GENERIC = 5
    PARAM = 6
    PARAM_GENERIC = 7
    LOCAL = 8
    LOCAL_GENERIC = 9
    SPECIAL = 10


_KINDS: Final = {kind: number for number, kind in enumerate(Kind)}
# of the values of modifiers, those that roles say too
_IN_ROLES: Final = frozenset(TYPES) | {
    "global",
    "shared",
    "shared::cta",
    "shared::cluster",
    "local",
    "const",
    "param",
    "param::entry",
    "param::func",
}
_OPERAND: Final = struct.Struct("<BBBIIIQI")
_INSTRUCTION: Final = struct.Struct("<IIIBI")
_INITIAL: Final = struct.Struct("<BBIQ")


@dataclass(frozen=True, slots=True)
class OperandRecord:
    """An operand as the core sees it; fields are those of its struct ``Operand``."""

    kind: Is
    negated: bool = False
    bits: int = 0
    place: int = NOWHERE
    count: int = 0
    size: int = 0
    value: int = 0
    elements: int = 0


@dataclass(frozen=True, slots=True)
class InstructionRecord:
    """An instruction: indices of its operation and first operand, its guard's place, its line."""

    operation: int
    operands: int
    guard: int
    guard_negated: bool
    line: int


@dataclass(frozen=True, slots=True)
class InitialRecord:
    """A register that is filled when a warp starts."""

    kind: Filled
    bits: int
    place: int
    value: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """An operation under the name that its binder is registered by, with its roles."""

    operation: Operation
    name: str
    roles: tuple[Role, ...]


@dataclass(frozen=True, slots=True)
class FunctionRecord:
    """A function: where its instructions are, and where its parameters and results lie."""

    name: str
    host: bool
    first: int
    count: int
    parameters: tuple[OperandRecord, ...]
    returns: tuple[OperandRecord, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the memories that the program needs."""

    registers: int
    parameters: int
    call: int
    local: int
    shared: int


@dataclass
class ProgramRecord:
    """A decoded kernel."""

    kernel: str
    target: str
    sizes: Sizes
    global_bytes: bytes
    constant_bytes: bytes
    operations: list[OperationRecord] = field(default_factory=list)
    operands: list[OperandRecord] = field(default_factory=list)
    instructions: list[InstructionRecord] = field(default_factory=list)
    functions: list[FunctionRecord] = field(default_factory=list)
    initials: list[InitialRecord] = field(default_factory=list)

    def encode(self) -> bytes:
        """Return the bytes that the core loads."""
        out = _Writer()
        out.u32(MAGIC, VERSION)
        out.text(self.kernel, self.target)
        sizes = self.sizes
        out.u32(sizes.registers, sizes.parameters, sizes.call, sizes.local, sizes.shared)
        out.blob(self.global_bytes)
        out.blob(self.constant_bytes)
        out.list(self.operations, out.operation)
        out.list(self.operands, out.operand)
        out.list(self.instructions, out.instruction)
        out.list(self.functions, out.function)
        out.list(self.initials, out.initial)
        return bytes(out.data)


def encode_operation(record: OperationRecord) -> bytes:
    """Return the bytes of one operation alone, for `flexfa4.emulator.native.library.bind`."""
    out = _Writer()
    out.operation(record)
    return bytes(out.data)


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray()

    def u8(self, *values: int) -> None:
        self.data += bytes(values)

    def u32(self, *values: int) -> None:
        self.data += struct.pack(f"<{len(values)}I", *values)

    def text(self, *texts: str) -> None:
        for text in texts:
            self.blob(text.encode())

    def blob(self, data: bytes) -> None:
        self.u32(len(data))
        self.data += data

    def list(self, items: Iterable[T], write: Callable[[T], None]) -> None:
        items = list(items)
        self.u32(len(items))
        for item in items:
            write(item)

    def operation(self, record: OperationRecord) -> None:
        operation = record.operation
        self.text(operation.text, record.name)
        self.u32(len(operation.modifiers))
        for slot, value in operation.modifiers.items():
            self.text(slot, value)
            self.u8(slot in operation.hints, value in _IN_ROLES)
        self.list(record.roles, self.role)

    def role(self, role: Role) -> None:
        self.text(role.name, role.type.name if role.type else "")
        self.u8(_KINDS[role.type.kind if role.type else Kind.BITS])
        self.u32(role.type.bits if role.type else 0, role.count)
        self.text(role.space)
        self.u32(role.rank)

    def operand(self, o: OperandRecord) -> None:
        value = o.value & 0xFFFF_FFFF_FFFF_FFFF
        self.data += _OPERAND.pack(
            o.kind, o.negated, o.bits, o.place, o.count, o.size, value, o.elements
        )

    def instruction(self, i: InstructionRecord) -> None:
        self.data += _INSTRUCTION.pack(i.operation, i.operands, i.guard, i.guard_negated, i.line)

    def function(self, record: FunctionRecord) -> None:
        self.text(record.name)
        self.u8(record.host)
        self.u32(record.first, record.count)
        self.list(record.parameters, self.operand)
        self.list(record.returns, self.operand)

    def initial(self, i: InitialRecord) -> None:
        self.data += _INITIAL.pack(i.kind, i.bits, i.place, i.value)
        self.text(i.name)
