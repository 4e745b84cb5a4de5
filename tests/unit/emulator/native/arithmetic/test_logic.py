"""Logic, shifts and permutations, with amounts past the size of a register."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ptx_rules import agree, evaluate

SIZES = (16, 32, 64)

# PTX ISA, "prmt": bytes from the highest to the lowest, for the modes' four selections
MODES = {
    "f4e": ("3210", "4321", "5432", "6543"),
    "b4e": ("5670", "6701", "7012", "0123"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("3210", "3211", "3222", "3333"),
    "ecr": ("0000", "1110", "2210", "3210"),
    "rc16": ("1010", "3232", "1010", "3232"),
}


def permuted(a: int, b: int, selector: int) -> int:
    source = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    result = []
    for i in range(4):
        digit = selector >> 4 * i & 0xF
        byte = source[digit & 7]
        result.append((0xFF if byte & 0x80 else 0) if digit & 8 else byte)
    return int.from_bytes(bytes(result), "little")


def funnel(left: bool, clamp: bool) -> Callable[[int, int, int], int]:
    def rule(a: int, b: int, c: int) -> int:
        amount = min(c, 32) if clamp else c % 32
        both = b << 32 | a
        return both << amount >> 32 if left else both >> amount

    return rule


def by_table(table: int) -> Callable[[int, int, int], int]:
    return lambda a, b, c: sum(
        (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i
        for i in range(32)
    )


RULES: dict[str, Callable[..., int]] = {
    **{f"and.b{n}": lambda a, b: a & b for n in SIZES},
    **{f"or.b{n}": lambda a, b: a | b for n in SIZES},
    **{f"xor.b{n}": lambda a, b: a ^ b for n in SIZES},
    **{f"not.b{n}": lambda a: ~a for n in SIZES},
    **{f"cnot.b{n}": lambda a: int(a == 0) for n in SIZES},
    "and.pred": lambda a, b: a & b,
    "or.pred": lambda a, b: a | b,
    "xor.pred": lambda a, b: a ^ b,
    "not.pred": lambda a: 1 - a,
    # Python's shifts by large amounts give what clamped ones do
    **{f"shl.b{n}": lambda a, b: a << min(b, 64) for n in SIZES},
    **{f"shr.{kind}{n}": lambda a, b: a >> b for kind in "bus" for n in SIZES},
    **{
        f"shf.{side}.{mode}.b32": funnel(side == "l", mode == "clamp")
        for side in "lr"
        for mode in ("clamp", "wrap")
    },
    "prmt.b32": permuted,
    **{
        f"prmt.b32.{mode}": lambda a, b, c, s=selectors: permuted(a, b, int(s[c & 3], 16))
        for mode, selectors in MODES.items()
    },
}


@pytest.mark.parametrize("opcode", RULES)
def test_bits_are_combined_as_the_rule_says(opcode: str) -> None:
    agree(opcode, RULES[opcode])


@pytest.mark.parametrize("table", [0x00, 0xFF, 0xF0, 0xCC, 0xAA, 0x96, 0xE8, 0xCA, 0x01, 0x6A])
def test_lop3_looks_bits_up_in_its_table(table: int) -> None:
    agree("lop3.b32", by_table(table), numbers={"table": table})


@pytest.mark.parametrize("mode", ["or", "and"])
def test_lop3_combines_whether_a_bit_is_left_with_a_predicate(mode: str) -> None:
    rows = [(0, 0, 0, 0), (0, 0, 0, 1), (5, 4, 1, 0), (5, 4, 1, 1), (1, 1, 1, 0), (1, 1, 1, 1)]
    expected = []
    for a, b, c, q in rows:
        d = a ^ b ^ c
        expected.append((d, int(d != 0) | q if mode == "or" else int(d != 0) & q))
    assert evaluate(f"lop3.{mode}.b32", rows, numbers={"table": 0x96}) == expected
