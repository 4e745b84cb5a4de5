"""Chains of instructions that hand a carry on, against sums of wider Python integers."""

from __future__ import annotations

import random

import pytest

from tests.ptx_programs import run_instruction

EDGES = {
    bits: [0, 1, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, 0x1234567]
    for bits in (32, 64)
}
TYPES = {"u32": 32, "s32": 32, "u64": 64, "s64": 64}


def numbers(bits: int, words: int, seed: int) -> list[int]:
    """Return numbers of several words, most of whose words are extreme: carries run through."""
    generator = random.Random(seed)
    return [
        sum(generator.choice(EDGES[bits]) << bits * word for word in range(words))
        for _ in range(256)
    ]


def word_inputs(name: str, values: list[int], bits: int, words: int) -> dict[str, list[int]]:
    mask = (1 << bits) - 1
    return {f"{name}{i}:b{bits}": [v >> bits * i & mask for v in values] for i in range(words)}


def joined(found: dict[str, list[int]], bits: int, words: int) -> list[int]:
    columns = [found[f"d{i}"] for i in range(words)]
    return [
        sum(part << bits * i for i, part in enumerate(row)) for row in zip(*columns, strict=True)
    ]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["add", "sub"])
def test_a_chain_of_sums_is_one_of_a_wider_number(name: str, kind: str) -> None:
    bits, words = TYPES[kind], 3
    a, b = numbers(bits, words, 1), numbers(bits, words, 2)
    code = f"{name}.cc.{kind} d0, a0, b0; {name}c.cc.{kind} d1, a1, b1; {name}c.{kind} d2, a2, b2;"
    found = run_instruction(
        code,
        inputs={**word_inputs("a", a, bits, words), **word_inputs("b", b, bits, words)},
        outputs=" ".join(f"d{i}:b{bits}" for i in range(words)),
        threads=256,
    )
    modulus = 1 << bits * words
    expected = [(x + y if name == "add" else x - y) % modulus for x, y in zip(a, b, strict=True)]
    assert joined(found, bits, words) == expected


@pytest.mark.parametrize("kind", ["u32", "u64"])
def test_a_chain_of_mad_is_a_product_of_wider_numbers(kind: str) -> None:
    bits = TYPES[kind]
    a, b, c = numbers(bits, 1, 3), numbers(bits, 2, 4), numbers(bits, 3, 5)
    code = (
        f"mad.lo.cc.{kind} d0, a0, b0, c0; madc.hi.cc.{kind} d1, a0, b0, c1;"
        f" addc.{kind} d2, c2, 0; mad.lo.cc.{kind} d1, a0, b1, d1; madc.hi.{kind} d2, a0, b1, d2;"
    )
    found = run_instruction(
        code,
        inputs={
            **word_inputs("a", a, bits, 1),
            **word_inputs("b", b, bits, 2),
            **word_inputs("c", c, bits, 3),
        },
        outputs=" ".join(f"d{i}:b{bits}" for i in range(3)),
        threads=256,
    )
    expected = [(x * y + z) % (1 << 3 * bits) for x, y, z in zip(a, b, c, strict=True)]
    assert joined(found, bits, 3) == expected


@pytest.mark.parametrize("kind", ["s32", "s64"])
def test_the_high_half_of_a_signed_product_has_its_sign(kind: str) -> None:
    bits = TYPES[kind]
    # the product of -3 and 5 is -15, whose upper half is all ones: adding 1 carries
    found = run_instruction(
        f"mad.hi.cc.{kind} d, a, b, 1; addc.{kind} carry, 0, 0; madc.hi.{kind} e, a, b, 1;",
        inputs={f"a:s{bits}": -3, f"b:s{bits}": 5},
        outputs=f"d:s{bits} carry:s{bits} e:s{bits}",
    )
    assert (found["d"][0], found["carry"][0], found["e"][0]) == (0, 1, 1)


def test_only_forms_with_cc_change_the_flag() -> None:
    found = run_instruction(
        "add.cc.u32 d, a, 1; add.u32 d, 0, 0; addc.u32 e, 0, 0; addc.u32 f, 0, 0;",
        inputs={"a:u32": [0xFFFFFFFF, 0xFFFFFFFE]},
        outputs="e:u32 f:u32",
        registers=".reg .b32 d;",
    )
    assert found == {"e": [1, 0], "f": [1, 0]}


def test_an_instruction_changes_the_flag_of_no_other_lane() -> None:
    found = run_instruction(
        "setp.eq.u32 one, a, 1; add.cc.u32 d, 0xFFFFFFFF, 1; @one add.cc.u32 d, 0, 0;"
        " addc.u32 d, 0, 0;",
        inputs={"a:u32": [0, 1, 1, 0]},
        outputs="d:u32",
        registers=".reg .pred one;",
    )
    assert found["d"] == [1, 0, 0, 1]
