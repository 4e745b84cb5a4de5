"""cp.async: sizes, zeros behind the source, groups, and arrival at mbarriers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.emulator import EmulationError
from flexfa4.emulator.failures.machine import DeadlockError
from flexfa4.emulator.failures.memory import (
    CopySizeError,
    GlobalBoundsError,
    InFlightError,
    MisalignedAccessError,
)
from tests.ptx_programs import run_instruction, run_program

SHARED = ".shared .align 16 .b8 room[2048]; .shared .align 8 .b64 barrier;"
REGISTERS = ".reg .b32 r, t, u; .reg .b64 g, state; .reg .pred q;"
PLACE = "mul.wide.u32 g, i, 16; add.u64 p, p, g; mov.u32 r, room; shl.b32 t, i, 4; add.u32 r, r, t;"
SCHEDULES = ["eager", "late", "random", "priority"]


def run(code: str, outputs: str = "d:u32", **setting: Any) -> dict[str, list[int]]:
    settings: dict[str, Any] = {
        "declare": SHARED,
        "registers": REGISTERS,
        "memory": {"p": torch.arange(1, 513, dtype=torch.int32)},
        **setting,
    }
    return run_instruction(f"{PLACE} {code}", {"i:u32": list(range(32))}, outputs, **settings)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "copy",
    ["cp.async.cg.shared.global [r], [p], 16;", "cp.async.ca.shared::cta.global [r], [p], 16;",
     "cp.async.ca.shared.global [r], [p], 8; cp.async.ca.shared.global [r+8], [p+8], 8;",
     "cp.async.ca.shared.global.L2::128B [r+8], [p+8], 4; cp.async.ca.shared.global [r], [p], 8;"
     "cp.async.ca.shared.global [r+12], [p+12], 4;"],
)  # fmt: skip
def test_a_waited_for_copy_has_arrived(copy: str, schedule: str) -> None:
    got = run(
        f"""{copy} cp.async.commit_group; cp.async.wait_group 0;
        ld.shared.v4.u32 {{a, b, c, d}}, [r];""",
        "a:u32 b:u32 c:u32 d:u32",
        options={"schedule": schedule, "seed": 5},
    )
    assert [got[n] for n in "abcd"] == [[4 * i + k for i in range(32)] for k in (1, 2, 3, 4)]


def test_wait_all_needs_no_group() -> None:
    got = run(
        "cp.async.cg.shared.global [r], [p], 16; cp.async.wait_all; ld.shared.u32 d, [r+4];",
        options={"schedule": "late"},
    )
    assert got["d"] == [4 * i + 2 for i in range(32)]


@pytest.mark.parametrize("size", [0, 1, 7, 15, 16])
def test_behind_the_source_come_zeros(size: int) -> None:
    data = torch.full((512,), -1, dtype=torch.int32)
    got = run(
        f"""mov.u32 u, {size}; cp.async.cg.shared.global [r], [p], 16, u; cp.async.wait_all;
        ld.shared.v4.u32 {{a, b, c, d}}, [r];""",
        "a:u32 b:u32 c:u32 d:u32",
        memory={"p": data},
    )
    copied = b"".join(got[n][3].to_bytes(4, "little") for n in "abcd")
    assert copied == b"\xff" * size + bytes(16 - size)


def test_a_source_of_no_bytes_may_be_anywhere() -> None:
    got = run(
        """setp.ge.u32 q, i, 16; selp.u32 u, 0, 16, q; @q mov.u64 p, 12345;
        cp.async.cg.shared.global.L2::cache_hint [r], [p], 16, u, g; cp.async.wait_all;
        ld.shared.u32 d, [r];"""
    )
    assert got["d"] == [4 * i + 1 if i < 16 else 0 for i in range(32)]


def test_a_source_ends_where_its_allocation_ends() -> None:
    """The last lane has 12 bytes; tensors begin at multiples of 64, so this one at one of 32."""
    data = torch.zeros(1 << 12, dtype=torch.int32)[1000:1127]
    code = "setp.eq.u32 q, i, 31; selp.u32 u, {}, 16, q;"
    copy = "cp.async.cg.shared.global [r], [p], 16, u; cp.async.wait_all;"
    run(f"{code.format(12)} {copy}", memory={"p": data})
    with pytest.raises(GlobalBoundsError):
        run(f"{code.format(13)} {copy}", memory={"p": data})


@pytest.mark.parametrize("schedule", ["late", "random"])
def test_groups_complete_in_order(schedule: str) -> None:
    """All but the latest one are complete; its destination is still in flight."""
    code = """cp.async.ca.shared.global [r], [p], 4; cp.async.commit_group;
    cp.async.ca.shared.global [r+4], [p+4], 4; cp.async.commit_group; cp.async.wait_group 1;
    ld.shared.u32 d, [r];"""
    assert run(code, options={"schedule": schedule})["d"] == [4 * i + 1 for i in range(32)]
    with pytest.raises(InFlightError):
        run(code.replace("[r];", "[r+4];"), options={"schedule": "late"})


def test_an_empty_group_counts_as_one() -> None:
    code = """cp.async.ca.shared.global [r], [p], 4; cp.async.commit_group; cp.async.commit_group;
    cp.async.wait_group 1; ld.shared.u32 d, [r];"""
    assert run(code, options={"schedule": "late"})["d"][2] == 9


def test_groups_are_each_lanes_own() -> None:
    """Lanes 0 to 7 commit a second, empty group: only they have one before the latest."""
    code = """setp.lt.u32 q, i, 8; cp.async.ca.shared.global [r], [p], 4; cp.async.commit_group;
    @q cp.async.commit_group; {} bra DONE; cp.async.wait_group 1; ld.shared.u32 d, [r]; DONE:"""
    late = {"schedule": "late"}
    assert run(code.format("@!q"), options=late)["d"][:9] == [*range(1, 33, 4), 0]
    with pytest.raises(InFlightError, match="lane 8"):
        run(code.format("@q"), options=late)


@pytest.mark.parametrize("code", ["ld.shared.u8 d, [r+3];", "st.shared.u32 [r], i;"])
def test_a_destination_in_flight_is_not_touched(code: str) -> None:
    copy = "cp.async.cg.shared.global [r], [p], 16; cp.async.commit_group;"
    with pytest.raises(InFlightError):
        run(f"{copy} {code}", options={"schedule": "late"})


def test_the_source_is_read_when_the_copy_happens() -> None:
    """A change of the source before the copy is waited for may be seen."""
    code = """cp.async.ca.shared.global [r], [p], 4; st.global.u32 [p], 1000; cp.async.wait_all;
    ld.shared.u32 d, [r];"""
    assert run(code, options={"schedule": "eager"})["d"][1] == 5
    assert run(code, options={"schedule": "late"})["d"][1] == 1000


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("noinc", [".noinc", ""])
def test_an_mbarrier_tells_that_copies_have_arrived(noinc: str, schedule: str) -> None:
    """With .noinc the arrivals are those of the count; without it a plain arrival is needed too."""
    count = 32 if noinc else 1
    arrive = "" if noinc else "mbarrier.arrive.shared.b64 state, [barrier];"
    got = run(
        f"""setp.eq.u32 q, i, 0; @q mbarrier.init.shared.b64 [barrier], {count}; bar.warp.sync -1;
        cp.async.cg.shared.global [r], [p], 16;
        cp.async.mbarrier.arrive{noinc}.shared.b64 [barrier];
        {"@q" if arrive else ""} {arrive}
        WAIT: mbarrier.try_wait.parity.shared.b64 q, [barrier], 0; @!q bra WAIT;
        mov.u32 r, room; sub.u32 t, 31, i; shl.b32 t, t, 4; add.u32 r, r, t;
        ld.shared.u32 d, [r];""",
        options={"schedule": schedule, "seed": 3},
    )
    assert got["d"] == [4 * (31 - i) + 1 for i in range(32)]


def test_a_missing_arrival_is_a_deadlock() -> None:
    with pytest.raises(DeadlockError):
        run(
            """setp.eq.u32 q, i, 0; @q mbarrier.init.shared.b64 [barrier], 33; bar.warp.sync -1;
            cp.async.mbarrier.arrive.noinc.shared.b64 [barrier];
            WAIT: mbarrier.try_wait.parity.shared.b64 q, [barrier], 0; @!q bra WAIT;"""
        )


@pytest.mark.parametrize(
    ("code", "error"),
    [("add.u64 p, p, 4; cp.async.ca.shared.global [r], [p], 8;", MisalignedAccessError),
     ("cp.async.cg.shared.global [r+8], [p], 16;", MisalignedAccessError),
     ("mov.u32 u, 17; cp.async.cg.shared.global [r], [p], 16, u;", CopySizeError),
     ("add.u64 p, p, 1600; cp.async.cg.shared.global [r], [p], 16;", GlobalBoundsError),
     ("mov.u32 r, 4096; cp.async.cg.shared.global [r], [p], 16;", IndexError)],
)  # fmt: skip
def test_copies_are_checked_when_they_are_issued(code: str, error: type[Exception]) -> None:
    data = torch.zeros(1 << 14, dtype=torch.int32)[4096:4608]
    with pytest.raises(error) as caught:
        run(code, memory={"p": data}, options={"schedule": "late"})
    assert isinstance(caught.value, EmulationError)
    assert caught.value.where is not None
    assert "cp.async" in caught.value.where.text


def test_copied_bytes_are_counted() -> None:
    _, launched = run_program(
        f"{PLACE} cp.async.cg.shared.global [r], [p], 16; cp.async.wait_all;",
        {"i:u32": list(range(32))},
        declare=SHARED,
        registers=REGISTERS,
        memory={"p": torch.zeros(512, dtype=torch.int32)},
    )
    assert launched.traffic.copied_in == 32 * 16
    assert launched.traffic.shared_written == 0
