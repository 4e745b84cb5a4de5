"""Running a cluster to its end, and the report when it has none."""

from __future__ import annotations

import pytest

from flexfa4.emulator.failures.machine import DeadlockError
from tests.ptx_programs import run_instruction

SCHEDULES = ["eager", "late", "random", "priority"]
BAR = ".shared .align 8 .b64 bar;"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_deadlock_names_each_waiting_warp_its_line_and_the_barrier(schedule: str) -> None:
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
    waiting = caught.value.fields["waiting"].splitlines()
    assert len(waiting) == 2
    for warp, line in enumerate(waiting):
        assert f"block (0, 0, 0), warp {warp}, lanes 0-31 at line" in line
        assert "(mbarrier.try_wait.parity): waits for mbarrier 0x" in line
        assert "1 of 2 arrivals and 0 bytes pending" in line


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
