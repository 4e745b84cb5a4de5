"""The study of numerics: what is run, what rows become, that runs differ in attention only."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numerics
import pytest
import record
import torch
from hopper.variants import VARIANTS
from numerical import errors, pictures, report, training
from numerical.errors import ErrorJob
from numerical.jobs import REPEATED, jobs
from numerical.training import TINY, TrainingJob
from numerical.ways import dense

NOTES = Path(__file__).parent.parent / "docs" / "notes" / "numerics.md"
SIZE = replace(TINY, steps=4, held_out=2)


def trained(way: str, seed: int = 0, **job: Any) -> dict[str, Any]:
    (row,) = TrainingJob(way, seed, SIZE, "emulator", **job).run(time.time() + 60)
    return row


# ---- what is run ---------------------------------------------------------------------------------


def test_every_way_is_trained_with_every_seed_and_some_twice() -> None:
    found = jobs("cuda", steps=300, seeds=3)
    runs = [job for job in found if isinstance(job, TrainingJob)]
    once = [(job.way, job.seed) for job in runs if job.repeated is None]
    assert sorted(once) == sorted((way, seed) for way in training.WAYS for seed in range(3))
    again = [job for job in runs if job.repeated is not None]
    assert sorted((job.way, job.repeated) for job in again) == sorted(
        (way, i) for way in REPEATED for i in range(2)
    )
    assert {job.variant for job in found if isinstance(job, ErrorJob)} == set(errors.VARIANTS)
    assert set(errors.VARIANTS) <= set(VARIANTS)
    assert len({job.name for job in found}) == len(found)


def test_the_emulator_gets_tiny_jobs() -> None:
    for job in jobs("emulator", steps=300, seeds=1):
        assert job.size == TINY if isinstance(job, TrainingJob) else max(job.lengths) < 128


# ---- training ------------------------------------------------------------------------------------


def test_a_run_is_the_same_each_time_and_another_with_another_seed() -> None:
    first, again, other = trained("fp32 dense"), trained("fp32 dense"), trained("fp32 dense", 1)
    assert first == again and len(first["losses"]) == SIZE.steps
    assert first["losses"][0] != other["losses"][0]
    assert first["fingerprint"] != other["fingerprint"]


def test_a_nudge_moves_every_weight_by_a_rounding_and_the_loss_hardly() -> None:
    first, nudged = trained("fp32 dense"), trained(training.NUDGED)
    assert first["fingerprint"] != nudged["fingerprint"]
    pairs = zip(first["losses"], nudged["losses"], strict=True)
    assert max(abs(x - y) for x, y in pairs) < 1e-3 * first["losses"][0]


def test_ways_see_the_same_weights_and_text() -> None:
    first, half = (trained(way)["losses"] for way in ("fp32 dense", training.HALF))
    assert 0 < abs(first[0] - half[0]) < torch.finfo(torch.bfloat16).eps * first[0]


def test_a_run_that_is_out_of_time_gives_no_row() -> None:
    assert not list(TrainingJob("fp32 dense", 0, SIZE, "emulator").run(time.time() - 1))


def test_fingerprints_tell_a_single_bit() -> None:
    model = torch.nn.Linear(30, 20)
    before = training.fingerprint(model)
    assert training.fingerprint(model) == before
    with torch.no_grad():
        weight = model.weight[7, 3]
        weight.copy_(torch.nextafter(weight, weight + 1))
    assert training.fingerprint(model) != before


# ---- errors --------------------------------------------------------------------------------------


def test_dense_attention_is_torchs_own() -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 4, 50, 16, dtype=torch.float64)
    k, v = (torch.randn(2, 2, 50, 16, dtype=torch.float64) for _ in range(2))
    found = dense((q, k, v), None, lambda b, h, i, j: i >= j, torch.float64)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(found, expected)
    biased = dense((q, k, v), lambda s, b, h, i, j: s + 100.0 * (j == 3), None, torch.float64)
    torch.testing.assert_close(biased, v[:, [0, 0, 1, 1], 3:4].expand_as(biased))


# ---- rows ----------------------------------------------------------------------------------------


def rows() -> Iterator[dict[str, Any]]:
    """Yield training rows in which the difference to the reference is known."""
    for seed in range(2):
        for i, way in enumerate(training.WAYS):
            losses = [5.0 - 0.01 * step + 0.1 * seed + 0.001 * i for step in range(60)]
            end = 2.0 + 0.1 * seed + 0.001 * i * (1 + seed)
            yield {"way": way, "seed": seed, "losses": losses, "held_out": end, "fingerprint": "0"}
    for i in range(2):
        for way, different in (("fp32 dense", 0), ("flexfa4", i)):
            losses = [5.0, 4.0, 3.0 + 0.1 * different]
            row = {"losses": losses, "fingerprint": str(different), "repeated": i}
            yield {"way": way, "seed": 0, **row}


@pytest.fixture
def results() -> dict[str, Any]:
    error_rows = [
        {
            "variant": variant,
            "shape": {"length": length},
            "way": way,
            "errors": {
                tensor: {"rms": 0.001 * (1 + i) * (2 if (way, tensor) == ("flexfa4", "dk") else 1)}
                for i, tensor in enumerate(errors.TENSORS)
            },
        }
        for variant in ("full", "alibi")
        for length in (512, 2048)
        for way in ("bf16 dense", "flexfa4", "deterministic")
    ]
    run = {"date": "2026-01-02", "missing": [], "card": None, "machine": record.machine()}
    size = {"model": {"layers": 1, "heads": 2, "head_dim": 64}, "batch": 1, "length": 96}
    size |= {"steps": 60, "held_out": 2}
    return {"run": run, "size": size, "errors": error_rows, "training": list(rows())}


def cells(table: str) -> dict[str, list[str]]:
    """Return the cells of a table by its first column."""
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {line[0]: line[1:] for line in split}


def test_losses_are_compared_with_the_same_seed(results: dict[str, Any]) -> None:
    found = cells(report.training_table(results))
    assert found["fp32 dense"][0] == "2.0500"
    i = training.WAYS.index("flexfa4")
    low, high = 0.001 * i, 0.002 * i
    assert found["flexfa4"] == [
        f"{2.05 + (low + high) / 2:.4f}", f"{(low + high) / 2:+.4f}", f"{low:+.4f} to {high:+.4f}",
        f"{low:.4f}",
    ]  # fmt: skip
    assert "0.1000 apart" in report.training_table(results)


def test_a_seed_without_reference_is_left_out(results: dict[str, Any]) -> None:
    results["training"] = [
        r for r in results["training"] if (r["way"], r["seed"]) != ("fp32 dense", 1)
    ]
    i = training.WAYS.index("flexfa4")
    assert cells(report.training_table(results))["flexfa4"][1] == f"{0.001 * i:+.4f}"


def test_bits_that_differ_are_found_with_the_step(results: dict[str, Any]) -> None:
    found = cells(report.bits_table(results))
    assert found == {
        "fp32 dense": ["3", "all", "never"],
        "flexfa4": ["3", "not all", "at step 2"],
    }


def test_the_worst_error_of_each_length_is_named(results: dict[str, Any]) -> None:
    assert cells(report.lengths_table(results))["alibi"] == ["2.00 (dk, flexfa4)"] * 2
    assert "| full | dk | 3.00 | 6.00 | 3.00 |" in report.errors_table(results)


def test_means_are_of_the_last_numbers() -> None:
    found = pictures.smoothed([1.0, 2.0, 3.0, *[4.0] * 40])
    assert found[:3] == [1.0, 1.5, 2.0]
    assert math.isclose(found[-1], 4.0) and len(found) == 43


def test_pictures_are_drawn_of_what_there_is(results: dict[str, Any], tmp_path: Path) -> None:
    names = [path.name for path in pictures.draw(results, tmp_path)]
    assert names == ["numerics_training.png", "numerics_errors.png"]
    assert all((tmp_path / name).stat().st_size > 10_000 for name in names)
    results["errors"] = []
    assert len(pictures.draw(results, tmp_path)) == 1


def test_lists_of_numbers_take_a_line_each(results: dict[str, Any]) -> None:
    text = numerics.compact(results)
    assert json.loads(text) == results
    assert f'"losses": {json.dumps(results["training"][0]["losses"])}' in text


# ---- the notes -----------------------------------------------------------------------------------


def test_the_tables_of_the_notes_are_those_of_the_results() -> None:
    results = json.loads(numerics.RESULTS.read_text())
    document = NOTES.read_text()
    for name, table in report.tables(results).items():
        assert record.inserted(document, table, report.mark(name)) == document, name
