"""Mutation tests: a kernel without one of its waits, arrivals, fences or commits is found out.

By a report of a race, of a deadlock or of anything else, or by its results.  What survives is
listed with what puts things in order nevertheless.
"""

from __future__ import annotations

import pytest

from flexfa4.emulator import EmulationError, load
from tests.emulated_cases import CASES, Case
from tests.launch_records import recorded_ptx, run
from tests.mutations import GROUPS, LEFT_OUT, WAIT, Mutant, fewer, later, mutants, weaker

RUNS = (("eager", 0), ("late", 0), ("random", 1), ("priority", 1), ("random", 2), ("priority", 2))

INIT = "fence.mbarrier_init.release.cluster 1"
BLOCK_BARRIER = "all who use the mbarriers are of this block, and come by the bar.sync behind it"
CLUSTER_BARRIER = (
    "the barrier.cluster.arrive behind it is no relaxed one, so that it passes on the initialised"
    " mbarriers to those that wait"
)
LOAD = "tcgen05.wait::ld.sync.aligned"
LOADED = "tcgen05.ld reads when it is issued, which is before the warp arrives at"

# what may be left out, and the happens-before path that remains
REDUNDANT: dict[str, dict[str, str]] = {
    "gemm_one_cta": {INIT: BLOCK_BARRIER, f"{LOAD} 1": f"{LOADED} `taken`"},
    "gemm_pair_256": {INIT: CLUSTER_BARRIER, f"{LOAD} 1": f"{LOADED} `taken`"},
    "gemm_pair_128": {INIT: CLUSTER_BARRIER, f"{LOAD} 1": f"{LOADED} `taken`"},
    "gemm_warpgroups": {INIT: BLOCK_BARRIER},
    "gemm_registers": {INIT: BLOCK_BARRIER},
    "attention": {
        INIT: BLOCK_BARRIER,
        f"{LOAD} 1": f"{LOADED} `powered`",
        f"{LOAD} 2": f"{LOADED} `powered` of the next step, or at the last bar.sync",
    },
    "cluster_sums": {
        "bar.warp.sync 1": "shfl.sync in front of it brings the lanes together, whose loads come"
        " before it; and the lanes of a warp count as one"
    },
}


def survives(case: Case, mutant: Mutant) -> bool:
    """Whether nothing shows that a kernel lacks an instruction."""
    try:
        kernel = load(mutant.ptx)
        return all(run(case, kernel, schedule=schedule, seed=seed)[1] for schedule, seed in RUNS)
    except EmulationError:
        return False


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_survives_is_what_is_redundant_by_a_known_path(case: Case) -> None:
    survivors = {m.name for m in mutants(recorded_ptx(case)) if survives(case, m)}
    assert survivors == set(REDUNDANT.get(case.name, {}))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_wait_for_too_little_survives(case: Case) -> None:
    ptx = recorded_ptx(case)
    weakened = list(mutants(ptx, weaker))
    assert len(weakened) == sum(ptx.count(f"\t{opcode}") for opcode in (*GROUPS, WAIT))
    assert not [mutant.name for mutant in weakened if survives(case, mutant)]


def test_every_kind_of_instruction_that_is_left_out_occurs_in_a_kernel() -> None:
    names = {mutant.name for case in CASES for mutant in mutants(recorded_ptx(case))}
    assert len(names) > 30
    for opcode in (*LEFT_OUT, WAIT):
        assert any(name.startswith(opcode) for name in names), opcode


def test_a_mutant_lacks_one_line() -> None:
    ptx = recorded_ptx(CASES[0])
    for mutant in mutants(ptx):
        pairs = zip(ptx.split("\n"), mutant.ptx.split("\n"), strict=True)
        changed = [number for number, (old, new) in enumerate(pairs, 1) if old != new]
        assert changed == [mutant.line]


def test_fewer_arrivals_complete_a_phase_of_several() -> None:
    ptx = "\n".join(
        (
            "mov.b32 %r7, 8;",
            "mov.b32 %r8, 1;",
            "mbarrier.init.shared.b64 [a], %r7;",
            "mbarrier.init.shared.b64 [a+8], %r8;",
            "mbarrier.init.shared.b64 [a+16], 2;",
        )
    )
    made = list(fewer(ptx))
    assert [mutant.name for mutant in made] == [f"mbarrier.init.shared.b64 {i}" for i in (1, 3)]
    assert [mutant.ptx.split("\n")[mutant.line - 1] for mutant in made] == [
        "mbarrier.init.shared.b64 [a], 7;",
        "mbarrier.init.shared.b64 [a+16], 1;",
    ]


def test_a_weaker_wait_is_for_the_other_phase_or_for_a_group_less() -> None:
    ptx = (
        "mbarrier.try_wait.parity.shared.b64 \tP1, [%r1+8], %r2, 10000000;\n"
        "\tcp.async.wait_group 1;"
    )
    assert [mutant.ptx.split("\n")[mutant.line - 1] for mutant in mutants(ptx, weaker)] == [
        "{ .reg .b32 other; xor.b32 other, %r2, 1;"
        " mbarrier.try_wait.parity.shared.b64 P1, [%r1+8], other, 10000000; }",
        "cp.async.wait_group 2;",
    ]


def test_results_of_what_is_left_out_are_defined() -> None:
    ptx = (
        "mbarrier.try_wait.parity.shared.b64 \tP1, [%r1], %r2, 10000000;\n"
        "\t@%p3 mbarrier.arrive.shared.b64 %rd4, [%r1];\n"
        "add.u32 %r1, %r1, 1;\n"
        "mbarrier.arrive.shared.b64 _, [%r1];"
    )
    found = [(mutant.name, mutant.ptx.split("\n")[mutant.line - 1]) for mutant in mutants(ptx)]
    assert found == [
        ("mbarrier.try_wait.parity.shared.b64 1", "setp.eq.u32 P1, 0, 0;"),
        ("mbarrier.arrive.shared.b64 1", "mov.b64 %rd4, 0;"),
        ("mbarrier.arrive.shared.b64 2", ""),
    ]


def test_a_wait_moves_behind_the_next_access_with_the_branch_around_it() -> None:
    wait, access = "\twgmma.wait_group.sync.aligned 1;", "\tmbarrier.arrive.shared.b64 _, [%r1];"
    ptx = f"{wait}\n\t@%p1 bra $L1;\n{access}\n$L1:\n\tret;"
    (moved,) = later(ptx)
    assert moved.ptx == f"\t@%p1 bra $L1;\n{access}\n$L1:\n{wait}\n\tret;"


def test_nothing_moves_out_of_a_loop_or_behind_the_end() -> None:
    wait, access = "\tbar.sync 0;", "\tst.shared.b32 [%r1], %r2;"
    assert not list(later(f"$L1:\n{wait}\n\t@%p1 bra $L1;\n{access}"))
    assert not list(later(f"{wait}\n\tret;\n{access}"))
