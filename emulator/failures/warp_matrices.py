"""The chapter of wgmma: operands that the instruction does not take.

What this module deliberately does not do: cover descriptors and tensor memory
(`flexfa4.emulator.failures.matrices`).
"""

from __future__ import annotations

from flexfa4.emulator.errors import EmulationError


class WgmmaError(EmulationError):
    """A wgmma that the device does not have."""


class WarpgroupError(WgmmaError):
    """A product in a warpgroup that has not four warps."""

    found = "{who} is of a block of {warps} warps, the last of which make no warpgroup"
    allowed = "wgmma in all four warps of a warpgroup, whose first is a multiple of four"
    instead = "launch blocks whose threads are a multiple of 128"


class WgmmaScaleError(WgmmaError):
    """A scale that is no sign."""

    found = "{who}: {operand} is {scale}"
    allowed = "1 or -1"
    instead = "scale the factors before, or the result after"


class WgmmaTransposeError(WgmmaError):
    """A transposition that is no flag."""

    found = "{who}: {operand} is {found_value}"
    allowed = "0 for a K-major matrix, 1 for one that is M- or N-major"
    instead = "pass the flag that fits how the matrix lies in shared memory"


class WgmmaFenceError(WgmmaError):
    """A first product whose registers nothing orders."""

    found = "{who} has executed no wgmma.fence before this product"
    allowed = "wgmma.fence between other accesses to the registers of a product and the product"
    instead = "put wgmma.fence.sync.aligned before the first product of a loop"
