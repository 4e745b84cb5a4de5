"""Counting, finding and moving bits, by the PTX ISA's rules read bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ptx_rules import agree

NOT_FOUND = 0xFFFFFFFF


def bits_of(value: int, size: int) -> list[int]:
    return [value >> i & 1 for i in range(size)]


def number(bits: list[int]) -> int:
    return sum(bit << i for i, bit in enumerate(bits))


def bfind(size: int, shift: bool) -> Callable[[int], int]:
    def rule(a: int) -> int:
        length = (~a if a < 0 else a).bit_length()
        if length == 0:
            return NOT_FOUND
        return size - length if shift else length - 1

    return rule


def counted(position: int, size: int) -> int:
    """Of 32 bits only the low 8 of starts and lengths count, of 64 bits all, as hardware has it."""
    return position & 0xFF if size == 32 else position


def fns(mask: int, base: int, offset: int) -> int:
    if offset == -(2**31):
        return 0  # as hardware has it
    if base > 31:
        return NOT_FOUND
    if offset == 0:
        return base if mask >> base & 1 else NOT_FOUND
    positions = range(base, 32) if offset > 0 else range(base, -1, -1)
    found = [at for at in positions if mask >> at & 1]
    return found[abs(offset) - 1] if abs(offset) <= len(found) else NOT_FOUND


def bfe(size: int, is_signed: bool) -> Callable[[int, int, int], int]:
    def rule(a: int, start: int, length: int) -> int:
        start, length = counted(start, size), counted(length, size)
        bits = bits_of(a, size)
        sign = bits[min(start + length - 1, size - 1)] if is_signed and length else 0
        taken = [bits[start + i] if i < length and start + i < size else sign for i in range(size)]
        return number(taken)

    return rule


def bfi(size: int) -> Callable[[int, int, int, int], int]:
    def rule(a: int, b: int, start: int, length: int) -> int:
        start, length = counted(start, size), counted(length, size)
        bits = bits_of(b, size)
        for i in range(min(length, size)):
            if start + i < size:
                bits[start + i] = a >> i & 1
        return number(bits)

    return rule


def bmsk(clamp: bool) -> Callable[[int, int], int]:
    def rule(start: int, length: int) -> int:
        if clamp:
            return number([int(start <= i < start + length) for i in range(32)])
        start, length = start & 31, length & 31
        return number([int(start <= i < start + length) for i in range(32)])

    return rule


def szext(is_signed: bool, clamp: bool) -> Callable[[int, int], int]:
    def rule(a: int, length: int) -> int:
        if clamp and length >= 32:
            return a
        length &= 31
        kept = a & ((1 << length) - 1)
        return kept - (1 << length) if is_signed and length and kept >> (length - 1) else kept

    return rule


RULES: dict[str, Callable[..., int]] = {
    **{f"popc.b{n}": lambda a: a.bit_count() for n in (32, 64)},
    **{f"clz.b{n}": lambda a, n=n: n - a.bit_length() for n in (32, 64)},
    **{f"brev.b{n}": lambda a, n=n: int(f"{a:0{n}b}"[::-1], 2) for n in (32, 64)},
    **{f"bfind.{sign}{n}": bfind(n, False) for sign in "us" for n in (32, 64)},
    **{f"bfind.shiftamt.{sign}{n}": bfind(n, True) for sign in "us" for n in (32, 64)},
    "fns.b32": fns,
    **{f"bfe.{sign}{n}": bfe(n, sign == "s") for sign in "us" for n in (32, 64)},
    **{f"bfi.b{n}": bfi(n) for n in (32, 64)},
    "bmsk.clamp.b32": bmsk(True),
    "bmsk.wrap.b32": bmsk(False),
    **{
        f"szext.{mode}.{sign}32": szext(sign == "s", mode == "clamp")
        for mode in ("clamp", "wrap")
        for sign in "us"
    },
}


@pytest.mark.parametrize("opcode", RULES)
def test_bits_are_moved_as_the_rule_says(opcode: str) -> None:
    agree(opcode, RULES[opcode])
