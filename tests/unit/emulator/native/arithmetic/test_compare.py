"""Comparisons of every type in every order, NaN and flushed numbers included."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable

import pytest

from tests.ptx_programs import run_instruction
from tests.ptx_rules import agree

Compare = Callable[..., bool]

INTEGER_ORDERS: dict[str, Compare] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
UNSIGNED_ORDERS: dict[str, Compare] = {
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
}
FLOATS = ("f16", "f32", "f64", "bf16")
COMBINED: dict[str, Callable[[bool, int], int]] = {
    "and": lambda holds, c: int(holds and c),
    "or": lambda holds, c: int(holds or c),
    "xor": lambda holds, c: int(holds != bool(c)),
}


def number_of(kind: str, flush: bool = False) -> Callable[[int], float]:
    """Return what the bits of a float stand for; with `flush`, zero where they are subnormal."""

    def read(bits: int) -> float:
        if kind == "f64":
            return struct.unpack("<d", struct.pack("<Q", bits))[0]
        if kind == "f16":
            value = struct.unpack("<e", struct.pack("<H", bits))[0]
            return 0.0 if flush and not bits & 0x7C00 else value
        word = bits << 16 if kind == "bf16" else bits
        value = struct.unpack("<f", struct.pack("<I", word))[0]
        return 0.0 if flush and not word & 0x7F800000 else value

    return read


def is_nan(value: float) -> bool:
    return value != value


def ordered(compare: Compare) -> Compare:
    return lambda a, b: not is_nan(a) and not is_nan(b) and compare(a, b)


def unordered(compare: Compare) -> Compare:
    return lambda a, b: is_nan(a) or is_nan(b) or compare(a, b)


FLOAT_ORDERS: dict[str, Compare] = {
    **{name: ordered(compare) for name, compare in INTEGER_ORDERS.items()},
    **{f"{name}u": unordered(compare) for name, compare in INTEGER_ORDERS.items()},
    "num": ordered(lambda a, b: True),
    "nan": unordered(lambda a, b: False),
}


def comparisons() -> dict[str, Compare]:
    """Return the comparison of two registers' bits for each `order{.ftz}.type`."""
    found: dict[str, Compare] = {}
    for size in (16, 32, 64):
        for name in ("eq", "ne"):
            found[f"{name}.b{size}"] = INTEGER_ORDERS[name]
        for name, compare in INTEGER_ORDERS.items():
            found[f"{name}.s{size}"] = found[f"{name}.u{size}"] = compare
        for name, compare in UNSIGNED_ORDERS.items():
            found[f"{name}.u{size}"] = compare
    for kind in FLOATS:
        for ftz in ("", ".ftz") if kind in ("f16", "f32") else ("",):
            read = number_of(kind, bool(ftz))
            for name, compare in FLOAT_ORDERS.items():
                found[f"{name}{ftz}.{kind}"] = lambda a, b, c=compare, r=read: c(r(a), r(b))
    return found


COMPARISONS = comparisons()


def writes_the_opposite_too(text: str) -> bool:
    """Whether setp has the form with two results: numbers of 16 bits have it only when packed."""
    return not text.endswith("f16")


@pytest.mark.parametrize("text", COMPARISONS)
def test_setp_writes_a_comparison_and_its_opposite(text: str) -> None:
    compare = COMPARISONS[text]

    def rule(a: int, b: int) -> int | tuple[int, int]:
        holds = compare(a, b)
        return (int(holds), int(not holds)) if writes_the_opposite_too(text) else int(holds)

    agree(f"setp.{text}", rule)


@pytest.mark.parametrize("boolean", COMBINED)
@pytest.mark.parametrize("text", ["eq.b64", "ge.s16", "hi.u32", "neu.f32", "le.ftz.f16"])
def test_setp_combines_its_results_with_a_predicate(text: str, boolean: str) -> None:
    order, _, kind = text.partition(".")
    combine, compare = COMBINED[boolean], COMPARISONS[text]

    def rule(a: int, b: int, c: int) -> int | tuple[int, int]:
        first = combine(compare(a, b), c)
        return (first, combine(not compare(a, b), c)) if writes_the_opposite_too(text) else first

    agree(f"setp.{order}.{boolean}.{kind}", rule)


def test_setp_may_write_one_of_its_results_only() -> None:
    values = {"a:s32": [-1, 0, 1], "b:s32": 0}
    assert run_instruction("setp.lt.s32 p, a, b;", values, "p:pred")["p"] == [True, False, False]
    assert run_instruction("setp.lt.s32 _|q, a, b;", values, "q:pred")["q"] == [False, True, True]


def test_setp_leaves_predicates_of_lanes_that_do_not_execute_it() -> None:
    given = {"a:u32": list(range(32)), "p:pred": [lane % 3 == 0 for lane in range(32)]}
    found = run_instruction("setp.lt.u32 p|q, a, 16;", given, "p:pred q:pred", active=0x00FF_FF00)
    executed = range(8, 24)
    assert found["p"] == [lane < 16 if lane in executed else lane % 3 == 0 for lane in range(32)]
    assert found["q"] == [lane >= 16 and lane in executed for lane in range(32)]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("order", FLOAT_ORDERS)
def test_setp_of_packed_numbers_compares_each_half(order: str, kind: str) -> None:
    read, compare = number_of(kind), FLOAT_ORDERS[order]

    def rule(a: int, b: int) -> tuple[int, int]:
        low = compare(read(a & 0xFFFF), read(b & 0xFFFF))
        return int(low), int(compare(read(a >> 16), read(b >> 16)))

    agree(f"setp.{order}.{kind}x2", rule)


@pytest.mark.parametrize("to", ["u32", "s32"])
@pytest.mark.parametrize("text", ["ne.b16", "lt.s64", "hs.u32", "gtu.f32", "num.f64", "lt.bf16"])
def test_set_writes_all_ones_where_a_comparison_holds(text: str, to: str) -> None:
    order, _, kind = text.rpartition(".")
    agree(f"set.{order}.{to}.{kind}", lambda a, b: -int(COMPARISONS[text](a, b)))
