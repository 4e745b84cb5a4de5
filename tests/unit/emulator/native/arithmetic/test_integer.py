"""Integer arithmetic against Python's integers, with the cases that the PTX ISA leaves open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ptx_programs import run_instruction
from tests.ptx_rules import agree

UNSIGNED = {"u16": 16, "u32": 32, "u64": 64}
SIGNED = {"s16": 16, "s32": 32, "s64": 64}
INTEGERS = {**UNSIGNED, **SIGNED}
SHORT = {kind: bits for kind, bits in INTEGERS.items() if bits < 64}
WORDS = {"u32": 32, "s32": 32}
VALUES = {"a:u32": list(range(32)), "d:u32": list(range(100, 132))}


def saturated(value: int) -> int:
    return max(-(2**31), min(value, 2**31 - 1))


def quotient(a: int, b: int) -> int:
    """C's: towards zero; all ones where the divisor is zero, as hardware has it."""
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return -1 if b == 0 else a - b * quotient(a, b)


def low24(value: int, signed: bool) -> int:
    value &= 0xFFFFFF
    return value - (1 << 24) if signed and value >> 23 else value


def product24(kind: str, shift: int) -> Callable[[int, int], int]:
    signed = kind == "s32"
    return lambda a, b: low24(a, signed) * low24(b, signed) >> shift


def then_add(product: Callable[[int, int], int]) -> Callable[[int, int, int], int]:
    return lambda a, b, c: product(a, b) + c


RULES: dict[str, Callable[..., int]] = {
    **{f"add.{kind}": lambda a, b: a + b for kind in INTEGERS},
    **{f"sub.{kind}": lambda a, b: a - b for kind in INTEGERS},
    "add.sat.s32": lambda a, b: saturated(a + b),
    "sub.sat.s32": lambda a, b: saturated(a - b),
    **{f"mul.lo.{kind}": lambda a, b: a * b for kind in INTEGERS},
    **{f"mul.hi.{kind}": lambda a, b, n=bits: a * b >> n for kind, bits in INTEGERS.items()},
    **{f"mul.wide.{kind}": lambda a, b: a * b for kind in SHORT},
    **{f"mad.lo.{kind}": lambda a, b, c: a * b + c for kind in INTEGERS},
    **{
        f"mad.hi.{kind}": lambda a, b, c, n=bits: (a * b >> n) + c
        for kind, bits in INTEGERS.items()
    },
    **{f"mad.wide.{kind}": lambda a, b, c: a * b + c for kind in SHORT},
    **{f"mul24.lo.{kind}": product24(kind, 0) for kind in WORDS},
    **{f"mul24.hi.{kind}": product24(kind, 16) for kind in WORDS},
    **{f"mad24.lo.{kind}": then_add(product24(kind, 0)) for kind in WORDS},
    **{f"mad24.hi.{kind}": then_add(product24(kind, 16)) for kind in WORDS},
    **{f"sad.{kind}": lambda a, b, c: c + abs(a - b) for kind in INTEGERS},
    **{f"div.{kind}": quotient for kind in INTEGERS},
    **{f"rem.{kind}": remainder for kind in INTEGERS},
    **{f"abs.{kind}": abs for kind in SIGNED},
    **{f"neg.{kind}": lambda a: -a for kind in SIGNED},
    **{f"min.{kind}": min for kind in INTEGERS},
    **{f"max.{kind}": max for kind in INTEGERS},
    "min.relu.s32": lambda a, b: max(min(a, b), 0),
    "max.relu.s32": lambda a, b: max(a, b, 0),
}


@pytest.mark.parametrize("opcode", RULES)
def test_integers_are_computed_as_the_rule_says(opcode: str) -> None:
    agree(opcode, RULES[opcode])


def test_the_result_may_be_written_over_operands() -> None:
    found = run_instruction("mad.lo.u32 d, d, d, d; sub.u32 d, d, a;", VALUES, "d:u32")
    assert found["d"] == [d * d + d - a for a, d in zip(*VALUES.values(), strict=True)]


@pytest.mark.parametrize("active", [1, 0x8000_0000, 0x0F0F_0F0F, 0xFFFF_FFFE])
def test_lanes_that_do_not_execute_keep_their_registers(active: int) -> None:
    found = run_instruction("add.u32 d, d, a;", VALUES, "d:u32", active=active)
    rows = zip(range(32), *VALUES.values(), strict=True)
    assert found["d"] == [d + a if active >> lane & 1 else d for lane, a, d in rows]
