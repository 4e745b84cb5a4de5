"""atom and red: every operation and type, against Python's integers, `struct` and torch."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexfa4.emulator.failures.memory import MisalignedAccessError, UninitialisedReadError
from tests.ptx_programs import run_instruction, run_program

SHARED = ".shared .align 16 .b8 room[256];"
WORD, LONG = 2**32 - 1, 2**64 - 1


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


RULES: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "add": lambda a, b: a + b,
    "exch": lambda a, b: b,
    "min": min,
    "max": max,
    "inc": lambda a, b: 0 if a >= b else a + 1,
    "dec": lambda a, b: b if a == 0 or a > b else a - 1,
}
INTEGERS = [
    *((op, kind) for op in ("and", "or", "xor", "exch") for kind in ("b32", "b64")),
    *(("add", kind) for kind in ("u32", "s32", "u64")),
    *((op, kind) for op in ("min", "max") for kind in ("u32", "s32", "u64", "s64")),
    ("inc", "u32"),
    ("dec", "u32"),
]
STARTS = [0, 1, 5, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x0123456789ABCDEF, 2**63, 2**64 - 1]
OPERANDS = [1, 0xFFFFFFFF, 0x80000000, 3, 0xF0F0F0F0F0F0F0F0, 0, 7, 2**63 + 1, 2**64 - 5]


@pytest.mark.parametrize(("op", "kind"), INTEGERS)
@pytest.mark.parametrize("space", ["global", "shared", "shared::cluster", ""])
def test_integers_return_the_old_value_and_leave_the_new_one(
    op: str, kind: str, space: str
) -> None:
    bits = int(kind[1:])
    if op == "exch" or space == "shared":
        starts, operands = STARTS[::-1], OPERANDS
    else:
        starts, operands = STARTS, OPERANDS
    starts = [s & ((1 << bits) - 1) for s in starts]
    operands = [o & ((1 << bits) - 1) for o in operands]
    dot = f".{space}" if space else ""
    base = "mov.u64 p, room;" if "shared" in space else ""
    got = run_instruction(
        f"""{base} add.u64 p, p, at; st{dot}.b{bits} [p], s;
        atom{dot}.{op}.{kind} d, [p], v; ld{dot}.b{bits} e, [p];""",
        {f"s:b{bits}": starts, f"v:b{bits}": operands, "at:u64": [8 * i for i in range(9)]},
        f"d:b{bits} e:b{bits}",
        declare=SHARED,
        memory={"p": torch.zeros(16, dtype=torch.int64)},
        active=0x1FF,
    )
    assert got["d"] == starts
    pairs = list(zip(starts, operands, strict=True))
    if kind[0] == "s":
        pairs = [(signed(a, bits), signed(b, bits)) for a, b in pairs]
    assert got["e"] == [RULES[op](a, b) & ((1 << bits) - 1) for a, b in pairs]


@pytest.mark.parametrize("name", ["atom", "red"])
def test_lanes_at_one_place_act_one_after_another(name: str) -> None:
    counter = torch.zeros(1, dtype=torch.int32)
    result = "d, " if name == "atom" else ""
    got, run = run_program(
        f"{name}.global.add.u32 {result}[p], i;",
        {"i:u32": list(range(1, 33))},
        "d:u32",
        memory={"p": counter},
        active=0xFFFF0FFF,
    )
    lanes = [i for i in range(32) if 0xFFFF0FFF >> i & 1]
    assert counter.item() == sum(i + 1 for i in lanes)
    assert run.traffic.global_reductions == len(lanes)
    if name == "atom":
        total = 0
        for i in lanes:
            assert got["d"][i] == total
            total += i + 1


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_compare_and_swap_writes_where_the_old_value_is_expected(bits: int) -> None:
    top = 1 << (bits - 1)
    got = run_instruction(
        f"""add.u64 p, p, at; st.global.b{bits} [p], s;
        atom.global.cas.b{bits} d, [p], b, c; ld.global.b{bits} e, [p];""",
        {
            f"s:b{bits}": [0, top, 5, 7],
            f"b:b{bits}": [0, top, 6, 7 + top],
            f"c:b{bits}": [9, 10, 11, 12],
            "at:u64": [0, 8, 16, 24],
        },
        f"d:b{bits} e:b{bits}",
        memory={"p": torch.zeros(4, dtype=torch.int64)},
        active=0xF,
    )
    assert got["d"] == [0, top, 5, 7]
    assert got["e"] == [9, 10, 5, 7]


def test_128_bits_are_compared_and_exchanged_as_one() -> None:
    data = torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.int64)
    run_instruction(
        """mov.b128 b, {one, two}; mov.b128 c, {x, y}; atom.global.cas.b128 d, [p], b, c;
        atom.global.cas.b128 d, [p+16], b, c; atom.global.exch.b128 d, [p+32], b;
        mov.b128 {x, y}, d;""",
        {"one:u64": 1, "two:u64": 2, "x:u64": 8, "y:u64": 9},
        registers=".reg .b128 b, c, d;",
        memory={"p": data},
        active=1,
    )
    assert data.tolist() == [8, 9, 3, 4, 1, 2]


# ---- floats


def f32(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def flushed(bits: int) -> int:
    return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits


FLOAT_BITS = [
    (0x3F800000, 0x33800000),  # 1 + 2**-24: a tie to even
    (0x3F800001, 0x33800000),
    (0x00000003, 0x00000004),  # subnormal numbers
    (0x80000001, 0x80000001),
    (0x00800000, 0x80000001),  # the least normal number, less a subnormal one
    (0x7F7FFFFF, 0x7F7FFFFF),  # overflow
    (0x7F800000, 0xFF800000),  # infinities that cancel
    (0x7FC12345, 0x3F800000),
    (0x80000000, 0x80000000),
]


@pytest.mark.parametrize("space", ["global", "shared", ""])
def test_sums_of_f32_flush_subnormal_numbers_in_global_memory_only(space: str) -> None:
    dot = f".{space}" if space else ""
    base = "mov.u64 p, room;" if space == "shared" else ""
    got = run_instruction(
        f"""{base} add.u64 p, p, at; st{dot}.b32 [p], s; red{dot}.add.f32 [p], v;
        ld{dot}.b32 e, [p];""",
        {
            "s:b32": [a for a, _ in FLOAT_BITS],
            "v:b32": [b for _, b in FLOAT_BITS],
            "at:u64": [4 * i for i in range(len(FLOAT_BITS))],
        },
        "e:b32",
        declare=SHARED,
        memory={"p": torch.zeros(16)},
        active=(1 << len(FLOAT_BITS)) - 1,
    )
    expected = []
    for a, b in FLOAT_BITS:
        if space != "shared":
            a, b = flushed(a), flushed(b)
        total = (torch.tensor(f32(a)) + torch.tensor(f32(b))).view(torch.int32).item()
        bits = int(total) & WORD
        if math.isnan(f32(bits)):
            bits = 0x7FFFFFFF
        expected.append(bits if space == "shared" else flushed(bits))
    assert got["e"] == expected


def test_generic_sums_of_f32_keep_subnormal_numbers_in_shared_memory() -> None:
    got = run_instruction(
        """st.shared.b32 [room], 3; cvta.shared.u64 g, room; atom.add.f32 d, [g], v;
        ld.shared.b32 e, [room];""",
        {"v:b32": 4},
        "d:b32 e:b32",
        declare=SHARED,
        registers=".reg .b64 g;",
        active=1,
    )
    assert (got["d"][0], got["e"][0]) == (3, 7)


def test_sums_of_f64_keep_subnormal_numbers() -> None:
    data = torch.tensor([1.0, 5e-324, math.inf], dtype=torch.float64)
    run_instruction(
        "add.u64 p, p, at; red.global.add.f64 [p], v;",
        {"v:f64": [2.0**-53, 5e-324, -math.inf], "at:u64": [0, 8, 16]},
        memory={"p": data},
        active=7,
    )
    assert data[:2].tolist() == [1.0, 1e-323]
    assert int(data.view(torch.int64)[2].item()) & LONG == 0xFFF8000000000000


DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
PAIRS = [(1.0, 2.0**-9), (1.0 + 2.0**-7, 2.0**-8), (2.0**-24, 2.0**-24), (60000.0, 60000.0),
         (-3.0, 3.0), (math.inf, -math.inf), (0.1, 0.2), (-0.0, -0.0)]  # fmt: skip


def narrow_bits(values: Any, kind: str) -> list[int]:
    tensor = torch.as_tensor(values, dtype=torch.float64).to(DTYPES[kind])
    return [v & 0xFFFF for v in tensor.view(torch.int16).tolist()]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("space", ["global", "shared"])
def test_sums_of_16_bits_round_once_and_keep_subnormal_numbers(
    kind: str, packed: bool, space: str
) -> None:
    a, b = narrow_bits([p[0] for p in PAIRS], kind), narrow_bits([p[1] for p in PAIRS], kind)
    exact = [
        float(torch.tensor(x, dtype=torch.int32).to(torch.int16).view(DTYPES[kind]).double())
        + float(torch.tensor(y, dtype=torch.int32).to(torch.int16).view(DTYPES[kind]).double())
        for x, y in zip(a, b, strict=True)
    ]
    expected = narrow_bits(exact, kind)
    expected[5] = 0x7FFF  # the one NaN
    size, name = (32, f"{kind}x2") if packed else (16, kind)
    if packed:
        a = [x | y << 16 for x, y in zip(a[::2], a[1::2], strict=True)]
        b = [x | y << 16 for x, y in zip(b[::2], b[1::2], strict=True)]
        expected = [x | y << 16 for x, y in zip(expected[::2], expected[1::2], strict=True)]
    got = run_instruction(
        f"""{"mov.u64 p, room;" if space == "shared" else ""} add.u64 p, p, at;
        st.{space}.b{size} [p], s; atom.{space}.add.noftz.{name} d, [p], v;
        ld.{space}.b{size} e, [p];""",
        {f"s:b{size}": a, f"v:b{size}": b, "at:u64": [4 * i for i in range(len(a))]},
        f"d:b{size} e:b{size}",
        declare=SHARED,
        memory={"p": torch.zeros(8)},
        active=(1 << len(a)) - 1,
    )
    assert got["d"] == a
    assert got["e"] == expected


@pytest.mark.parametrize(
    ("op", "vector", "kind", "count"),
    [("add", "v2", "f32", 2), ("add", "v4", "f32", 4), ("add.noftz", "v8", "f16", 8),
     ("add.noftz", "v4", "bf16x2", 8), ("min.noftz", "v2", "f16x2", 4),
     ("max.noftz", "v4", "bf16", 4)],
)  # fmt: skip
def test_vectors_combine_each_element(op: str, vector: str, kind: str, count: int) -> None:
    base = kind.removesuffix("x2")
    dtype = DTYPES.get(base, torch.float32)
    generator = torch.Generator().manual_seed(7)
    start = torch.randn(4 * count, generator=generator).to(dtype)
    other = torch.randn(4 * count, generator=generator).to(dtype)
    data, registers = start.clone(), int(vector[1:])
    size = 16 if kind in DTYPES else 32
    names = [f"v{i}" for i in range(registers)]
    step = 4 if size == 16 else registers  # elements that one load takes
    loads = (
        f"ld.global.v{step}.b{size} {{{', '.join(names[i : i + step])}}}, [q+{i * size // 8}];"
        for i in range(0, registers, step)
    )
    run_instruction(
        f"""add.u64 p, p, at; add.u64 q, q, at; {" ".join(loads)}
        red.global.{op}.{vector}.{kind} [p], {{{", ".join(names)}}};""",
        {"at:u64": [start.element_size() * count * i for i in range(4)]},
        registers=f".reg .b{size} {', '.join(names)};",
        memory={"p": data, "q": other},
        active=0xF,
    )
    rules: dict[str, Callable[..., torch.Tensor]]
    rules = {"add": torch.add, "min": torch.minimum, "max": torch.maximum}
    rule = rules[op.split(".")[0]]
    assert torch.equal(data, rule(start.double(), other.double()).to(dtype))


def test_vectors_return_what_was_there() -> None:
    data = torch.tensor([1.0, 2.0, 3.0, 4.0])
    got = run_instruction(
        "atom.global.add.v4.f32 {a, b, c, d}, [p], {a, b, c, d};",
        {"a:f32": 10.0, "b:f32": 20.0, "c:f32": 30.0, "d:f32": 40.0},
        "a:f32 b:f32 c:f32 d:f32",
        memory={"p": data},
        active=1,
    )
    assert [got[name][0] for name in "abcd"] == [1.0, 2.0, 3.0, 4.0]
    assert data.tolist() == [11.0, 22.0, 33.0, 44.0]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_extremes_prefer_numbers_to_nan_and_order_zeros(kind: str) -> None:
    nan, zero, minus, one = 0x7FFF, 0x0000, 0x8000, narrow_bits([1.0], kind)[0]
    starts, operands = [nan, one, nan, zero], [one, nan, 0xFFFF, minus]
    for op, last in (("min", minus), ("max", zero)):
        data = torch.tensor(starts, dtype=torch.int32).to(torch.int16)
        run_instruction(
            f"add.u64 p, p, at; red.global.{op}.noftz.v2.{kind} [p], {{a, b}};",
            {"a:b16": operands[::2], "b:b16": operands[1::2], "at:u64": [0, 4]},
            memory={"p": data},
            active=3,
        )
        assert [v & 0xFFFF for v in data.tolist()] == [one, one, 0x7FFF, last]


# ---- strictness


def test_atomic_operations_need_an_initial_value() -> None:
    with pytest.raises(UninitialisedReadError):
        run_instruction("red.shared.add.u32 [room], 1;", declare=SHARED)


def test_vectors_are_aligned_as_a_whole() -> None:
    with pytest.raises(MisalignedAccessError):
        run_instruction(
            "red.global.add.v4.f32 [p+8], {v, v, v, v};",
            {"v:f32": 1.0},
            memory={"p": torch.zeros(16)},
        )


@pytest.mark.parametrize("order", ["relaxed", "acquire", "release", "acq_rel"])
@pytest.mark.parametrize("scope", ["cta", "cluster", "gpu", "sys"])
def test_orders_and_scopes_change_no_value(order: str, scope: str) -> None:
    got = run_instruction(
        f"atom.{order}.{scope}.global.add.u32 d, [p], 2;",
        outputs="d:u32",
        memory={"p": torch.full((1,), 40, dtype=torch.int32)},
        active=1,
    )
    assert got["d"][0] == 40


def test_blocks_on_several_workers_lose_no_update() -> None:
    counter = torch.zeros(1)
    run_instruction(
        "red.global.add.f32 [p], one;",
        {"one:f32": 1.0},
        grid=64,
        memory={"p": counter},
        options={"workers": 4, "sms": 8},
    )
    assert counter.item() == 64 * 32
