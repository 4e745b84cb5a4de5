"""The barrier of a cluster: arriving and waiting by themselves, in all blocks."""

from __future__ import annotations

from typing import Any

import pytest

from flexfa4.emulator.failures.machine import DeadlockError
from flexfa4.emulator.failures.sync import ClusterArrivalError, ClusterWaitError
from tests.ptx_programs import run_instruction

ROOM = ".shared .align 4 .b32 room[64];"
REGISTERS = ".reg .b32 t, a, r, k; .reg .pred odd, first;"
START = (
    "mov.u32 t, %tid.x; shl.b32 a, t, 2; mov.u32 r, room; add.u32 a, a, r;"
    "mov.u32 r, %cluster_ctarank; setp.eq.u32 first, r, 0;"
)
ARRIVE, WAIT = "barrier.cluster.arrive;", "barrier.cluster.wait;"


def run(code: str, **setting: Any) -> list[int]:
    setting = {
        "declare": ROOM,
        "registers": REGISTERS,
        "threads": 64,
        "grid": 4,
        "cluster": 2,
    } | setting
    return run_instruction(START + code, {}, "d:u32", **setting)["d"]


# each thread reads what that of the other block has written
EXCHANGE = (
    "mad.lo.u32 k, r, 100, t; st.shared.u32 [a], k; {meet}"
    "xor.b32 k, r, 1; mapa.shared::cluster.u32 a, a, k; ld.shared::cluster.u32 d, [a];"
    + ARRIVE
    + WAIT
)


@pytest.mark.parametrize("schedule", ["eager", "late", "random", "priority"])
@pytest.mark.parametrize(
    "meet",
    [
        ARRIVE + WAIT,
        "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;",
        "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;",
    ],
)
def test_blocks_that_met_see_each_others_stores(meet: str, schedule: str) -> None:
    options = {"schedule": schedule, "check": ("races", "uninitialised")}
    found = run(EXCHANGE.format(meet=meet), options=options)
    assert found == [100 * (block % 2 ^ 1) + t for block in range(4) for t in range(64)]


def test_a_thread_does_its_own_work_between_arriving_and_waiting() -> None:
    code = ARRIVE + "mov.u32 d, 5; add.u32 d, d, t;" + WAIT
    assert run(code) == list(range(5, 69)) * 4


def test_lanes_may_arrive_one_after_another() -> None:
    code = (
        "and.b32 k, t, 1; setp.eq.u32 odd, k, 1; @odd bra ODD;"
        + ARRIVE
        + "bra JOIN; ODD:"
        + ARRIVE
        + "JOIN:"
        + WAIT
        + "mov.u32 d, 1;"
    )
    assert run(code) == [1] * 256


def test_threads_that_have_exited_are_not_missed() -> None:
    code = "@first bra REST; setp.lt.u32 odd, t, 40; @odd ret; REST:" + ARRIVE + WAIT
    assert run(code + "mov.u32 d, 1;") == ([1] * 64 + [0] * 40 + [1] * 24) * 2


def test_the_barrier_is_ready_for_the_next_use_at_once() -> None:
    code = (
        "mov.u32 d, 0; LOOP:"
        + ARRIVE
        + WAIT
        + ("add.u32 d, d, 1; setp.lt.u32 odd, d, 4; @odd bra LOOP;")
    )
    assert run(code, options={"schedule": "priority", "seed": 5}) == [4] * 256


def test_a_block_that_never_comes_is_a_deadlock_that_names_it() -> None:
    code = "@first ret; " + ARRIVE + WAIT
    assert run(code) is not None  # exited threads are not waited for
    stuck = "@!first bra GO; bar.sync 1, 64; bar.sync 1, 64;" + "GO:" + ARRIVE + WAIT
    lone = stuck.replace(
        "bar.sync 1, 64; bar.sync 1, 64;", "setp.lt.u32 odd, t, 32; @odd bar.sync 1, 64;"
    )
    with pytest.raises(DeadlockError, match=r"not there: block \(0, 0, 0\), warp 0, lanes 0-31"):
        run(lone)


def test_arriving_twice_is_refused() -> None:
    with pytest.raises(ClusterArrivalError, match="0xffffffff arrive again"):
        run(ARRIVE + ARRIVE)


def test_waiting_without_arriving_is_refused() -> None:
    code = "setp.lt.u32 odd, t, 4; @odd bra WAITS;" + ARRIVE + "WAITS:" + WAIT
    with pytest.raises(ClusterWaitError, match="the lanes 0xf wait"):
        run(code)
