"""The chapter of errors for PTX that cannot be read.

`flexfa4.emulator.errors` tells how a message is made.  Each class is one kind of mistake; the code
that raises it gives names and numbers.

What this module deliberately does not do: report what goes wrong while a kernel runs.
"""

from __future__ import annotations

from flexfa4.emulator.errors import EmulationError


class PtxError(EmulationError):
    """PTX text that cannot be read."""


# ---- the text -----------------------------------------------------------------------------------


class CharacterError(PtxError):
    """A character that starts nothing."""

    found = "the character {character!r} starts nothing in PTX"
    allowed = "names, numbers, strings, comments and the punctuation of PTX"
    instead = "pass the text that the compiler wrote, decoded as ASCII"


class TruncatedError(PtxError):
    """Text that ends where something is still open."""

    found = "the text ends inside {construct}"
    allowed = "{expected}"
    instead = "pass the whole file; this one was cut off"


class SyntaxMistakeError(PtxError):
    """A token that cannot stand where it stands."""

    found = "`{token}` cannot stand here"
    allowed = "{expected}"
    instead = "compare the line with the PTX ISA, or report it if a compiler wrote it"


class MissingMarkError(PtxError):
    """A line that ends where something has to follow: most often, its semicolon."""

    found = "{expected} is missing behind `{before}`"
    allowed = "a semicolon at the end of every instruction and declaration"
    instead = "put a semicolon there, if nothing else was forgotten"


class DirectiveError(PtxError):
    """A directive that the reader does not know."""

    found = "`{directive}` is no directive that can stand {place}"
    allowed = "{names}"
    instead = "remove the directive, or add it to the tables of flexfa4.emulator.ptx.parser"


class PragmaError(PtxError):
    """A pragma of unknown effect."""

    found = "the pragma {pragma!r} is not known"
    allowed = "{names}, which change no result"
    instead = "remove the pragma, or add it to the table of pragmas"


# ---- the header ---------------------------------------------------------------------------------


class VersionError(PtxError):
    """A version of the PTX ISA that the table of instructions was not written for."""

    found = "the text is PTX {version}"
    allowed = "PTX versions {oldest} up to, and without, {newest}"
    instead = "compile with a toolkit that writes one of these versions"


class TargetError(PtxError):
    """PTX for an architecture that is not emulated, or not the one asked for."""

    found = "the text is for {target}"
    allowed = "{targets}"
    instead = "compile with CUTE_DSL_ARCH={example}, or nvcc -arch={example}"


class AddressSizeError(PtxError):
    """PTX with pointers of other than 64 bits."""

    found = "the text has addresses of {size} bits"
    allowed = ".address_size 64"
    instead = "compile for 64 bits"


class HeaderError(PtxError):
    """A text that does not say what it is."""

    found = "the text has no {directive} before its first declaration"
    allowed = ".version, .target and .address_size at the start, in this order"
    instead = "pass the whole PTX file that the compiler wrote, not CUDA C++ or machine code"


class MissingKernelError(PtxError):
    """A kernel that the module does not have."""

    found = "{problem}"
    allowed = "{names}"
    instead = "{rewrite}"


# ---- names --------------------------------------------------------------------------------------


class UndeclaredError(PtxError):
    """A name that nothing in reach declares."""

    found = "`{name}` is not declared here"
    allowed = "registers, variables and special registers{nearest}"
    instead = "declare it before this line, in this block or in one around it"


class UndefinedLabelError(PtxError):
    """A branch to a label that is not in reach."""

    found = "no label `{name}` is in reach of this instruction"
    allowed = "labels of this block and of those around it{nearest}"
    instead = "set the label in a block that encloses the branch"


class UndefinedFunctionError(PtxError):
    """A call of a function that the module does not define."""

    found = "the function `{name}` is called and has no body in this module"
    allowed = "functions that the module defines, printf and assertions"
    instead = "link the function into the module, or compile the kernel without the call"


class DuplicateError(PtxError):
    """A name that the same block declares twice."""

    found = "the {what} `{name}` is declared twice; first in line {first}"
    allowed = "one declaration of a name in a block"
    instead = "enclose repeated assembly in braces, which give its names a scope"


class InitialValuesError(PtxError):
    """More initial values than a variable has elements."""

    found = "`{name}` has {count} initial values"
    allowed = "at most {size}, one for each element"
    instead = "declare a longer array, or give fewer values"


# ---- instructions -------------------------------------------------------------------------------


class UnknownOpcodeError(PtxError):
    """An instruction that the table does not have."""

    found = "the instruction `{opcode}` is not in the table"
    allowed = "the opcodes of flexfa4.emulator.ptx.table{nearest}"
    instead = "correct the name, or add a row for it to the table; nothing is skipped"


class ModifierError(PtxError):
    """A modifier that the instruction does not take, or not there."""

    found = "`{opcode}` {problem}"
    allowed = "{names}{nearest}"
    instead = "correct it, or add it to a row of `{head}` in the table; nothing is ignored"


class ArchitectureError(PtxError):
    """An instruction that the target of the module does not have."""

    found = "`{opcode}` does not exist on {target}"
    allowed = "{targets}"
    instead = "compile the kernel for an architecture that has it"


class OperandCountError(PtxError):
    """Too many or too few operands."""

    found = "`{opcode}` has {count} operands here"
    allowed = "{usage}"
    instead = "give the operands that the instruction takes"


class OperandError(PtxError):
    """An operand of the wrong kind."""

    found = "operand {name} of `{opcode}` is {operand}"
    allowed = "{expected}"
    instead = "give an operand of this kind"


class OperandTypeError(PtxError):
    """A register whose declaration does not go with the instruction."""

    found = "operand {name} of `{opcode}` is the register `{register}`, declared .{declared}"
    allowed = "{expected}"
    instead = "declare the register with the size and type of the instruction"


class VectorLengthError(PtxError):
    """A vector of too many or too few registers."""

    found = "operand {name} of `{opcode}` has {count} elements"
    allowed = "{expected}"
    instead = "give as many registers as the modifiers say"


class ImmediateError(PtxError):
    """A number that its operand cannot hold."""

    found = "`{number}` does not fit {what}"
    allowed = "{expected}"
    instead = "write a number of this form and within its range"
