"""ld and st: values, widths, vectors and state spaces, against bytes packed by `struct`."""

from __future__ import annotations

import struct

import pytest
import torch

from tests.ptx_programs import run_instruction, run_program

BYTES = bytes(range(0x70, 0x70 + 32)) + bytes(0xFF - i for i in range(224))
SHARED = ".shared .align 32 .b8 room[4096];"
LOCAL = ".local .align 32 .b8 stack[64];"
CODES = {"b": "BHIQ", "u": "BHIQ", "s": "bhiq", "f": "  IQ"}


def memory(content: bytes = BYTES) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).clone()


def element(kind: str, at: int) -> int:
    """The bits in memory as a number, with the type's sign."""
    code = CODES[kind[0]][{"8": 0, "16": 1, "32": 2, "64": 3}[kind[1:]]]
    return int(struct.unpack_from(f"<{code}", BYTES, at)[0])


WIDER = [
    (f"{sign}{bits}", f"b{register}")
    for sign in "bus"
    for bits in (8, 16, 32, 64)
    for register in (16, 32, 64)
    if register >= bits
]


@pytest.mark.parametrize(("kind", "register"), [*WIDER, ("f32", "b32"), ("f64", "b64")])
def test_loads_extend_to_the_register_by_sign_or_with_zeros(kind: str, register: str) -> None:
    size, width = int(kind[1:]) // 8, int(register[1:])
    offsets = [size * i for i in range(32 // size)]
    got = run_instruction(
        f"add.u64 p, p, at; ld.global.{kind} d, [p];",
        {"at:u64": offsets},
        f"d:{register}",
        memory={"p": memory()},
    )
    assert got["d"] == [element(kind, at) & ((1 << width) - 1) for at in offsets]


@pytest.mark.parametrize("kind", ["b8", "s8", "b16", "b32", "u64"])
def test_stores_take_the_low_bits_of_wider_registers(kind: str) -> None:
    size = int(kind[1:]) // 8
    target = memory(bytes(32 * size))
    values = [0x0123456789ABCDEF * (i + 1) & (2**64 - 1) for i in range(32)]
    run_instruction(
        f"add.u64 p, p, at; st.global.{kind} [p], v;",
        {"at:u64": [size * i for i in range(32)], "v:u64": values},
        memory={"p": target},
    )
    expected = b"".join((v & ((1 << 8 * size) - 1)).to_bytes(size, "little") for v in values)
    assert bytes(target.tolist()) == expected


@pytest.mark.parametrize(
    ("vector", "kind", "count"),
    [("v2", "b8", 2), ("v4", "s8", 4), ("v2", "u16", 2), ("v4", "b16", 4), ("v2", "b32", 2),
     ("v4", "f32", 4), ("v2", "b64", 2), ("v8", "b32", 8), ("v4", "b64", 4)],
)  # fmt: skip
def test_vectors_are_loaded_and_stored_in_order(vector: str, kind: str, count: int) -> None:
    size, bits = int(kind[1:]) // 8, max(int(kind[1:]), 16)
    names = [f"v{i}" for i in range(count)]
    target = memory(bytes(256))
    got = run_instruction(
        f"""add.u64 p, p, at; add.u64 q, q, at;
        ld.global.{vector}.{kind} {{{", ".join(names)}}}, [p];
        st.global.{vector}.{kind} [q], {{{", ".join(reversed(names))}}};""",
        {"at:u64": [size * count * i for i in range(8)]},
        " ".join(f"{name}:b{bits}" for name in names),
        memory={"p": memory(), "q": target},
        active=0xFF,
    )
    for lane in range(8):
        start = lane * size * count
        loaded = [element(kind, start + i * size) & ((1 << bits) - 1) for i in range(count)]
        assert [got[name][lane] for name in names] == loaded
        stored = bytes(target[start : start + size * count].tolist())
        chunks = [BYTES[start + i * size :][:size] for i in range(count)]
        assert stored == b"".join(reversed(chunks))


def test_128_bits_go_through_one_register() -> None:
    target = memory(bytes(512))
    run_instruction(
        "add.u64 p, p, at; add.u64 q, q, at; ld.global.b128 w, [p]; st.global.b128 [q], w;",
        {"at:u64": [16 * i for i in range(16)]},
        registers=".reg .b128 w;",
        memory={"p": memory(), "q": target},
        active=0xFFFF,
    )
    assert bytes(target[:256].tolist()) == BYTES


def test_elements_that_go_to_the_sink_are_left_out() -> None:
    got = run_instruction(
        "ld.global.v4.b32 {a, _, b, _}, [p];", {}, "a:b32 b:b32", memory={"p": memory()}
    )
    assert got["a"][0] == element("b32", 0)
    assert got["b"][0] == element("b32", 8)


@pytest.mark.parametrize("space", ["shared", "shared::cta", "shared::cluster", "local", "generic"])
@pytest.mark.parametrize("active", [0xFFFFFFFF, 0xA5A5_0F01])
def test_what_is_stored_in_a_space_is_loaded_again(space: str, active: int) -> None:
    inside = "" if space == "generic" else f".{space}"
    where = "stack" if space == "local" else "room"
    base = f"mov.u32 r, {where};" if space != "generic" else f"cvta.shared.u64 g, {where};"
    offset = "r" if space != "generic" else "g"
    step = "" if space == "local" else "shl.b32 o, i, 3; add.u32 r, r, o;"
    if space == "generic":
        step = "mul.wide.u32 w, i, 8; add.u64 g, g, w;"
    values = [0x1_0000_0001 * (i + 3) for i in range(32)]
    got = run_instruction(
        f"{base} {step} st{inside}.b64 [{offset}], v; ld{inside}.b64 d, [{offset}];",
        {"i:u32": list(range(32)), "v:u64": values},
        "d:u64",
        declare=SHARED,
        registers=f"{LOCAL} .reg .b32 r, o; .reg .b64 g, w;",
        active=active,
    )
    assert got["d"] == [v if active >> i & 1 else 0 for i, v in enumerate(values)]


def test_local_memory_is_each_threads_own() -> None:
    got = run_instruction(
        """st.local.u32 [stack+4], i; cvta.local.u64 g, stack; ld.u32 d, [g+4];
        ld.local.u32 e, [stack+4];""",
        {"i:u32": [7 * i for i in range(32)]},
        "d:u32 e:u32",
        registers=f"{LOCAL} .reg .b64 g;",
    )
    assert got["d"] == got["e"] == [7 * i for i in range(32)]


def test_constants_and_parameters_are_read_directly_and_by_generic_addresses() -> None:
    got = run_instruction(
        """ld.const.u32 a, [table+8]; cvta.const.u64 g, table; ld.u32 b, [g+4];
        cvta.param.u64 g, bench_source; ld.u64 c, [g]; ld.param.u64 d, [bench_source];""",
        {},
        "a:u32 b:u32 c:u64 d:u64",
        declare=".const .align 4 .u32 table[4] = {10, 11, 12, 13};",
        registers=".reg .b64 g;",
    )
    assert got["a"][0] == 12
    assert got["b"][0] == 11
    assert got["c"][0] == got["d"][0] != 0


def test_variables_of_the_module_keep_what_is_stored() -> None:
    got = run_instruction(
        "ld.global.u32 a, [counter]; st.global.u32 [counter], 6; ld.global.u32 b, [counter];",
        {},
        "a:u32 b:u32",
        declare=".global .align 4 .u32 counter = 5;",
    )
    assert (got["a"][0], got["b"][0]) == (5, 6)


def test_the_address_register_may_be_the_destination() -> None:
    numbers = torch.arange(64, dtype=torch.int64)
    got = run_instruction(
        "add.u64 p, p, at; ld.global.b64 p, [p]; mov.b64 d, p;",
        {"at:u64": [8 * (63 - i) for i in range(32)]},
        "d:u64",
        memory={"p": numbers},
    )
    assert got["d"] == [63 - i for i in range(32)]


def test_of_lanes_that_write_one_place_the_highest_wins() -> None:
    got = run_instruction(
        "st.shared.u32 [room], i; ld.shared.u32 d, [room];",
        {"i:u32": list(range(32))},
        "d:u32",
        declare=SHARED,
        active=0x0FFF_FFF0,
    )
    assert got["d"][4] == 27


@pytest.mark.parametrize(
    ("store", "load"),
    [("st.volatile", "ld.volatile"), ("st.relaxed.gpu", "ld.relaxed.sys"),
     ("st.release.cta", "ld.acquire.cta"), ("st.release.cluster", "ld.acquire.gpu")],
)  # fmt: skip
@pytest.mark.parametrize("space", ["", ".global", ".shared::cta"])
def test_strong_accesses_move_the_same_values(store: str, load: str, space: str) -> None:
    base = "mov.u64 p, room;" if space == ".shared::cta" else ""
    got = run_instruction(
        f"""{base} shl.b64 at, i, 4; add.u64 p, p, at;
        {store}{space}.v2.b64 [p], {{i, j}}; {load}{space}.v2.b64 {{d, e}}, [p];""",
        {"i:u64": list(range(32)), "j:u64": [2**63 + i for i in range(32)]},
        "d:u64 e:u64",
        declare=SHARED,
        registers=".reg .b64 at;",
        memory={"p": torch.zeros(64, dtype=torch.int64)},
    )
    assert got["d"] == list(range(32))
    assert got["e"] == [2**63 + i for i in range(32)]


def test_polling_a_flag_lets_the_other_warp_set_it() -> None:
    got = run_instruction(
        """mov.u32 t, %tid.x; shr.u32 t, t, 5; setp.eq.u32 q, t, 1; @q bra SET;
        AGAIN: ld.acquire.gpu.global.u32 d, [p]; setp.eq.u32 q, d, 0; @q bra AGAIN;
        bra DONE;
        SET: st.release.gpu.global.u32 [p], 9; mov.u32 d, 1;
        DONE:""",
        {},
        "d:u32",
        registers=".reg .pred q; .reg .b32 t;",
        threads=64,
        memory={"p": torch.zeros(1, dtype=torch.int32)},
    )
    assert got["d"] == [9] * 32 + [1] * 32


def test_bytes_are_counted_by_memory() -> None:
    code = """shl.b32 o, i, 3; mov.u32 r, room; add.u32 r, r, o; st.shared.b64 [r], 1;
    ld.shared.b64 w, [r]; ld.shared.b32 o, [r]; st.local.b32 [stack], 1; ld.local.b16 h, [stack];"""
    _, run = run_program(
        code,
        {"i:u32": list(range(32))},
        declare=SHARED,
        registers=f"{LOCAL} .reg .b32 r, o; .reg .b64 w; .reg .b16 h;",
        active=0xFFFF,
    )
    traffic = run.traffic
    assert (traffic.shared_written, traffic.shared_read) == (16 * 8, 16 * 12)
    assert (traffic.local_written, traffic.local_read) == (16 * 4, 16 * 2)
    assert (traffic.global_written, traffic.global_read) == (0, 32 * 4)
