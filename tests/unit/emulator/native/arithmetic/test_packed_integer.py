"""Packed integers: each part by itself, with nothing carried into the next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ptx_rules import agree, signed


def halves(of: Callable[[int, int], int], is_signed: bool) -> Callable[[int, int], int]:
    """Apply to both halves of 32 bits."""

    def rule(a: int, b: int) -> int:
        parts = []
        for shift in (0, 16):
            x, y = a >> shift & 0xFFFF, b >> shift & 0xFFFF
            parts.append(of(signed(x, 16), signed(y, 16)) if is_signed else of(x, y))
        return (parts[1] & 0xFFFF) << 16 | (parts[0] & 0xFFFF)

    return rule


def dot(
    a_signed: bool, b_signed: bool, bits: int = 8, first: int = 0
) -> Callable[[int, int, int], int]:
    """Sum the products of the parts of a, which have so many bits, and bytes of b."""

    def part(value: int, shift: int, width: int, is_signed: bool) -> int:
        found = value >> shift & ((1 << width) - 1)
        return signed(found, width) if is_signed else found

    return lambda a, b, c: (
        c
        + sum(
            part(a, n * bits, bits, a_signed) * part(b, first + 8 * n, 8, b_signed)
            for n in range(32 // bits)
        )
    )


RULES: dict[str, Callable[..., int]] = {
    "add.u16x2": halves(lambda a, b: a + b, False),
    "add.s16x2": halves(lambda a, b: a + b, True),
    "min.u16x2": halves(min, False),
    "max.u16x2": halves(max, False),
    "min.s16x2": halves(min, True),
    "max.s16x2": halves(max, True),
    "min.relu.s16x2": halves(lambda a, b: max(min(a, b), 0), True),
    "max.relu.s16x2": halves(lambda a, b: max(a, b, 0), True),
    **{
        f"dp4a.{a}.{b}": dot(a == "s32", b == "s32") for a in ("u32", "s32") for b in ("u32", "s32")
    },
    **{
        f"dp2a.{half}.{a}.{b}": dot(a == "s32", b == "s32", 16, first)
        for half, first in (("lo", 0), ("hi", 16))
        for a in ("u32", "s32")
        for b in ("u32", "s32")
    },
}


@pytest.mark.parametrize("opcode", RULES)
def test_packed_integers_are_computed_as_the_rule_says(opcode: str) -> None:
    agree(opcode, RULES[opcode])
