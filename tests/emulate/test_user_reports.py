"""Public reports on other systems, as calls of Hopper's kernels: right values, in the emulator."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass")

from flexfa4.testing import excess
from tests.reported_calls import REPORTS

# Those of which a unit test on the host would show nothing: how rows are packed, how tensors lie,
# and which lists a backward pass reads.
SAMPLE = (
    "the part of a block mask that decodes",
    "a mask of heads with few queries",
    "causal limits of packed rows",
    "block sparse gradients of head dim 64",
    "slices at odd offsets",
    "sinks",
    "one query that sees few keys",
)
OTHERS = sorted(set(REPORTS) - set(SAMPLE))


@pytest.mark.parametrize("name", SAMPLE)
def test_results_and_gradients_are_those_of_the_reference(name: str) -> None:
    report = REPORTS[name]
    assert not excess(report.trial(small=True), report.attend("emulator:sm_90a", "cpu"))


@pytest.mark.full
@pytest.mark.parametrize("name", OTHERS)
def test_so_are_those_of_every_report(name: str) -> None:
    report = REPORTS[name]
    assert not excess(report.trial(small=True), report.attend("emulator:sm_90a", "cpu"))
