"""What a launch did."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import flexfa4.emulator.native
from flexfa4.emulator.results import Run, Traffic

COUNTERS = Path(flexfa4.emulator.native.__file__).parent / "machine" / "counters.cpp"


def test_instructions_of_all_warps_are_added_up_the_most_frequent_first() -> None:
    run = Run(by_warp=({"add.u32": 2, "ret": 1}, {"mov.b32": 3, "ret": 1}))
    assert list(run.executed.items()) == [("mov.b32", 3), ("add.u32", 2), ("ret", 2)]
    assert run.instructions == 7


def test_a_run_is_shown_in_one_line_with_its_totals() -> None:
    run = Run(by_warp=({"add.u32": 2, "ret": 1}, {"ret": 1}), seconds=0.0015)
    assert repr(run).startswith("Run(4 instructions of 2 warps in 1.5 ms;")


def test_the_core_counts_the_traffic_that_is_told() -> None:
    rows = re.findall(r'\{"(\w+)", &Traffic::\1\}', COUNTERS.read_text())
    assert rows == [field.name for field in dataclasses.fields(Traffic)]
