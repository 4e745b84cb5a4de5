"""Instructions and their operands as the records that the core loads.

One method for each thing that an operand can be, found in a table by its class.  The instructions
of all functions make one list, the kernel's first; behind each function stands an `exit` or `ret`
of its own, so that running off the end is like any other end.

An operand that is an address goes in as a register with the address or as a number: variables of
spaces that the core addresses from 0 (parameters, constants, local memory) are numbers, those of
shared and global memory are registers that are filled when a warp starts.

What this module deliberately does not do: check operands, which the reader of PTX has done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from flexfa4.emulator.decode.encoding import (
    NOWHERE,
    Filled,
    FunctionRecord,
    InstructionRecord,
    Is,
    OperandRecord,
    OperationRecord,
    ProgramRecord,
    Sizes,
)
from flexfa4.emulator.decode.frames import Frames
from flexfa4.emulator.decode.liveness import allocate
from flexfa4.emulator.decode.reachable import reachable
from flexfa4.emulator.decode.registers import PREDICATE, RegisterFile, register_bits
from flexfa4.emulator.decode.wgmma_registers import check_fences
from flexfa4.emulator.failures.program import (
    AddressInInitialValueError,
    CounterOperandError,
    IndirectCallError,
    WideImmediateError,
)
from flexfa4.emulator.ptx.forms import Access, Operation, Role, element_type
from flexfa4.emulator.ptx.predefined import HOST_FUNCTIONS
from flexfa4.emulator.ptx.program import (
    Address,
    Arguments,
    Function,
    FunctionAddress,
    Immediate,
    Instruction,
    Module,
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
from flexfa4.emulator.ptx.table import READER
from flexfa4.emulator.ptx.types import ScalarType

T = TypeVar("T")

COUNTERS: Final = frozenset(
    {"clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi"}
)
"""Special registers that are read anew each time: by the operation `COUNTER_MOVE`, which finds the
name where an operand has its state space."""

COUNTER_MOVE: Final = "mov.counter"

_IN_SPACE: Final = {
    "shared": Filled.SHARED,
    "global": Filled.GLOBAL,
    "const": Filled.CONST,
    "param": Filled.PARAM,
    "local": Filled.LOCAL,
    "call": Filled.NUMBER,
}
_GENERIC: Final = {
    "shared": Filled.SHARED_GENERIC,
    "global": Filled.GLOBAL,
    "const": Filled.CONST_GENERIC,
    "param": Filled.PARAM_GENERIC,
    "local": Filled.LOCAL_GENERIC,
}
_FROM_ZERO: Final = frozenset({"param", "const", "local", "call"})


def decode(module: Module, kernel: str | None = None) -> bytes:
    """Return the bytes of a kernel that the core loads.

    Args:
        module: a module as read.
        kernel: name of the kernel; not needed where there is one only.

    Raises:
        MissingKernelError: the module has no such kernel.
        ProgramError: the kernel has something that the core does not run.
    """
    return _Decoder(module, module.kernel(kernel)).decode().encode()


class _Decoder:
    """Decodes one kernel with the functions that it calls."""

    def __init__(self, module: Module, kernel: Function) -> None:
        self.module = module
        self.kernel = kernel
        self.functions = reachable(module, kernel)
        self.frames = Frames.of(self.functions)
        self.registers = RegisterFile()
        self.firsts: dict[str, int] = {}  # index of each function's first instruction
        self.numbers = {f.name: number for number, f in enumerate(self.functions)}
        self.operations: dict[tuple[Operation, str], int] = {}
        self.function = kernel  # the one that is decoded
        first = 0
        for function in self.functions:
            check_fences(function, module)
            places = allocate(function)
            self.registers.add_function(function.name, places.slots, places.banks)
            self.firsts[function.name] = first
            first += len(function.instructions) + _has_code(function)  # and its end

    def decode(self) -> ProgramRecord:
        record = ProgramRecord(
            kernel=self.kernel.name,
            target=self.module.target,
            sizes=Sizes(0, 0, 0, 0, 0),
            global_bytes=self._module_bytes("global"),
            constant_bytes=self._module_bytes("const"),
        )
        self.record = record
        for function in self.functions:
            self.function = function
            self._decode_function(function)
        record.initials = self.registers.initials
        record.sizes = Sizes(
            registers=self.registers.size,
            parameters=self.kernel.parameter_size,
            call=self.frames.call_size,
            local=self.frames.local_size,
            shared=self.frames.shared_size,
        )
        return record

    def _module_bytes(self, space: str) -> bytes:
        data = bytearray(self.module.sizes.get(space, 0))
        named = [*self.module.variables.values(), *(v for f in self.functions for v in f.variables)]
        for variable in named:
            if variable.space != space:
                continue
            for _, target, _, _ in variable.addresses:
                raise AddressInInitialValueError(name=variable.name, target=target)
            data[variable.offset : variable.offset + len(variable.initial)] = variable.initial
        return bytes(data)

    # ---- functions and instructions

    def _decode_function(self, function: Function) -> None:
        first = len(self.record.instructions)
        for instruction in function.instructions:
            self._decode_instruction(instruction)
        if _has_code(function):
            (end,) = READER.operations("exit" if function.entry else "ret")
            line = function.instructions[-1].line if function.instructions else function.line
            self._decode_instruction(Instruction(end, (), None, line))
        self.record.functions.append(
            FunctionRecord(
                name=function.name,
                host=not _has_code(function),
                first=first,
                count=len(self.record.instructions) - first,
                parameters=() if function.entry else self._passed(function, function.parameters),
                returns=self._passed(function, function.returns),
            )
        )

    def _passed(
        self, function: Function, variables: tuple[Variable, ...]
    ) -> tuple[OperandRecord, ...]:
        start = self.frames.call[function.name]
        return tuple(
            OperandRecord(Is.NUMBER, size=v.size or 0, value=start + v.offset) for v in variables
        )

    def _decode_instruction(self, instruction: Instruction) -> None:
        operation, operands = instruction.operation, instruction.operands
        counter = next(
            (o.name for o in operands if isinstance(o, Special) and o.name in COUNTERS), ""
        )
        if counter and operation.name != "mov":
            raise CounterOperandError(
                where=self.module.place(instruction.line), text=operation.text, name=counter
            )
        try:
            records = [
                self._operand(role, operand)
                for role, operand in zip(operation.roles, operands, strict=True)
            ]
        except IndirectCallError as error:
            raise IndirectCallError(
                where=self.module.place(instruction.line), **error.fields
            ) from None
        guard = instruction.guard
        self.record.instructions.append(
            InstructionRecord(
                operation=self._operation(operation, counter),
                operands=len(self.record.operands),
                guard=NOWHERE if guard is None else self._place(guard.register),
                guard_negated=guard is not None and guard.negated,
                line=instruction.line,
            )
        )
        self.record.operands += records

    def _operation(self, operation: Operation, counter: str) -> int:
        key = (operation, counter)
        if key not in self.operations:
            self.operations[key] = len(self.operations)
            name, roles = operation.name, operation.roles
            if counter:
                d, a = roles
                name, roles = COUNTER_MOVE, (d, Role(a.name, a.access, a.type, space=counter))
            self.record.operations.append(OperationRecord(operation, name, roles))
        return self.operations[key]

    # ---- operands

    def _operand(self, role: Role, operand: Operand | None) -> OperandRecord:
        if operand is None:
            return OperandRecord(Is.MISSING)
        if role.access is Access.NUMBER:
            assert isinstance(operand, Immediate) and role.type is not None
            return OperandRecord(Is.NUMBER, value=_signed(operand.bits, role.type))
        return _OPERANDS[type(operand)](self, role, operand)

    def _place(self, register: Register) -> int:
        return self.registers.place(self.function.name, register)

    def _filled(self, kind: Filled, bits: int, value: int, name: str = "") -> OperandRecord:
        bits = register_bits(bits)
        place = self.registers.filled(kind, bits, value, name)
        return OperandRecord(_scalar_kind(bits), bits=bits, place=place)

    def _register(self, role: Role, operand: Register) -> OperandRecord:
        bits = register_bits(operand.type.bits)
        return OperandRecord(_scalar_kind(bits), bits=bits, place=self._place(operand))

    def _negated(self, role: Role, operand: Negated) -> OperandRecord:
        place = self._place(operand.register)
        return OperandRecord(Is.PREDICATE, negated=True, bits=PREDICATE, place=place)

    def _sink(self, role: Role, operand: Sink) -> OperandRecord:
        return self._nowhere(register_bits(role.type.bits) if role.type else 64)

    def _nowhere(self, bits: int) -> OperandRecord:
        return OperandRecord(Is.SINK, bits=bits, place=self.registers.sink())

    def _immediate(self, role: Role, operand: Immediate) -> OperandRecord:
        assert role.type is not None
        if operand.bits >> 64:
            raise WideImmediateError(text=f"{operand.bits:#x}")
        return self._filled(Filled.NUMBER, role.type.bits, operand.bits)

    def _special(self, role: Role, operand: Special) -> OperandRecord:
        if operand.name in COUNTERS:
            return OperandRecord(Is.MISSING)
        return self._filled(Filled.SPECIAL, operand.type.bits, 0, operand.name)

    def _variable_address(self, role: Role, operand: VariableAddress) -> OperandRecord:
        assert role.type is not None
        variable = operand.variable
        offset = self._offset(variable) + operand.offset
        return self._filled(_IN_SPACE[variable.space], role.type.bits, offset)

    def _function_operand(self, role: Role, operand: FunctionAddress) -> OperandRecord:
        if role.access is not Access.FUNCTION:
            raise IndirectCallError(name=operand.name)
        return OperandRecord(Is.FUNCTION, value=self.numbers[operand.name])

    def _address(self, role: Role, operand: Address) -> OperandRecord:
        base, offset = operand.base, operand.offset
        if isinstance(base, Register):
            return OperandRecord(
                Is.ADDRESS,
                bits=register_bits(base.type.bits),
                place=self._place(base),
                value=offset,
            )
        if base is None:
            return OperandRecord(Is.ADDRESS, value=offset)
        offset += self._offset(base)
        if role.space == "generic":
            kind, bits = _GENERIC[base.space], 64
        elif base.space in _FROM_ZERO:
            # both variables of calls and a kernel's parameters are read by ld.param: the size tells
            size = base.size or 0 if base.space == "call" else 0
            return OperandRecord(Is.ADDRESS, size=size, value=offset)
        else:
            kind, bits = _IN_SPACE[base.space], 32 if base.space == "shared" else 64
        return OperandRecord(
            Is.ADDRESS, bits=bits, place=self.registers.filled(kind, bits), value=offset
        )

    def _offset(self, variable: Variable) -> int:
        """Return where a variable lies in what the program has of its state space."""
        if variable.space == "shared":
            return self.frames.shared[variable]
        frames = {"local": self.frames.local, "call": self.frames.call}.get(variable.space)
        return variable.offset + (frames[self.function.name] if frames else 0)

    def _tensor(self, role: Role, operand: TensorAddress) -> OperandRecord:
        base = self._address(role, operand.tensor)
        coordinates = [
            self._register(role, c)
            if isinstance(c, Register)
            else self._filled(Filled.NUMBER, 32, c.bits)
            for c in operand.coordinates
        ]
        return OperandRecord(
            Is.TENSOR,
            bits=base.bits,
            place=base.place,
            count=len(coordinates),
            value=base.value,
            elements=self._append(coordinates),
        )

    def _vector(self, role: Role, operand: Vector) -> OperandRecord:
        assert role.type is not None
        count = len(operand.elements)
        type_ = element_type(role.type, count) if role.split else role.type
        widths = [r.type.bits for r in operand.elements if isinstance(r, Register)]
        element = Role(role.name, role.access, type_)
        bits = register_bits(max(widths, default=type_.bits if type_ else 0))
        records = [
            self._nowhere(bits) if isinstance(e, Sink) else _OPERANDS[type(e)](self, element, e)
            for e in operand.elements
        ]
        return OperandRecord(Is.VECTOR, bits=bits, place=self._append(records), count=count)

    def _target(self, role: Role, operand: Target) -> OperandRecord:
        return OperandRecord(Is.TARGET, value=self.firsts[self.function.name] + operand.index)

    def _targets(self, role: Role, operand: Targets) -> OperandRecord:
        records = [self._target(role, target) for target in operand.targets]
        return OperandRecord(Is.TARGETS, place=self._append(records), count=len(records))

    def _arguments(self, role: Role, operand: Arguments) -> OperandRecord:
        records = list(self._passed(self.function, operand.variables))
        return OperandRecord(Is.VARIABLES, place=self._append(records), count=len(records))

    def _append(self, records: list[OperandRecord]) -> int:
        start = len(self.record.operands)
        self.record.operands += records
        return start


def _has_code(function: Function) -> bool:
    """Whether a function is the text's own, and not the run-time library's."""
    return bool(function.instructions) or function.name not in HOST_FUNCTIONS


def _scalar_kind(bits: int) -> Is:
    return Is.PREDICATE if bits == PREDICATE else Is.REGISTER


def _signed(bits: int, type_: ScalarType) -> int:
    if type_.name.startswith("s") and bits >> (type_.bits - 1):
        return bits - (1 << type_.bits)
    return bits


_OPERANDS: Final[dict[type, Callable[[_Decoder, Role, Any], OperandRecord]]] = {
    Register: _Decoder._register,
    Negated: _Decoder._negated,
    Sink: _Decoder._sink,
    Immediate: _Decoder._immediate,
    Special: _Decoder._special,
    VariableAddress: _Decoder._variable_address,
    FunctionAddress: _Decoder._function_operand,
    Address: _Decoder._address,
    TensorAddress: _Decoder._tensor,
    Vector: _Decoder._vector,
    Target: _Decoder._target,
    Targets: _Decoder._targets,
    Arguments: _Decoder._arguments,
}
