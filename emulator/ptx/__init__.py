"""Reads the PTX that compilers write, strictly, into structures that an execution core runs.

The way of a text: `scanner` makes tokens; `parser` reads directives, functions and blocks;
`declarations` gives variables their places and `scopes` gives names their meaning; `operands` reads
operands as written, and `binding` gives them theirs by the rows of `table` and `matrix_rows`, whose
notation `forms` explains and whose modifiers stand in `slots`.  What comes out is in `program`.
`types` are the scalar types, `predefined` what PTX has undeclared, `architectures` the targets that
are read, and `errors` is the chapter of mistakes.

Nothing is skipped: an opcode, modifier, directive or pragma that no table has is an error that
quotes the line.
"""

from flexfa4.emulator.ptx.parser import parse
from flexfa4.emulator.ptx.program import Function, Instruction, Module

__all__ = ["Function", "Instruction", "Module", "parse"]
