"""Arithmetic and conversions give the bits that an H200 gave, for every form that sm_90a has.

`h200.txt` beside this file holds what it gave.  Not in it: approximations, whose bits differ within
the bounds of the PTX ISA, and `cvt.rna.tf32`, which made infinity or a number of some NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flexfa4.emulator.ptx.forms import Access, Operation
from flexfa4.emulator.ptx.table import READER
from flexfa4.emulator.ptx.types import PRED
from tests.ptx_programs import run_instruction

RECORD = Path(__file__).with_name("h200.txt")
TOGETHER = 40  # opcodes in one kernel


@dataclass
class Group:
    """Opcodes with operands of the same types."""

    types: tuple[str, ...]
    inputs: list[list[int]] = field(default_factory=list)
    results: dict[str, list[int]] = field(default_factory=dict)


def groups() -> Iterator[Group]:
    group: Group | None = None
    opcodes: list[str] = []
    for line in RECORD.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[0] == "types":
            if group:
                yield group
            group = Group(tuple(words[1:]))
        elif words[0] == "#":
            continue
        elif words[0] == "in":
            assert group
            group.inputs.append([int(word, 16) for word in words[1:]])
        elif line.startswith(" "):
            assert group
            group.results |= {opcode: [int(word, 16) for word in words] for opcode in opcodes}
        else:
            opcodes = words
    assert group
    yield group


GROUPS = list(groups())


def operation_of(opcode: str, operands: int) -> Operation:
    return next(o for o in READER.operations(opcode) if len(o.roles) == operands + 1)


def register(bits: int) -> str:
    return f"b{max(16, bits)}"


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: "-".join(group.types))
def test_results_are_those_of_the_hardware(group: Group) -> None:
    opcodes = list(group.results)
    for start in range(0, len(opcodes), TOGETHER):
        some = opcodes[start : start + TOGETHER]
        code, outputs = [], []
        for index, opcode in enumerate(some):
            operation = operation_of(opcode, len(group.types))
            role = next(r for r in operation.roles if r.access is Access.WRITE)
            assert role.type
            kind = "pred" if role.type is PRED else register(role.type.bits)
            code.append(f"{opcode} d{index}, {', '.join('abc'[: len(group.types)])};")
            outputs.append(f"d{index}:{kind}")
        first = operation_of(some[0], len(group.types))
        read = [role.type for role in first.roles if role.access is Access.READ]
        found = run_instruction(
            "\n".join(code),
            inputs={
                f"{name}:{register(type_.bits)}": [v & (1 << max(16, type_.bits)) - 1 for v in row]
                for name, type_, row in zip("abc", read, group.inputs, strict=False)
                if type_
            },
            outputs=" ".join(outputs),
        )
        for index, opcode in enumerate(some):
            assert list(map(int, found[f"d{index}"])) == group.results[opcode], opcode


def test_the_record_covers_the_forms() -> None:
    recorded = {opcode for group in GROUPS for opcode in group.results}
    assert len(recorded) > 1000
    assert {"fma.rm.ftz.sat.f32", "cvt.rn.satfinite.e4m3x2.f32", "max.NaN.f16x2"} <= recorded
