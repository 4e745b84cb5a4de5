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


class PathAsTextError(CallError):
    """The path of a file as a string, where its text is meant to be."""

    found = "the PTX text is {found_value}, which is the name of a file"
    allowed = "the text of a module, or its path as a pathlib.Path"
    instead = "load(Path({found_value}))"


class SizesError(CallError):
    """Sizes that are none."""

    found = "{name} is {found_value}"
    allowed = "whole numbers: for grid, block and cluster up to three, x, y, z"
    instead = "{name}=1"


class ArgumentCountError(CallError):
    """More or fewer arguments than the kernel has parameters."""

    found = "{given} arguments were given to {kernel}, which has {wanted} parameters: {names}"
    allowed = "one argument for each parameter, in their order"
    instead = "args=[...] with {wanted} values"


class KernelArgumentError(CallError, TypeError):
    """An argument that cannot be the value of its parameter."""

    found = (
        "argument {index} of {kernel} is {found_value}, for the parameter {name} of {nbytes} bytes"
    )
    allowed = "{expected}"
    instead = "a CPU tensor for a pointer, a number for a scalar, bytes for a struct"


class BlockSizeError(CallError):
    """A block or cluster of another size than the kernel says."""

    found = "{kernel} was to be launched with {what} {found_value}; it says .{directive} {wanted}"
    allowed = "{expected}"
    instead = "{name}={wanted}"
