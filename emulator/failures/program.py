"""The chapter of the error catalogue for loading a kernel: what the core cannot take.

Texts only: `flexfa4.emulator.decode` and the core's ``program`` folder decide when something is
wrong.
"""

from __future__ import annotations

from flexfa4.emulator.errors import EmulationError


class ProgramError(EmulationError):
    """A kernel that PTX allows and the core does not run."""


class RecursionFoundError(ProgramError):
    """A function that calls itself, by whatever way."""

    found = "the function {name} calls itself: {way}"
    allowed = "calls that end: registers and local memory are laid out before the launch"
    instead = "a loop"


class IndirectCallError(ProgramError):
    """The address of a function as a value."""

    found = "the address of the function {name} is taken"
    allowed = "calls of functions by name"
    instead = "call {name}"


class AddressInInitialValueError(ProgramError):
    """A variable whose initial value is the address of another one."""

    found = "the initial value of {name} has the address of {target}"
    allowed = "numbers: where variables lie is decided at the launch"
    instead = "a store of the address in the kernel"


class WideImmediateError(ProgramError):
    """A number of more than 64 bits."""

    found = "`{text}` has a number of more than 64 bits"
    allowed = "numbers up to 2**64 - 1"
    instead = "mov.b128 from two registers of 64 bits"


class CounterOperandError(ProgramError):
    """A special register that counts, in another instruction than mov."""

    found = "`{text}` reads %{name}"
    allowed = "%{name} in mov only: its value is another one each time it is read"
    instead = "mov %{name} into a register first"


class UnfencedProductError(ProgramError):
    """A product that uses a register which was computed with no wgmma.fence between."""

    found = "{register} is computed, and used by this product, on a way without wgmma.fence between"
    allowed = "registers of A and D that were written before the last wgmma.fence, but by moves"
    instead = "put wgmma.fence.sync.aligned before the products"


class UnsupportedOperationError(ProgramError, NotImplementedError):
    """An instruction that the reader knows and the core does not execute."""

    found = "`{text}` is not executed by the emulator"
    allowed = "instructions of which docs/emulator.md says that they are"
    instead = "another instruction, or a report of this one"


class UnreadModifierError(ProgramError, NotImplementedError):
    """A modifier that the code of an instruction does not look at."""

    found = "the modifier .{modifier} of `{text}` is not executed by the emulator"
    allowed = "modifiers that the code of the instruction reads; none is passed over"
    instead = "the instruction without .{modifier}, or a report of this one"


class InternalProgramError(EmulationError, RuntimeError):
    """A fault of the emulator itself."""


class MissingRoleError(InternalProgramError):
    """Code that asked for an operand that its instruction has not."""

    found = "the code of `{text}` asks for an operand {role}, which the table does not give it"
    instead = "a report: this is a fault of the emulator"


class UnreadableProgramError(InternalProgramError):
    """Bytes that are no decoded kernel."""

    found = "the core cannot read the decoded kernel: {detail}"
    instead = "a report: this is a fault of the emulator"


class UnnamedFailureError(InternalProgramError):
    """A failure of the core without a text."""

    found = "the core reports {name}: {details}"
    instead = "a report: this is a fault of the emulator"


class CoreExceptionError(InternalProgramError):
    """An exception of the core that is no failure of a kernel."""

    found = "the core ended with {detail}"
    instead = "less memory, if it has none left; else a report: this is a fault of the emulator"


class UnknownSpaceError(InternalProgramError):
    """A state space that the core does not know."""

    found = "the code of an instruction asks for the state space {space!r}"
    instead = "a report: this is a fault of the emulator"
