"""Asynchronous stores and reductions into shared memory of another block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flexfa4.emulator import EmulationError
from flexfa4.emulator.failures.copies import CopyAlignmentError, CopyBarrierError, LoneBlockError
from flexfa4.emulator.failures.memory import OutOfBoundsError, UninitialisedReadError
from flexfa4.emulator.failures.sync import NoMbarrierError
from tests.copy_programs import DECLARE, REGISTERS, ROOM, SCHEDULES, START, WAIT
from tests.ptx_programs import run_instruction

# Each lane of block 0 sends to its 16 bytes of block 1, which reads the first word of them.
PROGRAM = (
    START + "shl.b32 c0, t, 4; add.u32 c0, c0, a; mov.u32 k, %cluster_ctarank;"
    "@first mbarrier.init.shared.b64 [b], 1; {prepare}"
    "setp.eq.u32 more, k, 1; @!more bra READY;"
    "@first mbarrier.arrive.expect_tx.shared.b64 _, [b], {expected}; READY:"
    "barrier.cluster.arrive; barrier.cluster.wait; @more bra RECEIVE;"
    "mapa.shared::cluster.u32 c2, c0, 1; mapa.shared::cluster.u32 c3, b, 1; add.u32 n, t, 1000;"
    "mov.b64 x, {{n, t}}; cvta.shared.u64 y, bar; mapa.u64 y, y, 1;"
    "{send} bra JOIN; RECEIVE:" + WAIT + "ld.shared.b32 d, [c0]; ld.shared.b32 e, [c0+{second}];"
    "JOIN: barrier.cluster.arrive; barrier.cluster.wait;"
)
BYTES = "mbarrier::complete_tx::bytes"


def send(
    code: str, expected: int, second: int = 0, prepare: str = "", cluster: int = 2, **options: Any
) -> tuple[list[int], list[int]]:
    found = run_instruction(
        PROGRAM.format(send=code, expected=expected, second=second, prepare=prepare),
        {},
        "d:u32 e:u32",
        declare=DECLARE,
        registers=REGISTERS + ".reg .b32 n; .reg .f32 f; .reg .b64 z;",
        grid=cluster,
        cluster=cluster,
        options={"check": ("races", "uninitialised")} | options,
    )
    return found["d"][32:], found["e"][32:]


SENT = [1000 + lane for lane in range(32)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "code,nbytes,second,expected",
    [
        (f"st.async.shared::cluster.{BYTES}.b32 [c2], n, [c3];", 4, 0, SENT),
        (f"st.async.weak.shared::cluster.{BYTES}.u32 [c2], n, [c3];", 4, 0, SENT),
        (f"st.async.shared::cluster.{BYTES}.b64 [c2], x, [c3];", 8, 4, list(range(32))),
        (f"st.async.shared::cluster.{BYTES}.v2.s32 [c2], {{n, t}}, [c3];", 8, 4, list(range(32))),
        (
            f"st.async.shared::cluster.{BYTES}.v4.b32 [c2], {{n, n, n, t}}, [c3];",
            16,
            12,
            list(range(32)),
        ),
        (f"st.async.cluster.shared::cluster.{BYTES}.v2.b64 [c2], {{x, x}}, [c3];", 16, 8, SENT),
    ],
)
def test_registers_are_stored(
    code: str, nbytes: int, second: int, expected: list[int], schedule: str
) -> None:
    assert send(code, 32 * nbytes, second, schedule=schedule) == (SENT, expected)


def test_a_generic_address_names_the_place_too() -> None:
    code = (
        "cvta.shared.u64 z, room; mapa.u64 z, z, 1; shl.b32 k, t, 4; mul.wide.u32 x, k, 1;"
        f"add.u64 z, z, x; st.async.{BYTES}.b32 [z], n, [y];"
    )
    assert send(code, 128)[0] == SENT


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "name,combine",
    [
        ("add.u32", lambda a, b: a + b),
        ("add.s32", lambda a, b: a + b),
        ("min.u32", min),
        ("max.s32", max),
        ("and.b32", lambda a, b: a & b),
        ("or.b32", lambda a, b: a | b),
        ("xor.b32", lambda a, b: a ^ b),
        ("inc.u32", lambda a, b: 0 if a >= b else a + 1),
        ("dec.u32", lambda a, b: b if a == 0 or a > b else a - 1),
    ],
)
def test_registers_are_combined_with_memory(
    name: str, combine: Callable[[int, int], int], schedule: str
) -> None:
    prepare = "mul.lo.u32 n, t, 37; st.shared.b32 [c0], n;"
    code = f"red.async.relaxed.cluster.shared::cluster.{BYTES}.{name} [c2], n, [c3];"
    found, _ = send(code, 128, prepare=prepare, schedule=schedule)
    assert found == [combine(37 * lane, 1000 + lane) for lane in range(32)]


def test_words_of_64_bits_are_added() -> None:
    prepare = "mov.b64 x, 0xFFFFFFFF; st.shared.b64 [c0], x;"
    code = f"red.async.relaxed.cluster.shared::cluster.{BYTES}.add.u64 [c2], x, [c3];"
    first, second = send(code, 256, second=4, prepare=prepare)
    assert first == [999 + lane for lane in range(32)]  # and a carry
    assert second == [lane + 1 for lane in range(32)]


def test_all_lanes_may_combine_with_one_word() -> None:
    prepare = "@first st.shared.b32 [a], 5;"
    code = (
        "mapa.shared::cluster.u32 c2, a, 1;"
        f"red.async.relaxed.cluster.shared::cluster.{BYTES}.add.u32 [c2], n, [c3];"
    )
    around = PROGRAM.replace(
        "ld.shared.b32 d, [c0]; ld.shared.b32 e, [c0+{second}];", "ld.shared.b32 d, [a];"
    )
    found = run_instruction(
        around.format(send=code, expected=128, prepare=prepare),
        {},
        "d:u32",
        declare=DECLARE,
        registers=REGISTERS + ".reg .b32 n;",
        grid=2,
        cluster=2,
        options={"schedule": "priority", "check": ("races", "uninitialised")},
    )
    assert found["d"][32:] == [5 + sum(SENT)] * 32


@pytest.mark.parametrize(
    "code,error",
    [
        (f"st.async.shared::cluster.{BYTES}.b32 [c2], n, [b];", CopyBarrierError),
        (f"st.async.shared::cluster.{BYTES}.b32 [c2], n, [c3+8];", NoMbarrierError),
        (f"st.async.shared::cluster.{BYTES}.b64 [c2+4], x, [c3];", CopyAlignmentError),
        (
            f"st.async.shared::cluster.{BYTES}.v4.b32 [c2+8], {{n, n, n, n}}, [c3];",
            CopyAlignmentError,
        ),
        (f"st.async.shared::cluster.{BYTES}.b32 [c2+{ROOM}], n, [c3];", OutOfBoundsError),
        (
            f"red.async.relaxed.cluster.shared::cluster.{BYTES}.add.u32 [c2], n, [c3];",
            UninitialisedReadError,
        ),
    ],
)
def test_what_cannot_be_sent_is_refused(code: str, error: type[EmulationError]) -> None:
    with pytest.raises(error):
        send(code, 128)


def test_a_cluster_of_one_block_has_nobody_to_send_to() -> None:
    code = f"st.async.shared::cluster.{BYTES}.b32 [a], t, [b];"
    with pytest.raises(LoneBlockError):
        run_instruction(
            START + "mbarrier.init.shared.b64 [b], 1;" + code,
            declare=DECLARE,
            registers=REGISTERS,
            active=1,
        )
