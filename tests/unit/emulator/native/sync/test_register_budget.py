"""setmaxnreg: the pool of a block's registers."""

from __future__ import annotations

from typing import Any

import pytest

from flexfa4.emulator import EmulationError
from flexfa4.emulator.failures.machine import DeadlockError, NotAlignedError
from flexfa4.emulator.failures.sync import (
    RegisterCountError,
    RegisterGiveError,
    RegisterTakeError,
    WarpgroupRegistersError,
)
from tests.ptx_programs import run_instruction

START = "mov.u32 t, %tid.x; shr.u32 w, t, 7; setp.eq.u32 p, w, 0;"
GIVE, TAKE = "setmaxnreg.dec.sync.aligned.u32 {};", "setmaxnreg.inc.sync.aligned.u32 {};"


def run(code: str, threads: int = 384, **setting: Any) -> list[int]:
    registers = ".reg .b32 t, w; .reg .pred p, q;"
    return run_instruction(
        START + code, {}, "d:u32", threads=threads, registers=registers, **setting
    )["d"]


@pytest.mark.parametrize("schedule", ["eager", "late", "random", "priority"])
def test_warps_take_what_others_give_back(schedule: str) -> None:
    # 3 groups of 168 registers a thread: 24 + 2 * 240 is as much
    code = "@p bra GIVES;" + TAKE.format(240) + "mov.u32 d, 1; bra END; GIVES:" + GIVE.format(24)
    assert run(code + "END:", options={"schedule": schedule}) == [0] * 128 + [1] * 256


def test_more_than_the_block_has_is_never_given() -> None:
    code = "@p bra GIVES;" + TAKE.format(248) + "bra END; GIVES:" + GIVE.format(24) + "END:"
    with pytest.raises(DeadlockError, match="2560 registers from the pool of block"):
        run(code)


@pytest.mark.parametrize("threads,most", [(1024, 64), (512, 128), (384, 168), (256, 256)])
def test_a_thread_has_what_fits_with_all_of_the_block(threads: int, most: int) -> None:
    run(TAKE.format(most), threads=threads)
    if most < 256:
        with pytest.raises(RegisterGiveError, match=f"the warp has {most} a thread"):
            run(GIVE.format(most + 8), threads=threads)


def test_a_kernel_may_have_been_compiled_for_fewer_than_fit() -> None:
    code = "@p bra GIVES;" + TAKE.format(232) + "bra END; GIVES:" + GIVE.format(40) + "END:"
    run(code, threads=256)


MISTAKES: list[tuple[str, type[EmulationError], str]] = [
    (GIVE.format(16), RegisterCountError, "multiples of 8 from 24 to 256"),
    (GIVE.format(100), RegisterCountError, "to 100 registers"),
    (TAKE.format(264), RegisterCountError, "to 264 registers"),
    (GIVE.format(48) + TAKE.format(40), RegisterTakeError, "the warp has 48 a thread"),
    (GIVE.format(40) + GIVE.format(48), RegisterGiveError, "the warp has 40 a thread"),
    ("setp.lt.u32 q, t, 8; @q " + GIVE.format(24), NotAlignedError, "0xff"),
]


@pytest.mark.parametrize("code,error,report", MISTAKES)
def test_what_the_isa_leaves_undefined_is_refused(
    code: str, error: type[EmulationError], report: str
) -> None:
    with pytest.raises(error, match=report):
        run(code)


def test_warps_of_a_warpgroup_may_give_back_different_numbers() -> None:
    code = "setp.lt.u32 p, t, 32; @p bra FIRST;" + GIVE.format(40) + "bra END; FIRST:"
    run(code + GIVE.format(24) + "END:", threads=128)


def test_all_warps_of_a_warpgroup_give_or_take_registers() -> None:
    code = "setp.lt.u32 p, t, 32; @p bra END;" + GIVE.format(40) + "END:"
    with pytest.raises(WarpgroupRegistersError, match=r"warp 0, .* exits, where .* warp 1"):
        run(code, threads=128)
    run(code.replace("t, 32", "t, 128"), threads=256)  # each warpgroup by itself


@pytest.mark.parametrize("schedule", ["eager", "late", "random", "priority"])
def test_warps_of_a_warpgroup_do_not_take_where_others_give(schedule: str) -> None:
    code = (
        GIVE.format(40)
        + "setp.lt.u32 p, t, 32; @p bra TAKES;"
        + GIVE.format(24)
        + "bra END; TAKES:"
        + TAKE.format(48)
        + "END:"
    )
    with pytest.raises(WarpgroupRegistersError, match=r"executes setmaxnreg\.(inc|dec)"):
        run(code, threads=128, options={"schedule": schedule})
