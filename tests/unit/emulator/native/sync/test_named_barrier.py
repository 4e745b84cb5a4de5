"""The 16 barriers of a block: who is counted, what is reduced, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from flexfa4.emulator import EmulationError
from flexfa4.emulator.failures.machine import DeadlockError, NotAlignedError
from flexfa4.emulator.failures.sync import (
    BarrierNumberError,
    BarrierThreadsError,
    DifferentThreadsError,
    MixedUseError,
    SecondArrivalError,
)
from tests.ptx_programs import run_instruction

ROOM = ".shared .align 4 .b32 room[256];"
REGISTERS = ".reg .b32 t, w, a, n, m; .reg .pred p0, p1, p2, odd;"
START = (
    "mov.u32 t, %tid.x; shr.u32 w, t, 5; shl.b32 a, t, 2; mov.u32 n, room; add.u32 a, a, n;"
    "setp.eq.u32 p0, w, 0; setp.eq.u32 p1, w, 1; setp.eq.u32 p2, w, 2;"
)
SCHEDULES = ["eager", "late", "random", "priority"]


def run(code: str, outputs: str = "d:u32", **setting: Any) -> dict[str, list[Any]]:
    setting = {"declare": ROOM, "registers": REGISTERS, "threads": 96} | setting
    return run_instruction(START + code, {}, outputs, **setting)


def checked(schedule: str, seed: int = 0) -> dict[str, Any]:
    return {"schedule": schedule, "seed": seed, "check": ("races", "uninitialised")}


# each thread reads what the thread 32 before it has written
ROTATE = (
    "st.shared.u32 [a], t; {meet} add.u32 n, t, 64; rem.u32 n, n, 96; shl.b32 n, n, 2;"
    "mov.u32 m, room; add.u32 m, m, n; ld.shared.u32 d, [m];"
)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "meet",
    [
        "bar.sync 0;",
        "bar.cta.sync 15;",
        "barrier.sync 3;",
        "barrier.sync.aligned 3, 96;",
        "barrier.cta.sync 1, 96;",
        "mov.u32 n, 7; mov.u32 m, 96; bar.sync n, m;",
    ],
)
def test_threads_that_met_see_each_others_stores(meet: str, schedule: str) -> None:
    found = run(ROTATE.format(meet=meet), options=checked(schedule))
    assert found["d"] == [(t + 64) % 96 for t in range(96)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_that_only_arrive_do_not_wait(schedule: str) -> None:
    # warps 0 and 1 produce, warp 2 consumes
    code = (
        "@p2 bra CONSUME; st.shared.u32 [a], t; bar.arrive 4, 96; bra END;"
        "CONSUME: bar.sync 4, 96; ld.shared.u32 d, [a+-128]; ld.shared.u32 n, [a+-256];"
        "add.u32 d, d, n; END:"
    )
    found = run(code, options=checked(schedule))
    assert found["d"][64:] == [2 * t - 96 for t in range(64, 96)]


def test_barriers_are_ready_for_the_next_use_at_once() -> None:
    code = (
        "mov.u32 n, 0; LOOP: bar.sync 1, 64; add.u32 n, n, 1; setp.lt.u32 odd, n, 5;"
        "@odd bra LOOP; mov.u32 d, n;"
    )
    found = run("@p2 bra END;" + code + "END:", options={"schedule": "random"})
    assert found["d"] == [5] * 64 + [0] * 32


def test_lanes_of_a_warp_may_come_one_after_another() -> None:
    code = (
        "and.b32 n, t, 1; setp.eq.u32 odd, n, 1; @odd bra ODD;"
        "st.shared.u32 [a], t; barrier.sync 2; bra JOIN;"
        "ODD: st.shared.u32 [a], t; barrier.sync 2; JOIN:"
        "add.u32 n, t, 33; rem.u32 n, n, 96; shl.b32 n, n, 2; mov.u32 m, room; add.u32 m, m, n;"
        "ld.shared.u32 d, [m];"
    )
    assert run(code)["d"] == [(t + 33) % 96 for t in range(96)]


def test_a_block_whose_last_warp_is_not_full_meets_as_full_warps() -> None:
    found = run("bar.sync 0, 96; mov.u32 d, 1;", threads=70)
    assert found["d"] == [1] * 70


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warp_that_arrives_and_then_waits_counts_twice(schedule: str) -> None:
    code = "@p0 bar.arrive 1, 128; bar.sync 1, 128;" * 3 + "mov.u32 d, 1;"
    assert run(code, options={"schedule": schedule})["d"] == [1] * 96


# ---- threads that have exited -------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_barrier_of_all_threads_does_not_wait_for_those_that_have_exited(schedule: str) -> None:
    # seen on an H200, too
    code = "@p1 ret; bar.sync 0; mov.u32 d, 1;"
    found = run(code, options={"schedule": schedule})
    assert found["d"] == [1] * 32 + [0] * 32 + [1] * 32


def test_lanes_that_have_exited_are_not_missed_in_their_warp() -> None:
    code = "and.b32 n, t, 1; setp.eq.u32 odd, n, 1; @odd ret; bar.sync 0, 96; mov.u32 d, 1;"
    assert run(code)["d"] == [1, 0] * 48


def test_a_number_of_threads_counts_those_that_have_exited() -> None:
    with pytest.raises(DeadlockError, match=r"barrier 5 of block .* \(64 of 96 .*warps 0, 2"):
        run("@p1 ret; bar.sync 5, 96;")


# ---- reductions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bar.red", "barrier.red", "barrier.red{}.aligned"])
@pytest.mark.parametrize("count", ["", "96, "])
@pytest.mark.parametrize("bound", [0, 1, 40, 96])
def test_predicates_of_all_threads_are_reduced(name: str, count: str, bound: int) -> None:
    aligned = ".aligned" if "aligned" in name else ""
    name = name.split("{")[0]
    code = (
        f"setp.lt.u32 odd, t, {bound};"
        f"{name}.popc{aligned}.u32 d, 1, {count}odd;"
        f"{name}.and{aligned}.pred p, 2, {count}odd;"
        f"{name}.or{aligned}.pred q, 3, {count}odd;"
        f"{name}.popc{aligned}.u32 e, 4, {count}!odd;"
    )
    found = run(code, "d:u32 p:pred q:pred e:u32", options={"schedule": "random"})
    assert found["d"] == [bound] * 96
    assert found["e"] == [96 - bound] * 96
    assert found["p"] == [bound == 96] * 96
    assert found["q"] == [bound > 0] * 96


def test_a_reduction_of_some_warps_leaves_out_the_others() -> None:
    found = run("@p0 bra END; bar.red.popc.u32 d, 1, 64, p2; END:")
    assert found["d"] == [0] * 32 + [32] * 64


# ---- what is refused ----------------------------------------------------------------------------

MISTAKES: list[tuple[str, type[EmulationError], str]] = [
    ("bar.sync 16;", BarrierNumberError, "barrier 16"),
    ("bar.sync 1, 48;", BarrierThreadsError, "48 threads at barrier 1"),
    ("bar.sync 1, 224;", BarrierThreadsError, "twice the 96 threads"),
    ("mov.u32 n, 0; bar.sync 1, n;", BarrierThreadsError, "0 threads"),
    ("@!p0 bra B; bar.sync 1, 96; B: bar.sync 1, 64;", DifferentThreadsError, "for 64 threads"),
    (
        "@p0 bar.arrive 1, 96; @p0 bar.arrive 1, 96; bar.sync 0;",
        SecondArrivalError,
        "there already",
    ),
    (
        "@p0 bar.arrive 1, 128; @p0 bar.arrive 1, 128; bar.sync 0;",
        SecondArrivalError,
        "there already",
    ),
    (
        "@p0 bra RED; bar.sync 1; bra END; RED: bar.red.popc.u32 d, 1, p0; END:",
        MixedUseError,
        "another operation",
    ),
    (
        "@p0 bra OR; bar.red.and.pred p2, 1, p0; bra END; OR: bar.red.or.pred p2, 1, p0; END:",
        MixedUseError,
        "another operation",
    ),
    ("setp.lt.u32 odd, t, 3; @odd bar.sync 1;", NotAlignedError, "0x7"),
    ("@p0 bar.sync 1, 96;", DeadlockError, r"barrier 1 .*32 of 96 threads came: warp 0\)"),
]


@pytest.mark.parametrize("code,error,report", MISTAKES)
def test_what_the_isa_leaves_undefined_is_refused(
    code: str, error: type[EmulationError], report: str
) -> None:
    with pytest.raises(error, match=report):
        run(code)


def test_an_aligned_barrier_waits_for_lanes_that_come_later() -> None:
    code = "setp.lt.u32 odd, t, 7; @odd bra LATER; mov.u32 n, 1; LATER: bar.sync 0; mov.u32 d, 1;"
    assert run(code)["d"] == [1] * 96
