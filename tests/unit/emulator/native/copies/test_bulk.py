"""Copies of consecutive bytes: in all directions, in part, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.emulator import EmulationError, Run
from flexfa4.emulator.failures.copies import (
    CopyAlignmentError,
    CopyBarrierError,
    ExitedSourceError,
    MulticastError,
    SameBlockError,
)
from flexfa4.emulator.failures.memory import (
    GlobalBoundsError,
    OutOfBoundsError,
    UninitialisedReadError,
)
from flexfa4.emulator.failures.sync import NoMbarrierError, NotOwnBlockError
from tests.copy_programs import (
    DECLARE,
    DUMP,
    FILL,
    GROUP,
    REGISTERS,
    ROOM,
    SCHEDULES,
    START,
    UNTOUCHED,
    WAIT,
)
from tests.ptx_programs import run_instruction, run_program
from tests.tensor_maps import aligned_bytes, aligned_tensor

CHECKED = {"check": ("races", "uninitialised")}
BYTES = "mbarrier::complete_tx::bytes"


def source(nbytes: int = 1024) -> torch.Tensor:
    return aligned_tensor((torch.arange(nbytes) * 7 % 251).to(torch.uint8))


def in_room(code: str, room: bytes, data: torch.Tensor, **options: Any) -> tuple[bytes, Run]:
    """Run instructions in one thread, between filling the room and bringing it out."""
    out = torch.zeros(len(room), dtype=torch.uint8)
    program = (
        START + FILL.format(room=len(room))
        + "@first mbarrier.init.shared.b64 [b], 1; bar.sync 0; @!first bra JOIN;"
        + code + "JOIN: bar.sync 0;" + DUMP.format(room=len(room))
    )  # fmt: skip
    memory = {"in": aligned_bytes(room), "out": out, "data": data}
    options = CHECKED | options
    _, run = run_program(
        program, declare=DECLARE, registers=REGISTERS, memory=memory, options=options
    )
    return bytes(out.tolist()), run


# ---- from global to shared memory ---------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("to", ["shared::cta", "shared::cluster"])
@pytest.mark.parametrize("nbytes", [16, 48, 512])
def test_bytes_are_loaded(to: str, nbytes: int, schedule: str) -> None:
    data = source()
    code = (
        f"mbarrier.arrive.expect_tx.shared.b64 _, [b], {nbytes}; mov.u32 k, {nbytes};"
        f"cp.async.bulk.{to}.global.{BYTES} [a+32], [data+64], k, [b];" + WAIT
    )
    room, run = in_room(code, bytes([UNTOUCHED] * 1024), data, schedule=schedule)
    expected = bytearray([UNTOUCHED] * 1024)
    expected[32 : 32 + nbytes] = bytes(data[64 : 64 + nbytes].tolist())
    assert room == bytes(expected)
    assert run.traffic.bulk_loaded == nbytes


CLUSTER = (
    START + "mov.u32 k, %cluster_ctarank; mad.lo.u32 c1, k, 100, t;"
    "shl.b32 c0, t, 2; add.u32 c0, c0, a;"
    "st.shared.b32 [c0], c1; st.shared.b32 [c0+128], c1; fence.proxy.async.shared::cta;"
    "@first mbarrier.init.shared.b64 [b], 1; bar.sync 0; setp.ne.u32 more, n, 0;"
    "@!more bra READY; @first mbarrier.arrive.expect_tx.shared.b64 _, [b], n; READY:"
    "barrier.cluster.arrive; barrier.cluster.wait;"
    "setp.eq.and.u32 first, k, 0, first; @!first bra SENT;"
    "mapa.shared::cluster.u32 c2, a, 1; mapa.shared::cluster.u32 c3, b, 1; mov.b16 mask, 6;"
    "{copy} SENT: @!more bra JOIN;" + WAIT + "JOIN: barrier.cluster.arrive; barrier.cluster.wait;"
    "ld.shared.b32 d, [c0]; barrier.cluster.arrive; barrier.cluster.wait;"
)  # fmt: skip


def in_cluster(copy: str, expected: list[int], **options: Any) -> tuple[list[list[int]], Run]:
    """Block 0 of a cluster copies; return the first words of the rooms, and what the launch did."""
    found, run = run_program(
        CLUSTER.format(copy=copy),
        {"n:u32": [n for n in expected for _ in range(32)]},
        "d:u32",
        declare=DECLARE,
        registers=REGISTERS,
        grid=len(expected),
        cluster=len(expected),
        memory={"data": source()},
        options=CHECKED | options,
    )
    return [found["d"][32 * rank :][:32] for rank in range(len(expected))], run


def own(rank: int) -> list[int]:
    return [100 * rank + lane for lane in range(32)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_multicast_reaches_the_blocks_of_its_mask(schedule: str) -> None:
    form = f"cp.async.bulk.shared::cluster.global.{BYTES}.multicast::cluster"
    copy = form + " [a], [data], 128, [b], mask;"
    found, run = in_cluster(copy, [0, 128, 128], schedule=schedule)
    row = source()[:128].view(torch.uint32).tolist()
    assert found == [own(0), row, row]
    assert (run.traffic.bulk_loaded, run.traffic.multicast) == (128, 128)


# ---- from one block to another ------------------------------------------------------------------

SEND = f"cp.async.bulk.shared::cluster.shared::cta.{BYTES} [c2], [a], 64, [c3];"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bytes_are_sent_to_another_block(schedule: str) -> None:
    found, run = in_cluster(SEND, [0, 64], schedule=schedule)
    assert found == [own(0), own(0)[:16] + own(1)[16:]]
    assert run.traffic.cluster_written == 64


@pytest.mark.parametrize(
    "name,combine",
    [
        ("add.u32", lambda a, b: a + b),
        ("add.s32", lambda a, b: a + b),
        ("min.s32", min),
        ("max.u32", max),
        ("and.b32", lambda a, b: a & b),
        ("or.b32", lambda a, b: a | b),
        ("xor.b32", lambda a, b: a ^ b),
        ("inc.u32", lambda a, b: 0 if a >= b else a + 1),
        ("dec.u32", lambda a, b: b if a == 0 or a > b else a - 1),
    ],
)
def test_words_of_another_block_are_combined(name: str, combine: Any) -> None:
    copy = f"cp.reduce.async.bulk.shared::cluster.shared::cta.{BYTES}.{name} [c2], [a], 64, [c3];"
    found, _ = in_cluster(copy, [0, 64], schedule="random")
    there, given = own(1), own(0)
    assert found == [
        own(0),
        [combine(a, b) for a, b in zip(there[:16], given[:16], strict=True)] + there[16:],
    ]


@pytest.mark.parametrize(
    "copy,error",
    [
        (SEND.replace("[c2]", "[a]").replace("[c3]", "[b]"), SameBlockError),
        (SEND.replace("[c3]", "[b]"), CopyBarrierError),
        (SEND.replace("[a]", "[c2]"), NotOwnBlockError),
        (SEND.replace("64", "20"), CopyAlignmentError),
        (SEND.replace("[a]", "[a+8]"), CopyAlignmentError),
        (SEND.replace("[c2]", f"[c2+{ROOM}]"), OutOfBoundsError),
        (SEND.replace("[a]", "[a+4096]"), UninitialisedReadError),
        (SEND.replace("[c3]", "[c3+8]"), NoMbarrierError),
        (
            f"mov.b16 mask, 8; cp.async.bulk.shared::cluster.global.{BYTES}.multicast::cluster"
            " [a], [data], 128, [b], mask;",
            MulticastError,
        ),
    ],
)
def test_what_cannot_be_sent_is_refused(copy: str, error: type[EmulationError]) -> None:
    with pytest.raises(error):
        in_cluster(copy, [0, 64])


# ---- from shared to global memory ---------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("nbytes", [16, 48, 512])
def test_bytes_are_stored(nbytes: int, schedule: str) -> None:
    data = torch.zeros(1024, dtype=torch.uint8)
    data = aligned_tensor(data)
    room = bytes(source().tolist())
    code = f"cp.async.bulk.global.shared::cta.bulk_group [data+64], [a+32], {nbytes};" + GROUP
    _, run = in_room(code, room, data, schedule=schedule)
    expected = bytes(64) + room[32 : 32 + nbytes] + bytes(1024 - 64 - nbytes)
    assert bytes(data.tolist()) == expected
    assert run.traffic.bulk_stored == nbytes


@pytest.mark.parametrize("mask", [0x0001, 0x8000, 0x5A3C, 0xFFFF, 0])
def test_a_mask_names_bytes_of_each_sixteen(mask: int) -> None:
    data = aligned_tensor(torch.full((64,), UNTOUCHED, dtype=torch.uint8))
    room = bytes(range(1, 129))
    code = (
        f"mov.b16 mask, {mask};"
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [data], [a], 64, mask;" + GROUP
    )
    in_room(code, room, data)
    expected = [room[i] if mask >> i % 16 & 1 else UNTOUCHED for i in range(64)]
    assert data.tolist() == expected


@pytest.mark.parametrize(
    "name,dtype,combine",
    [
        ("add.f32", torch.float32, torch.add),
        ("add.f64", torch.float64, torch.add),
        ("add.u64", torch.int64, torch.add),
        ("add.noftz.f16", torch.float16, torch.add),
        ("add.noftz.bf16", torch.bfloat16, torch.add),
        ("min.f16", torch.float16, torch.minimum),
        ("max.bf16", torch.bfloat16, torch.maximum),
        ("min.s64", torch.int64, torch.minimum),
        ("max.s32", torch.int32, torch.maximum),
        ("and.b64", torch.int64, torch.bitwise_and),
        ("xor.b32", torch.int32, torch.bitwise_xor),
    ],
)
def test_elements_of_global_memory_are_combined(
    name: str, dtype: torch.dtype, combine: Any
) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-500, 500, (32,), generator=generator).to(dtype) for _ in range(2))
    data = aligned_tensor(a)
    room = bytes(b.view(torch.uint8).tolist()) + bytes(512 - b.nbytes)
    code = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{name} [data], [a], {b.nbytes};"
    _, run = in_room(code + GROUP, room, data, schedule="random")
    assert torch.equal(data, combine(a, b))
    assert run.traffic.bulk_reduced == b.nbytes


def test_reductions_of_floats_are_those_of_the_hardware() -> None:
    # bits that an H200 leaves: subnormal numbers are kept, NaN has one form, -0 is below +0
    cases = {
        "add.f32": (torch.uint32, [1, 0x00800000, 0x7F800000, 0x7FC00001],
                    [1, 0x80000001, 0xFF800000, 0x3F800000],
                    [2, 0x007FFFFF, 0x7FFFFFFF, 0x7FFFFFFF]),
        "min.f16": (torch.uint16, [0x7E00, 0x8000, 0x0000, 0x7D01, 0x3C00, 0x7C00, 0xFC00, 1],
                    [0x3C00, 0x0000, 0x8000, 0x7E02, 0x1000, 0x7C00, 0x7C00, 0x8001],
                    [0x3C00, 0x8000, 0x8000, 0x7FFF, 0x1000, 0x7C00, 0xFC00, 0x8001]),
        "max.bf16": (torch.uint16, [0x7FC0, 0x8000, 0x0000, 0x7F81, 0x007F, 0x7F80, 0xFF80, 0x3F81],
                     [0x3F80, 0x0000, 0x8000, 0x7FC2, 0x0001, 0x7F80, 0x7F80, 0x3B80],
                     [0x3F80, 0x0000, 0x0000, 0x7FFF, 0x007F, 0x7F80, 0x7F80, 0x3F81]),
        "add.noftz.bf16": (torch.uint16, [1, 0x8001, 0x7F80, 0x007F, 0x7F7F, 0x3F81, 0x8000, 0],
                           [1, 0x0001, 0xFF80, 0x0001, 0x7F7F, 0x3B80, 0x8000, 0],
                           [2, 0x0000, 0x7FFF, 0x0080, 0x7F80, 0x3F82, 0x8000, 0]),
    }  # fmt: skip
    for name, (dtype, there, given, expected) in cases.items():
        data = aligned_tensor(torch.tensor(there).to(dtype))
        bits = bytes(torch.tensor(given).to(dtype).view(torch.uint8).tolist())
        code = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{name} [data], [a], 16;" + GROUP
        in_room(code, bits + bytes(112), data)
        assert data.tolist() == expected, name


STORE = "cp.async.bulk.global.shared::cta.bulk_group [data], [a], 64;"


@pytest.mark.parametrize(
    "code,error",
    [
        (STORE.replace("64", "24"), CopyAlignmentError),
        (STORE.replace("[a]", "[a+4]"), CopyAlignmentError),
        (STORE.replace("[data]", "[data+4]"), CopyAlignmentError),
        (STORE.replace("[data]", "[data+32]"), GlobalBoundsError),
        (STORE.replace("[a]", f"[a+{ROOM}]"), OutOfBoundsError),
        (STORE.replace("[a]", "[a+512]") + GROUP, UninitialisedReadError),
        ("cp.async.bulk.prefetch.L2.global [data], 20;", CopyAlignmentError),
        (f"cp.async.bulk.shared::cta.global.{BYTES} [a], [data+16], 64, [b];", GlobalBoundsError),
        (f"cp.async.bulk.shared::cta.global.{BYTES} [a], [data], 64, [b+8];", NoMbarrierError),
    ],
)
def test_what_cannot_be_copied_is_refused(code: str, error: type[EmulationError]) -> None:
    with pytest.raises(error):
        in_room(code, bytes(512), aligned_tensor(torch.zeros(64, dtype=torch.uint8)))


def test_a_store_that_reads_after_the_end_of_its_block_is_refused() -> None:
    data = aligned_tensor(torch.zeros(64, dtype=torch.uint8))
    with pytest.raises(ExitedSourceError):
        run_instruction(
            START + STORE + "cp.async.bulk.commit_group;", declare=DECLARE, registers=REGISTERS,
            active=1, memory={"data": data}, options={"schedule": "late"},
        )  # fmt: skip


def test_a_prefetch_changes_nothing_wherever_it_points() -> None:
    code = "cp.async.bulk.prefetch.L2.global [x], 256;"  # as on an H200
    registers = ".reg .b64 x;"
    run_instruction("mov.b64 x, 4096;" + code, registers=registers)
