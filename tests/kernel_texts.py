"""PTX texts of tests: a kernel around the instructions that a test is about.

The registers of every kind are declared: %p predicates, %b of 8 bits, %h of 16, %r of 32, %d of 64,
%q of 128, %f of type .f32, %g of type .f64; and variables in each state space.
"""

from __future__ import annotations

from pathlib import Path

from flexfa4.emulator.ptx import Function, Instruction, parse
from flexfa4.emulator.ptx.program import Operand

SOFTMAX = Path(__file__).parent / "ptx" / "softmax_rows.sm_100a.ptx"
"""A kernel of ours, softmax of each half of rows of 64 numbers, as CuTe-DSL 4.8.1 compiled it."""

VARIABLES = """
.extern .shared .align 16 .b8 dynamic[];
.shared .align 8 .b64 barriers[2];
.global .align 4 .b32 counter;
.const .align 4 .f32 table[2] = {0f3F800000, 2.5};
"""

REGISTERS = """
    .reg .pred %p<8>;
    .reg .b8 %b<8>;
    .reg .b16 %h<8>;
    .reg .b32 %r<160>;
    .reg .b64 %d<8>;
    .reg .b128 %q<4>;
    .reg .f32 %f<8>;
    .reg .f64 %g<8>;
    .local .align 8 .b8 depot[16];
"""


def kernel_text(code: str, target: str = "sm_100a", before: str = VARIABLES) -> str:
    """Return a module with one kernel of this code, which starts in a line of its own."""
    return (
        f".version 8.8\n.target {target}\n.address_size 64\n{before}\n"
        ".visible .entry kernel(.param .u64 x, .param .align 64 .b8 map[128])\n"
        f"{{{REGISTERS}\n{code}\n}}\n"
    )


def read_kernel(code: str, target: str = "sm_100a", before: str = VARIABLES) -> Function:
    """Return the kernel of this code."""
    return parse(kernel_text(code, target, before)).kernel()


def read_instruction(text: str, target: str = "sm_100a") -> Instruction:
    """Return one instruction."""
    (instruction,) = read_kernel(text, target).instructions
    return instruction


def read_operand(text: str, name: str, target: str = "sm_100a") -> Operand | None:
    """Return one operand of one instruction, by its name in the table."""
    return read_instruction(text, target).operand(name)
