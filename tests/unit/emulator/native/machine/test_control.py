"""Branches, calls and exits: lanes part, run on their own, and meet again."""

from __future__ import annotations

import pytest

from flexfa4.emulator.failures.machine import BranchIndexError, DeadlockError, TrapError
from tests.ptx_programs import run_instruction, run_program

LANES = list(range(32))


def test_lanes_of_both_sides_of_a_branch_compute_their_own() -> None:
    code = (
        "setp.lt.s32 p, a, 10; @p bra LOW; mul.lo.s32 d, a, 3; bra END;"
        " LOW: add.s32 d, a, 100; END:"
    )
    found = run_instruction(code, {"a:s32": LANES}, "d:s32", registers=".reg .pred p;")
    assert found["d"] == [a + 100 if a < 10 else 3 * a for a in LANES]


def test_loops_end_for_each_lane_by_itself() -> None:
    code = "mov.b32 d, 0; LOOP: add.u32 d, d, n; sub.u32 n, n, 1; setp.ne.u32 p, n, 0; @p bra LOOP;"
    counts = [1 + lane % 7 for lane in LANES]
    found = run_instruction(code, {"n:u32": counts}, "d:u32", registers=".reg .pred p;")
    assert found["d"] == [n * (n + 1) // 2 for n in counts]


def test_lanes_that_parted_meet_before_an_instruction_of_the_warp() -> None:
    code = (
        "setp.lt.u32 p, a, 5; @p bra FEW; add.u32 a, a, 1000; FEW:"
        " shfl.sync.bfly.b32 d, a, 31, 31, -1;"
    )
    found = run_instruction(code, {"a:u32": LANES}, "d:u32", registers=".reg .pred p;")
    changed = [a if a < 5 else a + 1000 for a in LANES]
    assert found["d"] == changed[::-1]


def test_branches_nest() -> None:
    code = (
        "and.b32 x, a, 1; setp.eq.u32 p, x, 0; and.b32 x, a, 2; setp.eq.u32 q, x, 0; mov.b32 d, 0;"
        " @p bra EVEN; add.u32 d, d, 1; @q bra END; add.u32 d, d, 2; bra END;"
        " EVEN: add.u32 d, d, 4; @q bra END; add.u32 d, d, 8; END: add.u32 d, d, 16;"
    )
    found = run_instruction(
        code, {"a:u32": LANES}, "d:u32", registers=".reg .pred p, q; .reg .b32 x;"
    )
    expected = {0: 4, 1: 1, 2: 12, 3: 3}
    assert found["d"] == [expected[a % 4] + 16 for a in LANES]


def test_an_indexed_branch_takes_each_lane_to_its_target() -> None:
    code = (
        "LIST: .branchtargets ZERO, ONE, TWO; brx.idx a, LIST;"
        " ZERO: mov.b32 d, 10; bra END; ONE: mov.b32 d, 11; bra END; TWO: mov.b32 d, 12; END:"
    )
    found = run_instruction(code, {"a:u32": [lane % 3 for lane in LANES]}, "d:u32")
    assert found["d"] == [10 + lane % 3 for lane in LANES]


def test_an_index_beyond_the_targets_is_an_error() -> None:
    code = "LIST: .branchtargets ZERO, ONE; brx.idx a, LIST; ZERO: mov.b32 d, 10; ONE:"
    with pytest.raises(BranchIndexError, match=r"index is 2.*2 targets"):
        run_instruction(code, {"a:u32": [2]}, "d:u32")


SQUARE = """
.func (.param .b32 result) square(.param .b32 number) {
    .reg .b32 x;
    .reg .pred zero;
    ld.param.b32 x, [number];
    setp.eq.u32 zero, x, 0;
    @zero bra NOTHING;
    mul.lo.u32 x, x, x;
    st.param.b32 [result], x;
    ret;
NOTHING:
    st.param.b32 [result], 77;
    ret;
}
.func (.param .b32 result) fourth(.param .b32 number) {
    .reg .b32 x;
    .param .b32 inner;
    .param .b32 outer;
    ld.param.b32 x, [number];
    st.param.b32 [inner], x;
    call (outer), square, (inner);
    ld.param.b32 x, [outer];
    mul.lo.u32 x, x, x;
    st.param.b32 [result], x;
    ret;
}
"""


def test_functions_are_called_by_some_lanes_and_return_to_all() -> None:
    code = (
        "{ .param .b32 given; .param .b32 got; setp.lt.u32 p, a, 20; mov.b32 d, 5; @!p bra OVER;"
        " st.param.b32 [given], a; call (got), fourth, (given); ld.param.b32 d, [got]; OVER:"
        " shfl.sync.idx.b32 e, d, 3, 31, -1; }"
    )
    found = run_instruction(
        code, {"a:u32": LANES}, "d:u32 e:u32", declare=SQUARE, registers=".reg .pred p;"
    )
    assert found["d"] == [77**2 if a == 0 else a**4 if a < 20 else 5 for a in LANES]
    assert found["e"] == [81] * 32


def test_lanes_that_exit_are_gone_and_the_others_go_on() -> None:
    code = "setp.ge.u32 p, a, 8; @p bra ON; bra ON; ON: @p exit; vote.sync.ballot.b32 d, 1, 255;"
    found = run_instruction(code, {"a:u32": LANES}, "d:u32", registers=".reg .pred p;")
    assert found["d"] == [255] * 8 + [0] * 24  # those that exited have stored nothing


def test_a_trap_stops_the_kernel_at_its_line() -> None:
    with pytest.raises(TrapError, match=r"warp 1.*stopped itself by `trap`") as caught:
        run_instruction(
            "setp.gt.u32 p, a, 40; @p trap;",
            {"a:u32": list(range(64))},
            "a:u32",
            threads=64,
            registers=".reg .pred p;",
        )
    assert "@p trap" in str(caught.value.where)


def test_an_endless_loop_without_effect_is_reported() -> None:
    with pytest.raises(DeadlockError, match="going round in a loop"):
        run_instruction("ROUND: bra ROUND;", {"a:u32": LANES}, "a:u32")


def test_sleeping_lets_the_others_run() -> None:
    _, run = run_program("nanosleep.u32 100;", {"a:u32": LANES}, "a:u32", threads=96)
    assert run.executed["nanosleep.u32"] == 3
