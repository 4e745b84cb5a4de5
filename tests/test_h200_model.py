"""The performance model against what was measured on an H200, and its table in the notes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h200_model
import pytest
import record
from hopper import predicted
from hopper.cases import table

from flexfa4.kernels.sm90 import model

NOTES = Path(__file__).parent.parent / "docs" / "notes" / "h200.md"
WITHIN = 0.15


def test_a_case_is_compared_with_the_plain_one_that_is_nearest() -> None:
    every = [case.name for case in table()]
    for name, base in (
        ("full", None), ("causal", "full"), ("full-2k", "full"), ("causal-2k", "full-2k"),
        ("key-bias", "full"), ("softcap-30", "causal"), ("causal-d256", "causal"),
    ):  # fmt: skip
        assert predicted.base_of(name, every) == base
    assert predicted.base_of("softcap-30", ["causal-gqa", "full", "alibi"]) == "full"
    assert predicted.base_of("softcap-30", ["causal-gqa", "full-gqa"]) == "causal-gqa"


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(h200_model.RESULTS.read_text())
    return found


def test_ratios_between_variants_are_within_15_percent(results: dict[str, Any]) -> None:
    found = list(predicted.comparisons(results))
    runs = {run for run, _ in predicted.measured_ms(results).values()}
    assert len(found) == len(table()) - len(runs)  # all cases but those that others begin from
    assert not [f"{c.case}: {c.error:+.1%}" for c in found if abs(c.error) > WITHIN]


def test_a_model_that_knows_no_mods_is_further_off(
    results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = model.SOFTMAX
    monkeypatch.setattr(model, "per_score", lambda plan, masked: plain)
    errors = {c.case: abs(c.error) for c in predicted.comparisons(results)}
    assert errors["t5-table"] > WITHIN and errors["softcap-30"] > WITHIN


def test_fitting_finds_constants_that_are_less_off(
    results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = predicted.measured_ms(results)
    few = {name: times[name] for name in ("causal-2k", "window-128", "causal-d64")}
    monkeypatch.setattr(model, "FITTED", replace(model.FITTED, item=4000.0))
    found = predicted.fitted(few)
    assert 1000 < found.item < 3500


def test_the_table_of_the_notes_is_that_of_the_results(results: dict[str, Any]) -> None:
    written = NOTES.read_text().split(h200_model.BEGIN)[1].split(record.END)[0]
    shown = [line.split(" | ")[:6] for line in written.strip().splitlines()[2:]]
    assert shown == [h200_model.cells(c)[:6] for c in predicted.comparisons(results)]


def test_a_table_is_put_between_its_marks() -> None:
    text = f"before\n{h200_model.BEGIN}\nold\n{record.END}\nbehind"
    found = record.inserted(text, "| new |", h200_model.BEGIN)
    assert "old" not in found and "| new |" in found
    assert found.startswith("before") and found.endswith("behind")
    assert record.inserted(found, "| new |", h200_model.BEGIN) == found
