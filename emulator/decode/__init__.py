"""From a PTX module to the bytes that the execution core loads.

::

    reachable   the functions that a kernel calls, and those below them
    frames      what each of them gets of local memory, of space call and of shared memory
    registers   places in the register file of a warp: registers, numbers, special registers
    liveness    which registers of a function hold a value at the same time, and so need two places
    code        instructions and their operands as records
    encoding    the order of the bytes, which the core's `program/load.cpp` reads

The core knows no names and no scopes: registers become offsets in a register file, variables become
offsets in their state space, labels become indices.  Nothing is executed or folded here.
"""

from flexfa4.emulator.decode.code import decode

__all__ = ["decode"]
