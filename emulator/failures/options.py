"""The chapter of the error catalogue for calling the emulator: options and arguments of launches.

Texts only: `flexfa4.emulator.options` and `flexfa4.emulator.kernel` decide when something is wrong.
"""

from __future__ import annotations

from flexfa4.emulator.errors import EmulationError


class CallError(EmulationError, ValueError):
    """A launch described in a way that no launch can be."""


class OptionError(CallError):
    """A value that an option does not have."""

    found = "{name} is {found_value}"
    allowed = "{expected}"
    instead = "another value, or leave {name} out"


class PtxSourceError(CallError, TypeError):
    """Something else than PTX text or its path: the path as a string, bytes, machine code."""

    found = "the PTX is {found_value}"
    allowed = "the text of a module as a str, or its path as a pathlib.Path"
    instead = "{rewrite}"


class SizesError(CallError):
    """Sizes that are none."""

    found = "{name} is {found_value}"
    allowed = "{expected}"
    instead = "{name}={rewrite}"


class ArgumentsError(CallError, TypeError):
    """Arguments that are no list of values."""

    found = "args is {found_value}"
    allowed = "a list or a tuple with a value for each parameter of the kernel"
    instead = "args=[x, ...]"


class ArgumentCountError(CallError):
    """More or fewer arguments than the kernel has parameters."""

    found = "{given} arguments were given to {kernel}, which has {wanted} parameters: {names}"
    allowed = "one argument for each parameter, in their order"
    instead = "args=[...] with {wanted} values"


class KernelArgumentError(CallError, TypeError):
    """An argument that cannot be the value of its parameter."""

    found = "argument {index} of {kernel} is {found_value}; the parameter {name} is {declared}"
    allowed = "{expected}"
    instead = "{rewrite}"


class BlockSizeError(CallError):
    """A block or cluster of another size than the kernel says."""

    found = "{kernel} was to be launched with {what} {found_value}; it says .{directive} {wanted}"
    allowed = "{expected}"
    instead = "{name}={wanted}"
