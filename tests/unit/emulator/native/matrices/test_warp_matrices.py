"""ldmatrix, stmatrix and movmatrix: which bytes go where, for every form; bounds and alignment."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from flexfa4.emulator.failures.machine import NotAlignedError
from flexfa4.emulator.failures.memory import MisalignedAccessError, UninitialisedReadError
from tests.ptx_programs import run_instruction

ROOM, ROW, WARP = 2048, 16, 32
DECLARE = f".shared .align 16 .b8 room[{ROOM}];"
REGISTERS = ".reg .b32 k, v, v0, base; .reg .b64 x; .reg .pred more;"
# room and image, or room and out, are copied word by word; `base` is the address of the room
FILL = (
    "mov.u32 base, room; mov.u32 k, %laneid; shl.b32 k, k, 2; IN: cvt.u64.u32 x, k;"
    "add.u64 x, x, image; ld.global.b32 v, [x]; add.u32 v0, base, k; st.shared.b32 [v0], v;"
    f"add.u32 k, k, 128; setp.lt.u32 more, k, {ROOM}; @more bra IN; bar.warp.sync -1;"
)
DUMP = (
    "bar.warp.sync -1; mov.u32 k, %laneid; shl.b32 k, k, 2; OUT: cvt.u64.u32 x, k;"
    "add.u64 x, x, out; add.u32 v0, base, k; ld.shared.b32 v, [v0]; st.global.b32 [x], v;"
    f"add.u32 k, k, 128; setp.lt.u32 more, k, {ROOM}; @more bra OUT;"
)

# Where the byte of a register comes from: lane, register, byte -> row of all rows, byte of the row.
Place = Callable[[int, int, int], tuple[int, int]]


def by_rows(lane: int, register: int, byte: int) -> tuple[int, int]:
    """PTX ISA, "ldmatrix": m8n8, a thread has two neighbours of row lane / 4."""
    return 8 * register + lane // 4, lane % 4 * 4 + byte


def by_columns(lane: int, register: int, byte: int) -> tuple[int, int]:
    """The same of the transposed matrix."""
    row, column = 2 * (lane % 4) + byte // 2, lane // 4
    return 8 * register + row, 2 * column + byte % 2


def by_columns_16(lane: int, register: int, byte: int) -> tuple[int, int]:
    """CUTLASS copy_traits_sm100.hpp, SM100_U8x8_LDSM_T: m16n16.trans.b8."""
    matrix, half = divmod(register, 2)
    row = 4 * (lane % 4) + 2 * half + byte % 2
    return 16 * matrix + row, lane // 4 + 8 * (byte // 2)


def by_columns_8(lane: int, register: int, byte: int) -> tuple[int, int]:
    """CUTLASS copy_traits_sm100.hpp, SM100_U8x16_STSM_T: m16n8.trans.b8."""
    return 8 * register + 2 * (lane % 4) + byte % 2, lane // 4 + 8 * (byte // 2)


def unpacked(row: bytes, bits: int) -> bytes:
    """Sixteen numbers, each in the low bits of a byte (CUTLASS mma_traits_sm120.hpp)."""
    number = int.from_bytes(row, "little")
    return bytes(number >> i * bits & (1 << bits) - 1 for i in range(ROW))


TARGETS = {"m8n8": "sm_90a", "m16n16": "sm_100a", "m8n16": "sm_100a", "m16n8": "sm_100a"}
# opcode without .x1 and such, place, registers of a matrix, bits of packed numbers
LOADS = [
    ("m8n8{}.shared.b16", by_rows, 1, 0),
    ("m8n8{}.b16", by_rows, 1, 0),
    ("m8n8{}.trans.shared::cta.b16", by_columns, 1, 0),
    ("m16n16{}.trans.shared.b8", by_columns_16, 2, 0),
    ("m8n16{}.shared.b8x16.b4x16_p64", by_rows, 1, 4),
    ("m8n16{}.shared.b8x16.b6x16_p32", by_rows, 1, 6),
]
STORES = [
    ("m8n8{}.shared.b16", by_rows),
    ("m8n8{}.trans.shared.b16", by_columns),
    ("m16n8{}.trans.shared.b8", by_columns_8),
]


def target_of(form: str) -> str:
    return TARGETS[form.split("{")[0]]


def row_places(seed: int) -> list[int]:
    """Places of 32 rows in the room, in no order; none twice."""
    return [ROW * place for place in random.Random(seed).sample(range(ROOM // ROW), WARP)]


def image(seed: int) -> torch.Tensor:
    return torch.tensor(list(random.Random(seed).randbytes(ROOM)), dtype=torch.uint8)


def braces(names: list[str]) -> str:
    return "{" + ", ".join(names) + "}"


@pytest.mark.parametrize(
    "form,place,registers,packed,count",
    [(*form, count) for form in LOADS for count in (1, 2, 4) if count * form[2] <= 4],
)
def test_each_thread_gets_its_part_of_each_row(
    form: str, place: Place, registers: int, packed: int, count: int
) -> None:
    data, places = image(count), row_places(count)
    names = [f"d{i}" for i in range(count * registers)]
    cast = "cvta.shared.u64 x, x;" if ".shared" not in form else ""
    found = run_instruction(
        FILL + "add.u32 k, base, at; cvt.u64.u32 x, k;" + cast
        + f"ldmatrix.sync.aligned.{form.format(f'.x{count}')} {braces(names)}, [x];",
        {"at:u32": places},
        " ".join(f"{name}:b32" for name in names),
        declare=DECLARE, registers=REGISTERS, memory={"image": data}, target=target_of(form),
    )  # fmt: skip
    read = [bytes(data[at : at + ROW].tolist()) for at in places]
    if packed:
        read = [unpacked(row, packed) for row in read]
    for register, name in enumerate(names):
        for lane in range(WARP):
            spots = [place(lane, register, byte) for byte in range(4)]
            expected = bytes(read[row][column] for row, column in spots)
            assert found[name][lane].to_bytes(4, "little") == expected, (name, lane)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("form,place", STORES)
def test_each_thread_gives_its_part_of_each_row(form: str, place: Place, count: int) -> None:
    data, places = image(7), row_places(7)
    generator = random.Random(count)
    words = {f"b{i}:b32": [generator.getrandbits(32) for _ in range(WARP)] for i in range(count)}
    names = [name.split(":")[0] for name in words]
    out = torch.zeros(ROOM, dtype=torch.uint8)
    run_instruction(
        FILL + "add.u32 k, base, at;"
        + f"stmatrix.sync.aligned.{form.format(f'.x{count}')} [k], {braces(names)};" + DUMP,
        {"at:u32": places, **words},
        declare=DECLARE, registers=REGISTERS, memory={"image": data, "out": out},
        target=target_of(form),
    )  # fmt: skip
    expected = bytearray(data.tolist())
    for register, values in enumerate(words.values()):
        for lane in range(WARP):
            for byte, value in enumerate(values[lane].to_bytes(4, "little")):
                row, column = place(lane, register, byte)
                expected[places[row] + column] = value
    assert bytes(out.tolist()) == bytes(expected)


def test_movmatrix_transposes() -> None:
    matrix = torch.arange(64, dtype=torch.int16).view(8, 8)
    words = matrix.view(torch.int32).flatten().tolist()
    turned = matrix.T.contiguous().view(torch.int32).flatten().tolist()
    code = "movmatrix.sync.aligned.m8n8.trans.b16 {}, a;"
    found = run_instruction(code.format("d"), {"a:u32": words}, "d:u32", target="sm_90a")
    assert found["d"] == turned
    found = run_instruction(code.format("a"), {"a:u32": words}, "a:u32", target="sm_90a")
    assert found["a"] == turned


def test_the_address_may_be_among_the_results() -> None:
    data = image(1)
    code = FILL + (
        "mov.u32 k, %laneid; shl.b32 k, k, 4; add.u32 k, base, k;"
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {k, v}, [k]; mov.b32 c, k; mov.b32 d, v;"
    )
    found = run_instruction(
        code, outputs="c:u32 d:u32", declare=DECLARE, registers=REGISTERS, memory={"image": data},
        target="sm_90a",
    )  # fmt: skip
    words = data.view(torch.int32).tolist()
    assert found["c"] + found["d"] == [word & 0xFFFFFFFF for word in words[:64]]


LOAD = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {d}, [k];"
STORE = "stmatrix.sync.aligned.m8n8.x1.shared.b16 [k], {d};"


@pytest.mark.parametrize("code", [LOAD, STORE])
def test_rows_lie_at_multiples_of_their_size(code: str) -> None:
    with pytest.raises(MisalignedAccessError):
        run_instruction(
            FILL + "add.u32 k, base, 8;" + code, outputs="d:u32",
            declare=DECLARE, registers=REGISTERS, memory={"image": image(1)},
        )  # fmt: skip


def test_rows_that_nobody_wrote_are_not_loaded() -> None:
    with pytest.raises(UninitialisedReadError):
        run_instruction(
            "mov.u32 k, room;" + LOAD,
            outputs="d:u32", declare=DECLARE, registers=REGISTERS,
        )  # fmt: skip


@pytest.mark.parametrize("code", [LOAD, STORE, "movmatrix.sync.aligned.m8n8.trans.b16 d, d;"])
def test_the_whole_warp_takes_part(code: str) -> None:
    start = "mov.u32 k, %laneid; setp.lt.u32 more, k, 8; mov.u32 k, room; @more "
    with pytest.raises(NotAlignedError, match="0xff"):
        run_instruction(start + code, outputs="d:u32", declare=DECLARE, registers=REGISTERS)
