"""Running a cluster to its end, and the report when it has none."""

from __future__ import annotations

import pytest

from flexfa4.emulator.failures.machine import DeadlockError
from tests.ptx_programs import run_instruction

SCHEDULES = ["eager", "late", "random", "priority"]
BAR = ".shared .align 8 .b64 bar;"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_deadlock_names_the_waiting_warps_their_line_and_the_barrier(schedule: str) -> None:
    code = (
        "setp.eq.u32 p, a, 0; @p mbarrier.init.shared.b64 [bar], 2; bar.sync 0;"
        " @p mbarrier.arrive.shared.b64 _, [bar];\n"
        "WAIT: mbarrier.try_wait.parity.shared.b64 p, [bar], 0;\n@!p bra WAIT;"
    )
    with pytest.raises(DeadlockError) as caught:
        run_instruction(
            code,
            {"a:u32": list(range(64))},
            "a:u32",
            threads=64,
            declare=BAR,
            registers=".reg .pred p;",
            options={"schedule": schedule},
        )
    assert caught.value.fields["number"] == "2"
    (line,) = caught.value.fields["waiting"].splitlines()
    assert line.startswith("block (0, 0, 0), warps 0-1, lanes 0-31 at line ")
    assert "(mbarrier.try_wait.parity): waiting for mbarrier 0x" in line
    assert "1 of 2 arrivals and 0 bytes pending" in line


def test_warps_are_told_of_together_where_the_same_lanes_wait_for_the_same() -> None:
    # warps 1, 2, 3 and 5 at one barrier, half of warp 4 at it, too, and warp 0 at another one
    code = (
        "shr.u32 x, a, 5; setp.eq.u32 p, x, 0; @p bra OTHER; setp.eq.u32 q, x, 4;"
        " and.b32 x, a, 16; @!q bra MEET; setp.eq.u32 p, x, 0; @p exit;"
        " MEET: barrier.sync 1, 192; OTHER: bar.sync 2, 64;"
    )
    with pytest.raises(DeadlockError) as caught:
        run_instruction(
            code,
            {"a:u32": list(range(192))},
            "a:u32",
            threads=192,
            registers=".reg .b32 x; .reg .pred p, q;",
        )
    waiting = caught.value.fields["waiting"].splitlines()
    assert [line.split(" at line ")[0] for line in waiting] == [
        "block (0, 0, 0), warp 0, lanes 0-31",
        "block (0, 0, 0), warps 1-3, 5, lanes 0-31",
        "block (0, 0, 0), warp 4, lanes 16-31",
    ]
    assert "waiting for barrier 2 of block (0, 0, 0) (32 of 64 threads came: warp 0)" in waiting[0]
    assert "(160 of 192 threads came: warps 1-5)" in waiting[1]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_wait_that_times_out_lets_a_program_go_on_that_only_looks(schedule: str) -> None:
    code = (
        "setp.eq.u32 p, a, 0; @p mbarrier.init.shared.b64 [bar], 1; bar.sync 0;"
        " mbarrier.try_wait.parity.shared.b64 q, [bar], 0; selp.u32 d, 1, 0, q;"
        " bar.sync 0; @p mbarrier.arrive.shared.b64 _, [bar]; bar.sync 0;"
        " mbarrier.try_wait.parity.shared.b64 q, [bar], 0; selp.u32 e, 1, 0, q;"
    )
    found = run_instruction(
        code,
        {"a:u32": list(range(64))},
        "d:u32 e:u32",
        threads=64,
        declare=BAR,
        registers=".reg .pred p, q;",
        options={"schedule": schedule},
    )
    assert found == {"d": [0] * 64, "e": [1] * 64}


def test_warps_at_different_named_barriers_wait_for_ever() -> None:
    with pytest.raises(DeadlockError, match=r"warp 0.*bar\.sync.*\n.*warp 1.*bar\.sync"):
        run_instruction(
            "shr.u32 x, a, 5; add.u32 x, x, 1; bar.sync x, 64;",
            {"a:u32": list(range(64))},
            "a:u32",
            threads=64,
            registers=".reg .b32 x;",
        )
