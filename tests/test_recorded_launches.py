"""Recorded launches run where there is no CuTe-DSL, and the records hold nothing else."""

from __future__ import annotations

import json

import pytest

from flexfa4.emulator import load
from flexfa4.emulator.options import SCHEDULES
from tests.emulated_cases import CASES, Case
from tests.launch_records import FOLDER, recorded_ptx, run

LARGEST = 300_000  # bytes of all records
named = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.mark.parametrize("schedule", SCHEDULES)
@named
def test_a_recorded_launch_is_right_under_every_schedule(case: Case, schedule: str) -> None:
    for seed in range(2):
        done, right = run(case, schedule=schedule, seed=seed)
        assert right
        assert 0 < done.seconds < 30


@named
def test_all_schedules_execute_the_same_products_and_traffic(case: Case) -> None:
    first, *others = (run(case, schedule=schedule)[0] for schedule in SCHEDULES)
    for other in others:
        assert (other.matrices, other.traffic) == (first.matrices, first.traffic)


def test_clusters_run_side_by_side() -> None:
    (case,) = (case for case in CASES if case.name == "histogram")
    assert run(case, workers=2)[1]


@named
def test_a_record_is_a_kernel_of_its_name_without_comments_and_places(case: Case) -> None:
    ptx = recorded_ptx(case)
    assert load(ptx).name == case.name
    assert not any(mark in ptx for mark in ("//", "/*", ".file", ".loc", ".section"))


@named
def test_a_record_holds_places_in_tensors_and_no_addresses(case: Case) -> None:
    record = json.loads((FOLDER / f"{case.name}.json").read_text("utf-8"))
    tensors, _ = case.tensors()
    for parameter in record["parameters"]:
        if "tensor" in parameter:
            assert 0 <= parameter["offset"] < tensors[parameter["tensor"]].nbytes
            assert not any(bytes.fromhex(parameter["bytes"])[56:])  # unused half of a tensor map
        else:
            assert not any(bytes.fromhex(parameter["bytes"]))  # defaults of tensor core products


def test_every_record_belongs_to_a_case_and_all_are_small() -> None:
    files = sorted(FOLDER.iterdir())
    assert {path.name.split(".")[0] for path in files} == {case.name for case in CASES}
    assert sum(path.stat().st_size for path in files) < LARGEST
