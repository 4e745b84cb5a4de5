"""Moves between registers, and between a wide register and those that make it up."""

from __future__ import annotations

import pytest

from tests.ptx_programs import run_instruction

TYPES = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
VALUE = 0xFEDCBA98_76543210_0F1E2D3C_4B5A6978

# sizes of a register and of the elements that make it up
SPLITS = [(16, 8), (32, 16), (32, 8), (64, 32), (64, 16), (128, 64), (128, 32)]


def parts_of(whole: int, part: int) -> list[int]:
    return [VALUE >> i * part & ((1 << part) - 1) for i in range(whole // part)]


@pytest.mark.parametrize("kind", TYPES)
def test_mov_copies_all_bits(kind: str) -> None:
    size = int(kind[1:])
    values = [VALUE >> shift & ((1 << size) - 1) for shift in range(64)]
    code = f"mov.{kind} d, a;"
    found = run_instruction(code, {f"a:b{size}": values}, f"d:b{size}", threads=64)
    assert found["d"] == values


def test_mov_copies_128_bits() -> None:
    assert run_instruction("mov.b128 d, a;", {"a:b128": [VALUE, 5]}, "d:b128")["d"] == [VALUE, 5]


def test_mov_copies_predicates_and_truth_values() -> None:
    found = run_instruction(
        "mov.pred d, a; mov.pred e, -1; mov.pred f, 0;",
        {"a:pred": [True, False, True]},
        "d:pred e:pred f:pred",
    )
    assert found == {"d": [True, False, True], "e": [True] * 3, "f": [False] * 3}


def bytes_declared(part: int, count: int) -> str:
    """Declare registers of 8 bits, which the bench cannot store or load."""
    return f".reg .b8 t<{count}>;" if part == 8 else ""


@pytest.mark.parametrize(("whole", "part"), SPLITS)
def test_mov_splits_a_register_from_its_lowest_bits_on(whole: int, part: int) -> None:
    parts = parts_of(whole, part)
    size, numbers = max(part, 16), range(len(parts))
    elements = ", ".join(f"t{i}" if part == 8 else f"d{i}" for i in numbers)
    widened = " ".join(f"cvt.u16.u8 d{i}, t{i};" for i in numbers if part == 8)
    found = run_instruction(
        f"mov.b{whole} {{{elements}}}, a; {widened}",
        {f"a:b{whole}": VALUE & ((1 << whole) - 1)},
        " ".join(f"d{i}:b{size}" for i in numbers),
        registers=bytes_declared(part, len(parts)),
    )
    assert [found[f"d{i}"][0] for i in numbers] == parts


@pytest.mark.parametrize(("whole", "part"), SPLITS)
def test_mov_joins_registers_the_first_of_them_lowest(whole: int, part: int) -> None:
    parts = parts_of(whole, part)
    size, numbers = max(part, 16), range(len(parts))
    elements = ", ".join(f"t{i}" if part == 8 else f"a{i}" for i in numbers)
    narrowed = " ".join(f"cvt.u8.u16 t{i}, a{i};" for i in numbers if part == 8)
    found = run_instruction(
        f"{narrowed} mov.b{whole} d, {{{elements}}};",
        {f"a{i}:b{size}": value for i, value in enumerate(parts)},
        f"d:b{whole}",
        registers=bytes_declared(part, len(parts)),
    )
    assert found["d"][0] == VALUE & ((1 << whole) - 1)


def test_mov_leaves_out_elements_that_are_written_to_nowhere() -> None:
    found = run_instruction("mov.b64 {_, d}, a;", {"a:b64": 0x1111111122222222}, "d:b32")
    assert found["d"][0] == 0x11111111


def test_mov_joins_numbers_with_registers() -> None:
    assert run_instruction("mov.b32 d, {a, 7};", {"a:b16": 5}, "d:b32")["d"][0] == 0x00070005


def test_mov_touches_only_active_lanes() -> None:
    lanes = list(range(32))
    found = run_instruction(
        "mov.b64 {d, e}, a; mov.b64 f, {d, e}; mov.b32 g, d;",
        {"a:b64": [lane << 32 | 100 + lane for lane in lanes]},
        "d:b32 e:b32 f:b64 g:b32",
        active=0x0000_0105,
    )
    taken = [lane in (0, 2, 8) for lane in lanes]
    assert found["d"] == [100 + lane if on else 0 for lane, on in zip(lanes, taken, strict=True)]
    assert found["e"] == [lane if on else 0 for lane, on in zip(lanes, taken, strict=True)]
    assert found["g"] == found["d"]
    assert found["f"] == [e << 32 | d for d, e in zip(found["d"], found["e"], strict=True)]


def test_mov_reads_special_registers() -> None:
    found = run_instruction(
        "mov.u32 d, %tid.x; mov.u32 e, %laneid; mov.u32 f, %warpid; mov.b32 g, WARP_SZ;",
        {},
        "d:u32 e:u32 f:u32 g:u32",
        threads=96,
    )
    threads = list(range(96))
    assert found["d"] == threads
    assert found["e"] == [t % 32 for t in threads]
    assert found["f"] == [t // 32 for t in threads]
    assert found["g"] == [32] * 96


def test_mov_gives_addresses_of_variables() -> None:
    found = run_instruction(
        "mov.u32 d, second; mov.u32 e, first; sub.u32 d, d, e; mov.u32 f, second+12; "
        "sub.u32 f, f, e;",
        {},
        "d:u32 f:u32",
        registers=".reg .b32 e;",
        declare=".shared .align 8 .b8 first[24];\n.shared .align 8 .b8 second[24];",
    )
    assert (found["d"][0], found["f"][0]) == (24, 36)


@pytest.mark.parametrize("clock", ["clock", "globaltimer_lo"])
def test_mov_finds_clocks_further_on_each_time(clock: str) -> None:
    found = run_instruction(f"mov.u32 d, %{clock}; mov.u32 e, %{clock};", {}, "d:u32 e:u32")
    assert found["d"][0] < found["e"][0]


@pytest.mark.parametrize("clock", ["clock64", "globaltimer"])
def test_mov_lets_a_loop_end_that_waits_for_time_to_pass(clock: str) -> None:
    found = run_instruction(
        f"mov.u64 d, %{clock}; AGAIN: mov.u64 e, %{clock}; sub.u64 e, e, d;"
        " setp.lt.u64 p, e, 50000; @p bra AGAIN;",
        {},
        "e:u64",
        registers=".reg .b64 d; .reg .pred p;",
    )
    assert found["e"][0] >= 50000
