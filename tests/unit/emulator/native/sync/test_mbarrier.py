"""mbarriers: phases, counts, states and parities, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from flexfa4.emulator import EmulationError
from flexfa4.emulator.failures.machine import DeadlockError
from flexfa4.emulator.failures.memory import BarrierBytesError
from flexfa4.emulator.failures.sync import (
    ArrivalCountError,
    CompletedError,
    DroppedAllError,
    MbarrierCountError,
    MbarrierExistsError,
    MbarrierPlaceError,
    NoMbarrierError,
    NotOwnBlockError,
    NotSharedAddressError,
    OverArrivalError,
    ParityError,
    PendingStateError,
    RemoteStateError,
    StaleStateError,
    TransactionLimitError,
    UnexpectedBytesError,
)
from tests.ptx_programs import run_instruction

BAR = ".shared .align 8 .b64 bar[4];"
REGISTERS = ".reg .b32 a, r; .reg .b64 far, s0, s1; .reg .pred done, first, lead;"
ONE = "mov.u32 a, bar; mov.u32 r, %tid.x; setp.eq.u32 first, r, 0; "
ALONE = 1  # the mask of lane 0


def run(code: str, outputs: str = "", **setting: Any) -> dict[str, list[Any]]:
    setting = {"declare": BAR, "registers": REGISTERS, "active": ALONE} | setting
    return run_instruction(ONE + code, {}, outputs, **setting)


def first(code: str, outputs: str, **setting: Any) -> Any:
    """What thread 0 has in the only output."""
    (values,) = run(code, outputs, **setting).values()
    return values[0]


INIT = "mbarrier.init.shared.b64 [a], {count};".format
PARITY = "mbarrier.test_wait.parity.shared.b64 p, [a], {parity};".format


# ---- phases -------------------------------------------------------------------------------------


def test_a_phase_is_complete_when_as_many_arrived_as_are_expected() -> None:
    one = "mbarrier.arrive.shared.b64 _, [a];"
    assert first(INIT(count=3) + one * 2 + PARITY(parity=0), "p:pred") is False
    assert first(INIT(count=3) + one * 3 + PARITY(parity=0), "p:pred") is True


@pytest.mark.parametrize("completed", range(4))
@pytest.mark.parametrize("parity", [0, 1])
def test_a_parity_is_that_of_the_last_complete_phase(completed: int, parity: int) -> None:
    code = INIT(count=1) + "mbarrier.arrive.shared.b64 _, [a];" * completed
    # before the first phase is complete, the one before it (odd) counts as complete
    assert first(code + PARITY(parity=parity), "p:pred") is ((completed - 1) % 2 == parity)


def test_an_arrival_may_count_for_several() -> None:
    arrive = "mbarrier.arrive.shared.b64 _, [a], 5;"
    assert first(INIT(count=5) + arrive + PARITY(parity=0), "p:pred") is True


def test_every_lane_arrives_for_itself() -> None:
    code = "@first " + INIT(count=32) + "bar.warp.sync -1; mbarrier.arrive.shared.b64 _, [a];"
    assert run(code + PARITY(parity=0), "p:pred", active=0xFFFFFFFF)["p"] == [True] * 32


def test_pending_bytes_keep_a_phase_incomplete() -> None:
    code = INIT(count=1) + "mbarrier.arrive.expect_tx.shared.b64 _, [a], 48;"
    done = "mbarrier.complete_tx.shared.b64 [a], {};".format
    assert first(code + PARITY(parity=0), "p:pred") is False
    assert first(code + done(16) + PARITY(parity=0), "p:pred") is False
    assert first(code + done(16) + done(32) + PARITY(parity=0), "p:pred") is True


def test_bytes_may_be_copied_before_they_are_expected() -> None:
    code = (
        INIT(count=2) + "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [a], 64;"
        "mbarrier.arrive.shared.b64 _, [a];"
    )
    assert first(code + PARITY(parity=0), "p:pred") is False
    late = "mbarrier.arrive.expect_tx.shared.b64 _, [a], 64;"
    assert first(code + late + PARITY(parity=0), "p:pred") is True


def test_expecting_is_no_arrival() -> None:
    code = (
        INIT(count=1) + "mbarrier.expect_tx.relaxed.cta.shared.b64 [a], 16;"
        "mbarrier.complete_tx.shared.b64 [a], 16;"
    )
    assert first(code + PARITY(parity=0), "p:pred") is False
    arrive = "mbarrier.arrive.shared.b64 _, [a];"
    assert first(code + arrive + PARITY(parity=0), "p:pred") is True


def test_generic_addresses_name_the_same_object() -> None:
    code = (
        "cvta.shared.u64 far, bar; mbarrier.init.b64 [far], 1;"
        "mbarrier.arrive.b64 s0, [far]; mbarrier.test_wait.b64 p, [far], s0;"
    )
    assert first(code, "p:pred") is True


def test_dropping_lowers_what_later_phases_expect() -> None:
    code = INIT(count=3) + (
        "mbarrier.arrive_drop.shared.b64 _, [a]; mbarrier.arrive.shared.b64 _, [a], 2;"  # phase 0
        "mbarrier.arrive.shared.b64 s0, [a], 2; mbarrier.test_wait.shared.b64 p, [a], s0;"
    )
    assert first(code, "p:pred") is True


def test_dropping_with_bytes_expects_them_first() -> None:
    code = INIT(count=2) + (
        "mbarrier.arrive_drop.expect_tx.shared.b64 s0, [a], 16;"
        "mbarrier.arrive.shared.b64 _, [a]; mbarrier.test_wait.shared.b64 p, [a], s0;"
    )
    assert first(code, "p:pred") is False
    code = code.replace("mbarrier.test", "mbarrier.complete_tx.shared.b64 [a], 16; mbarrier.test")
    assert first(code, "p:pred") is True


def test_a_pending_count_is_that_before_the_arrival() -> None:
    code = INIT(count=7) + (
        "mbarrier.arrive.noComplete.shared.b64 s0, [a], 2;"
        "mbarrier.arrive.noComplete.release.cta.shared.b64 s1, [a], 1;"
        "mbarrier.pending_count.b64 n, s0; mbarrier.pending_count.b64 m, s1;"
    )
    found = run(code, "n:u32 m:u32")
    assert (found["n"][0], found["m"][0]) == (7, 5)


def test_an_invalidated_object_may_become_another_one() -> None:
    code = INIT(count=9) + "mbarrier.inval.shared.b64 [a];" + INIT(count=1)
    arrive = "mbarrier.arrive.shared.b64 _, [a];"
    assert first(code + arrive + PARITY(parity=0), "p:pred") is True


def test_lanes_that_initialise_one_object_together_do_it_once() -> None:
    code = INIT(count=32) + "mbarrier.arrive.shared.b64 _, [a];" + PARITY(parity=0)
    assert run(code, "p:pred", active=0xFFFFFFFF)["p"] == [True] * 32


# ---- waiting ------------------------------------------------------------------------------------

# warp 1 waits for warp 0, which stores first
HANDOVER = (
    "@first mbarrier.init.shared.b64 [a], 32; bar.sync 0;"
    "setp.lt.u32 lead, r, 32;"
    "@!lead bra WAITS;"
    "st.shared.b32 [a+8], 77; mbarrier.arrive.shared.b64 _, [a]; bra JOIN;"
    "WAITS: mbarrier.try_wait.parity.{how}shared.b64 done, [a], 0{hint}; @!done bra WAITS;"
    "ld.shared.b32 d, [a+8];"
    "JOIN:"
)


@pytest.mark.parametrize("schedule", ["eager", "late", "random", "priority"])
@pytest.mark.parametrize("how,hint", [("", ""), ("acquire.cta.", ", 10000000")])
def test_try_wait_waits_for_the_phase(schedule: str, how: str, hint: str) -> None:
    found = run(
        HANDOVER.format(how=how, hint=hint),
        "d:u32",
        threads=64,
        active=0xFFFFFFFF,
        options={"schedule": schedule, "seed": 3, "check": ("races", "uninitialised")},
    )
    assert found["d"] == [0] * 32 + [77] * 32


def test_a_wait_for_what_never_comes_is_a_deadlock_that_names_the_object() -> None:
    code = INIT(count=2) + (
        "mbarrier.arrive.shared.b64 _, [a];"
        "AGAIN: mbarrier.try_wait.parity.shared.b64 done, [a], 0; @!done bra AGAIN;"
    )
    with pytest.raises(
        DeadlockError, match=r"mbarrier 0x\w+ of block \(0, 0, 0\) \(phase 0; 1 of 2"
    ):
        run(code)


def test_polling_by_test_wait_lets_others_run() -> None:
    polled = HANDOVER.format(how="", hint="").replace("try_wait", "test_wait")
    found = run(polled, "d:u32", threads=64, active=0xFFFFFFFF)
    assert found["d"][32:] == [77] * 32


def test_a_try_wait_that_nothing_ends_gives_up() -> None:
    code = INIT(count=1) + "mbarrier.try_wait.parity.shared.b64 p, [a], 0, 100;"
    assert first(code, "p:pred") is False


def test_lanes_that_wait_for_different_objects_get_their_own_answers() -> None:
    code = (
        "mbarrier.init.shared.b64 [a], 1; mbarrier.init.shared.b64 [a+8], 1;"
        "@first mbarrier.arrive.shared.b64 _, [a]; and.b32 r, r, 1; shl.b32 r, r, 3;"
        "add.u32 a, a, r; mbarrier.try_wait.parity.shared.b64 p, [a], 0;"
    )
    assert run(code, "p:pred", active=0xFFFFFFFF)["p"] == [True, False] * 16


# ---- clusters -----------------------------------------------------------------------------------

# each block arrives at the object of the other one
REMOTE = (
    "@first mbarrier.init.shared.b64 [a], 32;"
    "barrier.cluster.arrive; barrier.cluster.wait;"
    "mov.u32 r, %cluster_ctarank; xor.b32 r, r, 1; mapa.shared::cluster.u32 r, a, r;"
    "{arrive}"
    "AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [a], 0;"
    "@!done bra AGAIN; mov.u32 d, 1; barrier.cluster.arrive; barrier.cluster.wait;"
)


@pytest.mark.parametrize(
    "arrive",
    [
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r];",
        "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [r], 4;"
        "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [r], 4;",
        "mov.u32 r, %cluster_ctarank; xor.b32 r, r, 1; cvta.shared.u64 far, bar;"
        "mapa.u64 far, far, r; mbarrier.arrive.release.cluster.b64 _, [far];",
    ],
)
def test_blocks_arrive_at_objects_of_others(arrive: str) -> None:
    found = run(REMOTE.format(arrive=arrive), "d:u32", grid=2, cluster=2, active=0xFFFFFFFF)
    assert found["d"] == [1] * 64


# ---- what is refused ----------------------------------------------------------------------------

STATE_OF_PHASE_0 = "mbarrier.arrive.shared.b64 s0, [a];" + "mbarrier.arrive.shared.b64 _, [a];" * 2
MISTAKES: list[tuple[str, type[EmulationError], str]] = [
    ("mbarrier.arrive.shared.b64 _, [a];", NoMbarrierError, "no mbarrier at"),
    (PARITY(parity=0), NoMbarrierError, "no mbarrier at"),
    ("mbarrier.inval.shared.b64 [a];", NoMbarrierError, "no mbarrier at"),
    ("mbarrier.init.shared.b64 [a+4], 1;", MbarrierPlaceError, "multiples of 8"),
    ("mbarrier.init.shared.b64 [a+4096], 1;", MbarrierPlaceError, "up to, and without"),
    (INIT(count=0), MbarrierCountError, "for 0 arrivals"),
    (INIT(count=1 << 20), MbarrierCountError, "1 to 1048575"),
    (INIT(count=1) * 2, MbarrierExistsError, "where there is one"),
    (INIT(count=2) + "mbarrier.arrive.shared.b64 _, [a], 3;", OverArrivalError, "3 times"),
    (INIT(count=2) + "mbarrier.arrive.shared.b64 _, [a], 0;", ArrivalCountError, "0 times"),
    (INIT(count=2) + "mbarrier.arrive_drop.shared.b64 _, [a], 2;", DroppedAllError, "none"),
    (
        INIT(count=1) + "mbarrier.arrive.noComplete.shared.b64 _, [a], 1;",
        CompletedError,
        "noComplete",
    ),
    (
        INIT(count=1) + "mbarrier.expect_tx.shared.b64 [a], 1048575;"
        "mbarrier.expect_tx.shared.b64 [a], 1;",
        TransactionLimitError,
        "1048575 bytes pending",
    ),
    (
        INIT(count=1) + "mbarrier.complete_tx.shared.b64 [a], 1048576;",
        TransactionLimitError,
        "-1048576",
    ),
    (
        INIT(count=1) + "mbarrier.arrive.expect_tx.shared.b64 _, [a], 16;"
        "mbarrier.complete_tx.shared.b64 [a], 20;",
        UnexpectedBytesError,
        "4 bytes more",
    ),
    (
        INIT(count=1)
        + "mbarrier.complete_tx.shared.b64 [a], 8; mbarrier.arrive.shared.b64 _, [a];",
        UnexpectedBytesError,
        "8 bytes more",
    ),
    (INIT(count=1) + PARITY(parity=2), ParityError, "parity 2"),
    (
        INIT(count=1) + STATE_OF_PHASE_0 + "mbarrier.test_wait.shared.b64 p, [a], s0;",
        StaleStateError,
        "phase 0",
    ),
    (
        INIT(count=2) + "mbarrier.arrive.shared.b64 s0, [a]; mbarrier.pending_count.b64 r, s0;",
        PendingStateError,
        "noComplete",
    ),
    (INIT(count=1) + "st.shared.b32 [a], r;", BarrierBytesError, "shared address"),
    (
        "mov.b64 far, 4096; mbarrier.init.b64 [far], 1;",
        NotSharedAddressError,
        "0x1000",
    ),
]


@pytest.mark.parametrize("code,error,report", MISTAKES)
def test_what_the_isa_leaves_undefined_is_refused(
    code: str, error: type[EmulationError], report: str
) -> None:
    with pytest.raises(error, match=report) as caught:
        run(code, "p:pred")
    assert "block (0, 0, 0), warp 0, lane 0" in str(caught.value)


@pytest.mark.parametrize(
    "code,error",
    [
        ("mbarrier.init.shared.b64 [r], 1;", NotOwnBlockError),
        ("mbarrier.init.b64 [far], 1;", NotOwnBlockError),
        ("mbarrier.inval.b64 [far];", NotOwnBlockError),
        ("mbarrier.arrive.b64 s0, [far];", RemoteStateError),
        ("mbarrier.test_wait.parity.b64 p, [far], 0;", NotOwnBlockError),
    ],
)
def test_only_some_operations_reach_other_blocks(code: str, error: type[EmulationError]) -> None:
    around = (
        "@first mbarrier.init.shared.b64 [a], 32; barrier.cluster.arrive; barrier.cluster.wait;"
        "mov.u32 r, %cluster_ctarank; xor.b32 r, r, 1; cvta.shared.u64 far, bar;"
        "mapa.u64 far, far, r; mapa.shared::cluster.u32 r, a, r;"
    )
    with pytest.raises(error):
        run(around + code, "p:pred", grid=2, cluster=2, active=0xFFFFFFFF)
