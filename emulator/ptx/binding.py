"""The meaning of operands: registers, numbers, addresses and vectors for one instruction.

`Binder` finds the row of the table whose operands those of an instruction can be, and gives each
its meaning: registers of the right size, numbers as bits of the operand's type, addresses in the
space that the instruction reaches.

What this module deliberately does not do: read tokens.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable

from flexfa4.emulator.errors import Place
from flexfa4.emulator.ptx.errors import (
    ArchitectureError,
    ImmediateError,
    ModifierError,
    OperandCountError,
    OperandError,
    OperandTypeError,
    UndefinedFunctionError,
    UnknownOpcodeError,
    VectorLengthError,
)
from flexfa4.emulator.ptx.forms import Access, Operation, Role, element_type
from flexfa4.emulator.ptx.operands import (
    Braces,
    Brackets,
    Name,
    Number,
    Parentheses,
    Written,
    integer,
)
from flexfa4.emulator.ptx.predefined import SPECIAL_REGISTERS
from flexfa4.emulator.ptx.program import (
    Address,
    Arguments,
    FunctionAddress,
    Immediate,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Target,
    Targets,
    TensorAddress,
    Variable,
    VariableAddress,
    Vector,
)
from flexfa4.emulator.ptx.scanner import Cursor, Token
from flexfa4.emulator.ptx.scopes import Block, nearest
from flexfa4.emulator.ptx.table import READER
from flexfa4.emulator.ptx.types import Kind, ScalarType, fits

SINK = Sink()


class Binder:
    """Gives the operands of a module's instructions their meaning.

    `functions` are the names that the module declares, and `calls` is where the names of called
    functions are kept.
    """

    def __init__(
        self, cursor: Cursor, target: str, functions: Collection[str], calls: list[Token]
    ) -> None:
        self.cursor = cursor
        self.target = target
        self.functions = functions
        self.calls = calls

    def bind(
        self, opcode: Token, written: list[Written], block: Block
    ) -> tuple[Operation, tuple[Operand | None, ...]]:
        """Return the operation of an instruction and its operands.

        A branch gets a `Target` without index: its label may follow.
        """
        operations = READER.operations(opcode.text)
        if not operations:
            raise self._unknown(opcode)
        for operation in operations:
            aligned = _align(operation.roles, written)
            if aligned is not None and self.target in operation.form.targets:
                bound = (
                    None if item is None else self._operand(operation, role, item, block)
                    for role, item in zip(operation.roles, aligned, strict=True)
                )
                return operation, tuple(bound)
        raise self._misfit(opcode, operations, written)

    def guard_register(self, token: Token, block: Block) -> Register:
        """Return the predicate that guards an instruction."""
        found = self._named(token, block)
        if isinstance(found, Register) and found.type.kind is Kind.PREDICATE:
            return found
        raise OperandError(
            where=self.cursor.place(token),
            name="guard",
            opcode="@",
            operand=f"`{token.text}`, no predicate",
            expected="a register that is declared .pred",
        )

    # ---- one operand

    def _operand(self, operation: Operation, role: Role, item: Written, block: Block) -> Operand:
        if isinstance(item, Brackets):
            return self._address(operation, role, item, block)
        if role.count or role.split:
            return self._vector(operation, role, item, block)
        if role.access is Access.LABEL:
            return Target(item.token.text, -1)
        if role.access is Access.LABELS:
            return Targets(item.token.text, ())
        if role.access is Access.FUNCTION:
            return self._function(item.token)
        if isinstance(item, Parentheses):
            return self._variables(operation, role, item, block)
        if role.access is Access.SINK:
            return SINK
        assert role.type is not None and not isinstance(item, Braces)
        return self._scalar(operation, role, item, block, role.type)

    def _scalar(
        self, operation: Operation, role: Role, item: Name | Number, block: Block, type_: ScalarType
    ) -> Register | Special | Immediate | VariableAddress | FunctionAddress | Negated | Sink:
        reads = role.access in (Access.READ, Access.NUMBER)
        if isinstance(item, Number):
            if not reads:
                raise self._wrong(operation, role, item, f"the number {item.text}")
            return Immediate(self._bits(item, type_))
        if item.token.text == "_":
            if "_" not in role.others:
                raise self._wrong(operation, role, item, "the sink `_`")
            return SINK
        found = self._named(item.token, block)
        if isinstance(found, Register):
            if item.plus or role.access is Access.NUMBER:
                raise self._wrong(operation, role, item, f"the register `{found.name}`")
            self._check_type(operation, role, item.token, found, type_)
            if not item.negated:
                return found
            if not role.negatable:
                raise self._wrong(operation, role, item, f"the negated `{found.name}`")
            return Negated(found)
        if item.negated:
            raise self._wrong(operation, role, item, f"the negated `{item.token.text}`")
        if isinstance(found, Special):
            if "special" in role.others and fits(found.type, type_, role.wider):
                return found
            raise self._wrong(operation, role, item, f"the {found.type} register `{found.name}`")
        if "symbol" not in role.others or type_.bits not in (32, 64):
            raise self._wrong(operation, role, item, f"the address of `{item.token.text}`")
        if isinstance(found, FunctionAddress):
            return found
        return VariableAddress(found, item.plus)

    def _vector(self, operation: Operation, role: Role, item: Written, block: Block) -> Vector:
        elements = item.elements if isinstance(item, Braces) else (item,)
        count = len(elements)
        assert role.type is not None
        allowed = (2, 4) if role.split else (role.count,)
        type_ = element_type(role.type, count) if role.split and count in allowed else role.type
        if count not in allowed or type_ is None:
            raise VectorLengthError(
                where=self.cursor.place(item.token),
                name=role.name,
                opcode=operation.text,
                count=count,
                expected=" or ".join(map(str, allowed)),
            )
        bound: list[Register | Immediate | Sink] = []
        for element in elements:
            assert isinstance(element, (Name, Number))
            if (
                isinstance(element, Name)
                and element.token.text == "_"
                and role.access is Access.WRITE
            ):
                bound.append(SINK)
                continue
            value = self._scalar(operation, role, element, block, type_)
            if not isinstance(value, (Register, Immediate)):
                raise self._wrong(operation, role, element, f"`{element.token.text}`")
            bound.append(value)
        sizes = {value.type.bits for value in bound if isinstance(value, Register)}
        if len(sizes) > 1:
            raise self._wrong(operation, role, item, "a vector of registers of several sizes")
        return Vector(tuple(bound))

    def _address(
        self, operation: Operation, role: Role, item: Brackets, block: Block
    ) -> Address | TensorAddress:
        base = None
        if item.base is not None:
            named = self._named(item.base, block)
            if not isinstance(named, (Register, Variable)):
                raise self._wrong(operation, role, item, f"`[{item.base.text}]`")
            self._check_base(operation, role, item.base, named)
            base = named
        elif role.space != "local":  # as ptxas has it
            raise self._wrong(operation, role, item, "an address without register")
        if not -(1 << 31) <= item.offset < 1 << 31:
            raise ImmediateError(
                where=self.cursor.place(item.token),
                number=item.offset,
                what="the offset of an address",
                expected="integers from -2**31 up to 2**31 - 1",
            )
        address = Address(base, item.offset)
        if item.coordinates is None:
            return address
        if len(item.coordinates) != role.rank:
            raise VectorLengthError(
                where=self.cursor.place(
                    item.coordinates[0].token if item.coordinates else item.token
                ),
                name="coordinates",
                opcode=operation.text,
                count=len(item.coordinates),
                expected=str(role.rank),
            )
        coordinates = []
        for element in item.coordinates:
            value = self._scalar(operation, _COORDINATE, element, block, _COORDINATE_TYPE)
            assert isinstance(value, (Register, Immediate))
            coordinates.append(value)
        return TensorAddress(address, tuple(coordinates))

    def _check_base(
        self, operation: Operation, role: Role, token: Token, base: Register | Variable
    ) -> None:
        if isinstance(base, Register):
            short = role.space.startswith("shared") or role.space in ("local", "param", "const")
            sizes = (32,) if role.space == "tensor" else (32, 64) if short else (64,)
            if base.type.bits in sizes and base.type.kind in (Kind.BITS, Kind.INTEGER):
                return
            raise OperandTypeError(
                where=self.cursor.place(token),
                name=role.name,
                opcode=operation.text,
                register=base.name,
                declared=base.type.name,
                expected=f"integers of {' or '.join(map(str, sizes))} bits for addresses"
                f" in {role.space} memory",
            )
        space = "param" if base.space == "call" and role.space != "call" else base.space
        if role.space not in ("generic", space) and not (
            space == "shared" and role.space == "shared::cluster"
        ):
            raise OperandError(
                where=self.cursor.place(token),
                name=role.name,
                opcode=operation.text,
                operand=f"`{base.name}` in {space} memory",
                expected=f"an address in {role.space} memory",
            )

    def _variables(
        self, operation: Operation, role: Role, item: Parentheses, block: Block
    ) -> Arguments:
        variables = []
        for element in item.elements:
            found = self._named(element.token, block) if isinstance(element, Name) else None
            if not isinstance(found, Variable) or found.space != "call":
                raise self._wrong(operation, role, element, f"`{element.token.text}`")
            variables.append(found)
        return Arguments(tuple(variables))

    def _function(self, token: Token) -> FunctionAddress:
        if token.text not in self.functions:
            raise UndefinedFunctionError(where=self.cursor.place(token), name=token.text)
        self.calls.append(token)
        return FunctionAddress(token.text)

    def _named(self, token: Token, block: Block) -> Register | Variable | Special | FunctionAddress:
        found = block.find(token.text)
        if found is not None:
            return found
        special = SPECIAL_REGISTERS.get(token.text)
        if special is not None:
            return Special(token.text.removeprefix("%"), special)
        if token.text in self.functions:
            return FunctionAddress(token.text)
        raise block.undeclared(token.text, self.cursor.place(token))

    def _bits(self, item: Number, type_: ScalarType) -> int:
        text = item.token.text
        value = integer(text)
        if value is None:
            return self._float_bits(item, type_)
        if item.negative:
            value = -value
        if type_.kind is Kind.PREDICATE:
            return int(value != 0)
        if type_.kind in (Kind.FLOAT, Kind.PACKED):
            raise self._no_number(item, type_)
        if -(1 << (type_.bits - 1)) <= value < 1 << type_.bits:
            return value & ((1 << type_.bits) - 1)
        raise ImmediateError(
            where=self.cursor.place(item.token),
            number=item.text,
            what=f"{type_.bits} bits",
            expected=f"integers from -2**{type_.bits - 1} up to 2**{type_.bits} - 1",
        )

    def _float_bits(self, item: Number, type_: ScalarType) -> int:
        text = item.token.text
        exact = {"0f": 32, "0d": 64}.get(text[:2].lower())
        of_float = type_.kind in (Kind.FLOAT, Kind.BITS) and type_.name != "f16x2"
        if exact == type_.bits and of_float:
            bits = int(text[2:], 16)
        elif exact is None and type_.name in ("f32", "f64"):
            try:
                packed = struct.pack("<f" if type_.name == "f32" else "<d", float(text))
            except OverflowError:
                raise self._no_number(item, type_) from None
            bits = int.from_bytes(packed, "little")
        else:
            raise self._no_number(item, type_)
        return bits ^ (1 << (type_.bits - 1)) if item.negative else bits

    # ---- errors

    def _no_number(self, item: Number, type_: ScalarType) -> ImmediateError:
        return ImmediateError(
            where=self.cursor.place(item.token),
            number=item.text,
            what=f"an operand of type {type_}",
            expected="for floats, 0f and 8 digits for 32 bits, 0d and 16 digits for 64 bits, or"
            " numbers with a point; for others, integers",
        )

    def _check_type(
        self, operation: Operation, role: Role, token: Token, register: Register, type_: ScalarType
    ) -> None:
        if not fits(register.type, type_, role.wider):
            raise OperandTypeError(
                where=self.cursor.place(token),
                name=role.name,
                opcode=operation.text,
                register=register.name,
                declared=register.type.name,
                expected=f"registers that hold {type_}{' or are wider' if role.wider else ''}",
            )

    def _wrong(self, operation: Operation, role: Role, item: Written, operand: str) -> OperandError:
        return OperandError(
            where=self.cursor.place(item.token),
            name=role.name,
            opcode=operation.text,
            operand=operand,
            expected=_describe(role),
        )

    def _misfit(
        self, opcode: Token, operations: Iterable[Operation], written: list[Written]
    ) -> ArchitectureError | OperandCountError | OperandError:
        here = [o for o in operations if self.target in o.form.targets]
        if not here:
            targets = sorted(frozenset().union(*(o.form.targets for o in operations)))
            return ArchitectureError(
                where=self.cursor.place(opcode),
                opcode=opcode.text,
                target=self.target,
                targets=", ".join(targets),
            )
        for operation in here:
            roles = [role for role in operation.roles if not role.optional]
            if len(roles) <= len(written) <= len(operation.roles):
                roles = roles if len(roles) == len(written) else list(operation.roles)
                for role, item in zip(roles, written, strict=False):
                    if not _can_be(role, item):
                        return self._wrong(operation, role, item, f"`{self._text(item)}`")
        return OperandCountError(
            where=self.cursor.place(opcode),
            opcode=opcode.text,
            count=len(written),
            usage=" or ".join(sorted({_usage(operation) for operation in here})),
        )

    def _unknown(self, opcode: Token) -> UnknownOpcodeError | ModifierError:
        where = self.cursor.place(opcode)
        read, wanted = READER.shortfall(opcode.text)
        words = opcode.text.split(".")
        if not read:
            heads = {form.name.split(".")[0] for form in READER.forms}
            return UnknownOpcodeError(
                where=where, opcode=words[0], nearest=nearest(words[0], heads)
            )
        start = len(".".join(words[:read]))
        problem, width, alike = "is not complete", 1, ""
        if read < len(words):
            problem = f"does not take `.{words[read]}`"
            width = len(words[read]) + 1
            alike = nearest(f".{words[read]}", [f".{value}" for value in wanted])
        names = sorted(f".{value}" for value in wanted) or ["no further modifier"]
        return ModifierError(
            where=Place(where.line, where.text, where.column + start, width),
            opcode=".".join(words[:read]),
            head=words[0],
            problem=problem,
            names=", ".join(names),
            nearest=alike,
        )

    def _text(self, item: Written) -> str:
        line = self.cursor.place(item.token)
        return line.text[line.column :].split(",")[0].rstrip("; ")


# Coordinates are signed: a box may begin before the tensor (PTX ISA, "Tensor coordinates").
_COORDINATE_TYPE = ScalarType("s32", Kind.INTEGER, 32)
_COORDINATE = Role("coordinates", Access.READ, _COORDINATE_TYPE)


def _align(roles: tuple[Role, ...], written: list[Written]) -> list[Written | None] | None:
    """Return what stands for each role, None where an optional one is missing; or None."""
    aligned: list[Written | None] = []
    position = 0
    for role in roles:
        if position < len(written) and _can_be(role, written[position]):
            aligned.append(written[position])
            position += 1
        elif role.optional:
            aligned.append(None)
        else:
            return None
    return aligned if position == len(written) else None


def _can_be(role: Role, item: Written) -> bool:
    """Whether what is written has the shape that a role needs; names are not looked up."""
    if item.paired != role.paired:
        return False
    if role.access is Access.ADDRESS:
        return isinstance(item, Brackets) and (item.coordinates is not None) == (role.rank > 0)
    if role.access is Access.VARIABLES:
        return isinstance(item, Parentheses)
    if role.split or role.count > 1:
        return isinstance(item, Braces)
    if role.count == 1:
        return isinstance(item, (Braces, Name))
    if role.access is Access.NUMBER:
        return isinstance(item, Number)
    if role.access is Access.SINK:
        return isinstance(item, Name) and item.token.text == "_"
    if role.access in (Access.LABEL, Access.LABELS, Access.FUNCTION):
        return isinstance(item, Name)
    return isinstance(item, (Name, Number))


def _describe(role: Role) -> str:
    if role.access is Access.ADDRESS:
        if role.rank:
            return f"a tensor map with {role.rank} coordinates, [address, {{x, ...}}]"
        return f"an address in {role.space} memory, in brackets"
    if role.access not in (Access.READ, Access.WRITE, Access.UPDATE, Access.NUMBER):
        return str(role.access.value)
    if role.split:
        return f"a vector in braces whose elements make up one {role.type}"
    if role.count:
        return f"a vector of {role.count} registers of type {role.type}, in braces"
    if role.access is Access.NUMBER:
        return f"a number of type {role.type}"
    kinds = [f"a {role.type} register"]
    if role.access is Access.READ:
        kinds.append("a number")
    names = {"_": "the sink `_`", "special": "a special register", "symbol": "a variable"}
    kinds += [names[other] for other in sorted(role.others)]
    return " or ".join(kinds)


def _usage(operation: Operation) -> str:
    words: list[str] = []
    for role in operation.roles:
        word = f"[{role.name}]" if role.access is Access.ADDRESS else role.name
        word = f"{{{word}}}" if role.count or role.split else word
        separator = "|" if role.paired else ", " if words else ""
        words.append(f"({separator}{word})" if role.optional else f"{separator}{word}")
    return "`" + ("".join(words) or "no operands") + "`"
