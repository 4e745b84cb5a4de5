"""Schedules: the same results from a correct program, in different orders that a seed repeats."""

from __future__ import annotations

import pytest
import torch

from tests.ptx_programs import run_instruction

SCHEDULES = ["eager", "late", "random", "priority"]
# Each thread of four warps takes tickets; their order is that in which the threads came.
TICKETS = (
    "mov.b32 n, 4; AGAIN: atom.global.add.u32 x, [counter], 1; shl.b32 d, d, 8; or.b32 d, d, x;"
    " sub.u32 n, n, 1; setp.ne.u32 p, n, 0; @p bra AGAIN;"
)
REGISTERS = ".reg .pred p; .reg .b32 x, n;"


def tickets(schedule: str, seed: int) -> list[int]:
    return run_instruction(
        TICKETS,
        {"d:u32": [0] * 128},
        "d:u32",
        threads=128,
        registers=REGISTERS,
        memory={"counter": torch.zeros(1, dtype=torch.int32)},
        options={"schedule": schedule, "seed": seed},
    )["d"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_seed_gives_the_same_order_again(schedule: str) -> None:
    assert tickets(schedule, 7) == tickets(schedule, 7)


@pytest.mark.parametrize("schedule", ["random", "priority"])
def test_seeds_give_different_orders(schedule: str) -> None:
    assert len({tuple(tickets(schedule, seed)) for seed in range(8)}) > 4


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_correct_program_has_one_result(schedule: str) -> None:
    code = (
        "shl.b32 x, t, 2; add.u32 x, x, y; mov.b32 n, 0;"
        " LOOP: st.shared.b32 [x], a; bar.sync 0; xor.b32 z, x, 128; ld.shared.b32 b, [z];"
        " bar.sync 0; mad.lo.u32 a, a, 3, b; add.u32 n, n, 1; setp.lt.u32 p, n, 5; @p bra LOOP;"
    )
    values = [7 * lane + 1 for lane in range(64)]
    for seed in range(5):
        found = run_instruction(
            "mov.u32 t, %tid.x; mov.u32 y, tile;" + code,
            {"a:u32": values},
            "a:u32",
            threads=64,
            declare=".shared .align 16 .b8 tile[256];",
            registers=".reg .pred p; .reg .b32 t, x, y, z, n, b;",
            options={"schedule": schedule, "seed": seed, "check": ("races", "uninitialised")},
        )["a"]
        expected = list(values)
        for _ in range(5):
            expected = [(3 * a + expected[i ^ 32]) % 2**32 for i, a in enumerate(expected)]
        assert found == expected


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warp_goes_on_behind_its_atomics_while_all_others_wait(schedule: str) -> None:
    code = (
        "mov.u32 t, %tid.x; setp.lt.u32 p, t, 32; @p bra MEET; mov.b32 n, 0;"
        " AGAIN: atom.global.add.u32 x, [counter], 1; add.u32 n, n, 1; setp.lt.u32 p, n, 9;"
        " @p bra AGAIN; MEET: bar.sync 0; ld.global.u32 d, [counter];"
    )
    for seed in range(5):
        assert (
            run_instruction(
                code,
                {"d:u32": [0] * 64},
                "d:u32",
                threads=64,
                registers=".reg .pred p; .reg .b32 t, x, n;",
                memory={"counter": torch.zeros(1, dtype=torch.int32)},
                options={"schedule": schedule, "seed": seed},
            )["d"]
            == [9 * 32] * 64
        )
