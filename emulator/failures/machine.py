"""The chapter of errors of running warps: convergence, control flow, and kernels that never end.

What this module deliberately does not do: cover memory, barriers, copies or matrices.
"""

from __future__ import annotations

from flexfa4.emulator.errors import EmulationError


class MachineError(EmulationError):
    """A warp that cannot go on."""


class DeadlockError(MachineError):
    """Warps that wait for what will never happen, or go round in a loop that nothing ends."""

    found = "nothing can go on any more; groups of lanes that are left: {number}\n{waiting}"
    allowed = "waits that some other thread or copy ends"
    instead = "compare the counts and phases of the barriers with what arrives at them"


class InstructionLimitError(MachineError):
    """A launch that has executed more instructions than it was allowed."""

    found = (
        "more than {limit} instructions were executed; groups of lanes that are left in the"
        " cluster: {number}\n{waiting}"
    )
    allowed = "max_instructions={limit}, as the launch was called"
    instead = "look for the loop that does not end there, or allow more"


class NotUniformError(MachineError):
    """An operand that differs between the lanes of an instruction for the whole warp."""

    found = "{who}: lane {first_lane} has {first} where lane {other_lane} has {other}"
    allowed = "one value in all lanes, since the instruction is executed once for the warp"
    instead = "compute the operand from values that all lanes share, or elect one lane"


class NotAlignedError(MachineError):
    """An instruction for whole warps that only some lanes execute."""

    found = "{who}: only lanes {lanes} execute it, lanes {missing} of the warp do not"
    allowed = "an `.aligned` instruction only where all lanes of the warp execute it together"
    instead = "take the instruction out of the branch, or guard it by a condition of the warp"


class BranchIndexError(MachineError):
    """An index beyond the list of targets."""

    found = "{who}: the index is {index}, and the list has {count} targets"
    allowed = "an index below the number of targets"
    instead = "bound the index before the branch"


class TrapError(MachineError):
    """The kernel stopped itself."""

    found = "{who}: the kernel stopped itself by `{instruction}`"
    instead = "look for the condition that leads there"


class UnknownSpecialRegisterError(MachineError):
    """A special register without a value."""

    found = "{register} has no value in the emulator"
    allowed = "the special registers in emulator/native/machine/special_registers.cpp"
    instead = "add a row for it there"
