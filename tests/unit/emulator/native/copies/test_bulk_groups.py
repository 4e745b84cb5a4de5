"""Bulk async-groups: what is waited for, and by whom."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.emulator.failures.races import RaceError
from tests.copy_programs import DECLARE, REGISTERS, SCHEDULES, START
from tests.ptx_programs import run_instruction
from tests.tensor_maps import aligned_tensor

SETTING: dict[str, Any] = {"declare": DECLARE, "registers": REGISTERS}
COMMIT = "cp.async.bulk.commit_group;"
WAIT = "cp.async.bulk.wait_group {};".format
READ = "cp.async.bulk.wait_group.read {};".format


def write(value: int, at: int = 0) -> str:
    return (
        f"mov.u32 k, {value}; st.shared.v4.b32 [a+{at}], {{k, k, k, k}};"
        "fence.proxy.async.shared::cta;"
    )


def store(to: int, at: int = 0) -> str:
    return f"cp.async.bulk.global.shared::cta.bulk_group [data+{to}], [a+{at}], 16;"


def run(code: str, schedule: str, seed: int = 0, races: bool = True) -> list[int]:
    data = aligned_tensor(torch.zeros(64, dtype=torch.int32))
    check = ("races", "uninitialised") if races else ("uninitialised",)
    options = {"schedule": schedule, "seed": seed, "check": check}
    run_instruction(START + code, active=1, memory={"data": data}, options=options, **SETTING)
    return data[::4].tolist()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_source_may_be_written_again_once_it_has_been_read(schedule: str, seed: int) -> None:
    code = "".join(write(i) + store(16 * i) + COMMIT + READ(0) for i in range(1, 8))
    assert run(code + WAIT(0), schedule, seed)[:8] == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_most_recent_groups_may_be_left_pending(schedule: str, seed: int) -> None:
    # two buffers: before one is written again, all but the latest group have been read
    code = ""
    for i in range(1, 9):
        at = 128 * (i % 2)
        code += READ(1) + write(i, at) + store(16 * i, at) + COMMIT
    assert run(code + WAIT(0), schedule, seed)[:9] == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_what_is_not_committed_is_not_waited_for() -> None:
    code = write(1) + store(0) + WAIT(0) + "ld.global.b32 k, [data]; st.global.b32 [data+64], k;"
    finish = COMMIT + WAIT(0)
    assert run(code + finish, "late", races=False)[4] == 0
    waited = code.replace(WAIT(0), COMMIT + WAIT(0))
    assert run(waited, "late")[4] == 1


def test_reading_is_complete_before_writing_is() -> None:
    code = write(1) + store(0) + COMMIT + READ(0) + "ld.global.b32 k, [data];"
    with pytest.raises(RaceError):
        run(code + WAIT(0), "eager")


def test_a_source_that_is_written_too_soon_is_a_race() -> None:
    before, after = write(1) + store(0) + COMMIT, write(2) + WAIT(0)
    with pytest.raises(RaceError):
        run(before + after, "eager")
    run(before + READ(0) + after, "eager")


def test_every_thread_has_groups_of_its_own() -> None:
    data = aligned_tensor(torch.zeros(128, dtype=torch.int32))
    code = START + (
        "shl.b32 k, t, 4; add.u32 a, a, k; st.shared.v4.b32 [a], {t, t, t, t};"
        "fence.proxy.async.shared::cta; mul.wide.u32 x, k, 1; add.u64 x, x, data;"
        "cp.async.bulk.global.shared::cta.bulk_group [x], [a], 16;"
    )
    code += COMMIT + READ(0) + "st.shared.b32 [a], 99;" + WAIT(0) + "ld.global.b32 d, [x];"
    found = run_instruction(
        code, {}, "d:u32", memory={"data": data},
        options={"schedule": "random", "check": ("races", "uninitialised")}, **SETTING,
    )  # fmt: skip
    assert found["d"] == list(range(32))


def test_waiting_without_groups_goes_on() -> None:
    assert run(WAIT(0) + READ(3) + COMMIT + COMMIT + WAIT(0), "eager")[0] == 0
