"""Programs of one product, by mma.sync or wgmma, around factors that a test gives.

multiply(opcode, a, b, c)  # mma.sync
factors(wgmma(64, "f32", "f16", "f16"), a=(SW128, False)).run()
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from flexfa4.emulator import Run
from tests.fragments import (
    DTYPES,
    integers,
    matrix_of_d,
    registers_of_a,
    registers_of_b,
    registers_of_d,
)
from tests.ptx_programs import run_instruction, run_program
from tests.tensor_core_programs import Layout, put


def names(letter: str, count: int) -> str:
    """Return a vector of registers: {d0, d1, ...}."""
    return "{" + ", ".join(f"{letter}{i}" for i in range(count)) + "}"


def held(letter: str, registers: list[list[int]]) -> Mapping[str, list[int]]:
    """Return registers as inputs of a program."""
    return {f"{letter}{i}:b32": row for i, row in enumerate(registers)}


def multiply(opcode: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return A times B, given as [8, k], plus C, by mma.sync."""
    factors = {"a": registers_of_a(a), "b": registers_of_b(b), "c": registers_of_d(c)}
    count = {letter: len(rows) for letter, rows in factors.items()}
    operands = ", ".join(names(x, count.get(x, count["c"])) for x in "dabc")
    inputs = {k: v for x, rows in factors.items() for k, v in held(x, rows).items()}
    results = [f"d{i}" for i in range(count["c"])]
    found = run_instruction(
        f"{opcode} {operands};", inputs, " ".join(f"{d}:b32" for d in results), target="sm_90a"
    )
    return matrix_of_d([found[name] for name in results], c.dtype)


# ---- wgmma --------------------------------------------------------------------------------------

THREADS, ROWS, ROOM = 128, 64, 43008
B_START = 8192  # of B in the room, behind A
# swizzles as the layouts name them, and as a wgmma descriptor does (PTX ISA, "Matrix Descriptor")
NONE, SW32, SW64, SW128 = 0, 6, 4, 2
SM90_SWIZZLES = {NONE: 0, SW128: 1, SW64: 2, SW32: 3}

DECLARE = f".shared .align 1024 .b8 room[{ROOM}];"
REGISTERS = ".reg .b32 k, t, v<4>, room_at; .reg .b64 x, a_desc, b_desc; .reg .pred more, old;"
FILL = (
    "mov.u32 room_at, room; mov.u32 k, %tid.x; shl.b32 k, k, 4; IN: cvt.u64.u32 x, k;"
    "add.u64 x, x, image; ld.global.v4.b32 {v0, v1, v2, v3}, [x]; add.u32 t, room_at, k;"
    f"st.shared.v4.b32 [t], {{v0, v1, v2, v3}}; add.u32 k, k, {16 * THREADS};"
    f"setp.lt.u32 more, k, {ROOM}; @more bra IN; fence.proxy.async.shared::cta; bar.sync 0;"
)
PLAIN = Layout(NONE, 128, 256)
"""K-major, without swizzle or gaps."""

FENCE = "wgmma.fence.sync.aligned;"
DONE = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"


def descriptor(register: str, layout: Layout, start: int) -> str:
    """PTX that makes a descriptor of a matrix that begins somewhere in the room."""
    bits = SM90_SWIZZLES[layout.swizzle] << 62 | (layout.stride >> 4) << 32
    bits |= (layout.leading >> 4) << 16
    return (
        f"add.u32 t, room_at, {start}; shr.u32 t, t, 4; cvt.u64.u32 {register}, t;"
        f"or.b64 {register}, {register}, {bits:#x};"
    )


@dataclass(frozen=True)
class Factors:
    """A product of a warpgroup.

    Attributes:
        opcode: the instruction.
        a: [64, k].
        b: [n, k].
        a_layout: how A lies in shared memory; none where it is in registers.
        b_layout: the same for B.
        old: D beforehand, [64, n], to which the product is added; none where it is not.
        signs: of A and B; none where the instruction has no such operands.
    """

    opcode: str
    a: torch.Tensor
    b: torch.Tensor
    a_layout: Layout | None = None
    b_layout: Layout = PLAIN
    old: torch.Tensor | None = None
    signs: tuple[int, int] | None = (1, 1)

    def image(self) -> torch.Tensor:
        """Return what the room holds: the factors, and anything else between them."""
        room = torch.tensor(list(random.Random(1).randbytes(ROOM)), dtype=torch.uint8)
        if self.a_layout:
            put(room, 0, self.a_layout, self.a)
        put(room, B_START, self.b_layout, self.b)
        return room

    def instruction(self, registers: int) -> str:
        """Return the product, with D in `registers` registers d0, d1, ..."""
        a = "a_desc" if self.a_layout else names("a", 4)
        numbers: list[int] = [] if self.signs is None else [*self.signs]
        if ".f16.f16" in self.opcode or ".bf16.bf16" in self.opcode:
            numbers += [self.a_layout.mn] if self.a_layout else []
            numbers += [self.b_layout.mn]
        tail = "".join(f", {int(number)}" for number in numbers)
        return f"{self.opcode} {names('d', registers)}, {a}, b_desc, old{tail};"

    def run(
        self, code: str = "{fence} {product} {done}", **options: Any
    ) -> tuple[torch.Tensor, Run]:
        """Run `code` around the product; return D [64, n], and what the launch did."""
        dtype = DTYPES[self.opcode.split(".")[-3]]
        start = torch.zeros(ROWS, len(self.b), dtype=dtype) if self.old is None else self.old
        inputs = dict(held("d", registers_of_d(start)))
        count = len(inputs)
        if not self.a_layout:
            inputs |= held("a", registers_of_a(self.a))
        around = {"fence": FENCE, "done": DONE, "product": self.instruction(count)}
        found, run = run_program(
            FILL
            + (descriptor("a_desc", self.a_layout, 0) if self.a_layout else "")
            + descriptor("b_desc", self.b_layout, B_START)
            + f"setp.ne.u32 old, {int(self.old is not None)}, 0;"
            + code.format(**around),
            inputs,
            " ".join(f"d{i}:b32" for i in range(count)),
            target="sm_90a",
            threads=THREADS,
            declare=DECLARE,
            registers=REGISTERS,
            memory={"image": self.image()},
            options={"check": ("uninitialised", "races"), **options},
        )
        return matrix_of_d([found[f"d{i}"] for i in range(count)], dtype), run


def wgmma(n: int, d: str, a: str, b: str, saturation: str = "") -> str:
    """Return the opcode of a product of a warpgroup."""
    k = 32 // DTYPES[a].itemsize
    return f"wgmma.mma_async.sync.aligned.m64n{n}k{k}{saturation}.{d}.{a}.{b}"


def factors(
    opcode: str,
    a: tuple[int, bool] | None = (SW128, False),
    b: tuple[int, bool] = (SW128, False),
    **more: Any,
) -> Factors:
    """Return integers in the layouts that swizzles, and whether they are M- or N-major, name."""
    a_type, b_type = opcode.split(".")[-2:]
    n = int(opcode.split(".")[4].split("n")[1].split("k")[0])
    size = DTYPES[a_type].itemsize
    return Factors(
        opcode,
        integers(a_type, ROWS, 32 // size, n),
        integers(b_type, n, 32 // size, n + 1),
        Layout.compact(*a, ROWS, size) if a else None,
        Layout.compact(*b, n, size),
        **{"signs": None if "s32" in opcode else (1, 1), **more},
    )
