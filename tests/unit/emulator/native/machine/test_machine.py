"""Grids: clusters in any number, on several workers, that wait for each other in global memory."""

from __future__ import annotations

import re

import pytest
import torch

from flexfa4.emulator.failures.machine import DeadlockError, InstructionLimitError
from tests.ptx_programs import run_instruction, run_program

FLAG = (
    # block 0 waits for the flag that block 1 raises
    "mov.u32 d, %ctaid.x; setp.ne.u32 p, d, 0; @p bra RAISE;"
    " LOOK: ld.acquire.gpu.global.u32 x, [flag]; setp.eq.u32 p, x, 0; @p bra LOOK; bra END;"
    " RAISE: st.release.gpu.global.u32 [flag], 9; mov.b32 x, 9; END:"
)
REGISTERS = ".reg .pred p; .reg .b32 x;"


def flag() -> dict[str, torch.Tensor]:
    return {"flag": torch.zeros(1, dtype=torch.int32)}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_block_of_a_grid_runs_once(workers: int) -> None:
    memory = {"counts": torch.zeros(50, dtype=torch.int32)}
    code = (
        "mov.u32 d, %ctaid.x; mul.wide.u32 y, d, 4; add.u64 y, y, counts;"
        " red.global.add.u32 [y], 1;"
    )
    found, run = run_program(
        code,
        {},
        "d:u32",
        grid=50,
        threads=64,
        memory=memory,
        registers=".reg .b64 y;",
        options={"workers": workers},
    )
    assert memory["counts"].tolist() == [64] * 50
    assert found["d"] == [block for block in range(50) for _ in range(64)]
    assert run.executed["red.global.add.u32"] == 100


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("schedule", ["eager", "late", "random", "priority"])
def test_a_block_may_wait_for_a_later_one(schedule: str, workers: int) -> None:
    found = run_instruction(
        FLAG + " mov.b32 d, x;",
        {},
        "d:u32",
        grid=2,
        memory=flag(),
        registers=REGISTERS,
        options={"schedule": schedule, "workers": workers, "check": ("races",)},
    )
    assert found["d"] == [9] * 64


@pytest.mark.parametrize("schedule", ["eager", "late", "random", "priority"])
def test_blocks_that_began_to_wait_at_different_times_let_a_later_one_begin(schedule: str) -> None:
    """Two blocks are under way at once; the third raises the flag."""
    code = (
        "mov.u32 d, %ctaid.x; mov.b32 x, 9; setp.eq.u32 p, d, 2; @p bra RAISE;"
        " mul.lo.u32 x, d, 1000; COUNT: setp.eq.u32 p, x, 0; @p bra BEGIN; sub.u32 x, x, 1;"
        " bra COUNT; BEGIN: red.global.add.u32 [begun], 1;"
        " LOOK: ld.acquire.gpu.global.u32 x, [flag]; setp.eq.u32 p, x, 0; @p bra LOOK; bra END;"
        " RAISE: st.release.gpu.global.u32 [flag], x; END: mov.b32 d, x;"
    )
    found = run_instruction(
        code,
        {},
        "d:u32",
        grid=3,
        threads=1,
        memory={**flag(), "begun": torch.zeros(1, dtype=torch.int32)},
        registers=REGISTERS,
        options={"schedule": schedule, "max_instructions": 3_000_000},
    )
    assert found["d"] == [9] * 3


@pytest.mark.parametrize("workers", [1, 2])
def test_all_blocks_of_a_full_device_may_wait_for_each_other(workers: int) -> None:
    code = (
        "mov.b32 d, 0; AGAIN: add.u32 d, d, 132; atom.add.acq_rel.gpu.global.u32 x, [flag], 1;"
        " LOOK: ld.acquire.gpu.global.u32 x, [flag]; setp.lt.u32 p, x, d; @p bra LOOK;"
        " setp.lt.u32 p, d, 396; @p bra AGAIN;"
    )
    found, run = run_program(
        code,
        {},
        "d:u32",
        grid=132,
        threads=1,
        memory=flag(),
        registers=REGISTERS,
        options={"workers": workers, "sms": 132},
    )
    assert found["d"] == [396] * 132
    assert run.instructions < 60_000_000  # looking around costs more with every block that waits


def test_a_block_that_waits_for_one_without_room_is_reported() -> None:
    with pytest.raises(DeadlockError, match="going round in a loop"):
        run_instruction(
            FLAG, {}, "d:u32", grid=2, memory=flag(), registers=REGISTERS, options={"sms": 1}
        )


def test_a_failure_on_one_worker_ends_the_others() -> None:
    code = "mov.u32 d, %ctaid.x; setp.eq.u32 p, d, 3; @p trap;"
    with pytest.raises(Exception, match=r"block \(3, 0, 0\).*stopped itself"):
        run_instruction(code, {}, "d:u32", grid=16, registers=REGISTERS, options={"workers": 4})


COUNT_FOR_EVER = (  # its effect is seen by nobody, and yet it is one
    "ROUND: add.u32 x, x, 1; st.global.u32 [flag], x; bra ROUND;"
)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("schedule", ["eager", "late", "random", "priority"])
def test_a_loop_that_never_ends_is_given_up_where_its_warps_are(
    schedule: str, workers: int
) -> None:
    with pytest.raises(InstructionLimitError) as caught:
        run_program(
            COUNT_FOR_EVER,
            {},
            "d:u32",
            threads=64,
            grid=4,
            memory=flag(),
            registers=REGISTERS,
            options={"schedule": schedule, "max_instructions": 20_000, "workers": workers},
        )
    error = caught.value
    assert error.run is not None
    assert 20_000 < error.run.instructions <= 20_000 + workers * (1 << 16)
    text = str(error)
    assert text.startswith("more than 20000 instructions were executed; groups of lanes that are")
    assert "running" in text and re.search("warps? (0-)?1, lanes 0-31 at line", text)


def test_what_waits_and_what_has_waited_are_told_apart_where_a_launch_is_given_up() -> None:
    code = "mov.u32 d, %tid.x; bar.sync 0; setp.ge.u32 p, d, 32; @p bar.sync 1;" + COUNT_FOR_EVER
    with pytest.raises(InstructionLimitError) as caught:
        run_program(
            code,
            {},
            "d:u32",
            threads=64,
            memory=flag(),
            registers=REGISTERS,
            options={"max_instructions": 5_000},
        )
    first, second = str(caught.value).splitlines()[1:3]
    assert "warp 0" in first and first.endswith("running")
    assert "warp 1" in second and "waiting for barrier 1" in second


def test_a_launch_within_its_limit_is_not_given_up() -> None:
    run_instruction("add.u32 d, d, 1;", {}, "d:u32", grid=50, options={"max_instructions": 1000})
