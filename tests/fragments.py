"""Matrices as the registers of a warp or a warpgroup: the operands of mma.sync and wgmma.

PTX ISA, "Matrix Fragments for mma.m16n8k16" and its relatives, and "Register Fragments for wgmma":
with g = lane / 4 and t = lane % 4, a thread has, in 32-bit words along a row,

    register r of A      row g + 8 (r % 2), word t + 4 (r / 2)
    register r of B      column g, word t + 4 r along K
    register r of D      row g + 8 (r / 2 % 2), column 8 (r / 4) + 2 t + r % 2; two f16 of a row
                         share a register: row g + 8 (r % 2), columns 8 (r / 2) + 2 t, and the next

and warp w of a warpgroup has rows 16 w and up.  A register is a list over threads.
"""

from __future__ import annotations

import torch

DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "s8": torch.int8,
    "u8": torch.uint8,
    "f32": torch.float32,
    "s32": torch.int32,
}
"""Types of elements by their names in PTX."""

Registers = list[list[int]]


def _places(threads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return row of the warp's first, group and place in the group of each thread."""
    thread = torch.arange(threads)
    return thread // 32 * 16, thread % 32 // 4, thread % 4


def _words(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.contiguous().view(torch.int32)


def _listed(rows: list[torch.Tensor]) -> Registers:
    return [[int(word) & 0xFFFFFFFF for word in row.tolist()] for row in rows]


def registers_of_a(matrix: torch.Tensor) -> Registers:
    """Return the registers of A, [16, k] or [64, k] elements."""
    words = _words(matrix)
    base, group, place = _places(matrix.shape[0] * 2)
    count = words.shape[1] // 2
    return _listed([words[base + group + 8 * (r % 2), place + r // 2 * 4] for r in range(count)])


def registers_of_b(matrix: torch.Tensor) -> Registers:
    """Return the registers of B, given as [8 columns, k] elements."""
    words = _words(matrix)
    _, group, place = _places(32)
    return _listed([words[group, place + 4 * r] for r in range(words.shape[1] // 4)])


def registers_of_d(matrix: torch.Tensor) -> Registers:
    """Return the registers of C or D, [16, n] or [64, n] elements of 16 or 32 bits."""
    words = _words(matrix)
    base, group, place = _places(matrix.shape[0] * 2)
    per = 4 // matrix.element_size()  # elements of a word
    registers = []
    for r in range(matrix.shape[1] // 2 // per):
        pair, part = (r, 0) if per == 2 else divmod(r, 2)
        column = pair // 2 * (8 // per) + (place if per == 2 else 2 * place + part)
        registers.append(words[base + group + 8 * (pair % 2), column])
    return _listed(registers)


def matrix_of_d(registers: Registers, dtype: torch.dtype) -> torch.Tensor:
    """Return the matrix that registers of D hold: the inverse of `registers_of_d`."""
    threads = len(registers[0])
    per = 4 // dtype.itemsize
    rows, columns = threads // 2, len(registers) * 2 * per
    # where each element comes from, by asking for the numbers of words
    numbers = torch.arange(rows * columns // per, dtype=torch.int32).view(rows, -1)
    places = torch.tensor(registers_of_d(numbers.view(torch.int16) if per == 2 else numbers))
    words = torch.empty(rows * columns // per, dtype=torch.int64)
    words[places.flatten()] = torch.tensor(registers).flatten()
    return words.to(torch.uint32).view(torch.int32).view(rows, -1).view(dtype)


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return A times B, given as [n, k], as f64."""
    return a.to(torch.float64) @ b.to(torch.float64).T


def integers(type_: str, rows: int, depth: int, seed: int) -> torch.Tensor:
    """Return a matrix of integers that every type of elements holds: -7 to 7, or 0 to 15."""
    generator = torch.Generator().manual_seed(seed)
    low, high = (0, 16) if type_ == "u8" else (-7, 8)
    return torch.randint(low, high, (rows, depth), generator=generator).to(DTYPES[type_])
