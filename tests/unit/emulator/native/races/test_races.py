"""The race detector finds seeded races under every schedule, and none in correct programs."""

from __future__ import annotations

import pytest

from flexfa4.emulator import EmulationError
from tests.racing_programs import CONSEQUENCES, FLAGS, PROGRAMS, Program, Seed
from tests.racing_tensor_programs import TENSOR_PROGRAMS

ALL = PROGRAMS + FLAGS + TENSOR_PROGRAMS
SCHEDULES = ["eager", "late", "random", "priority"]
SEEDS = [(program, seed) for program in ALL for seed in program.seeds]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)
def test_a_correct_program_is_free_of_reports(program: Program, schedule: str) -> None:
    for number in range(3):
        assert program.run(schedule=schedule, number=number).executed["ret"] > 0


@pytest.mark.parametrize(
    ("program", "seed"), SEEDS, ids=[f"{program.name}: {seed.name}" for program, seed in SEEDS]
)
def test_a_seeded_race_is_found_under_every_schedule(program: Program, seed: Seed) -> None:
    for schedule in SCHEDULES:
        with pytest.raises(EmulationError) as caught:
            program.run(seed, schedule)
        name = type(caught.value).__name__
        assert name == seed.error or name in CONSEQUENCES, f"{schedule}: {caught.value}"
        assert schedule != "eager" or name == seed.error


def test_a_report_names_both_accesses_and_their_lines() -> None:
    program = ALL[0]
    with pytest.raises(EmulationError) as caught:
        program.run(program.seeds[0])
    message = str(caught.value)
    assert "shared memory of block (0, 0, 0), offset 0x400" in message
    assert "block (0, 0, 0), warp 0" in message and "block (0, 0, 0), warp 1" in message
    assert caught.value.fields["first_access"] in ("read", "written")
    assert caught.value.where is not None and caught.value.where.line > 0
    assert int(caught.value.fields["first_line"]) > 0


def test_more_than_twenty_races_are_seeded() -> None:
    assert len(SEEDS) > 20
