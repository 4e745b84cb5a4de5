"""What of the benchmark on an H200 needs no GPU: its cases, checks, rounds, and reports."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h200
import pytest
import torch
from hopper import cases, first_calls, jobs, order, pictures, report, speed, timing, varlen
from hopper.cases import Case
from hopper.correctness import expected, slices, verdict
from hopper.providers import OURS, PROVIDERS, Prepared, Problem
from hopper.variants import VARIANTS, Shape
from rich.console import Console

import flexfa4
from flexfa4.primitives.arithmetic import PLAIN
from flexfa4.primitives.scheduler import Item, Order, Sections, Work

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")
SMALL = Shape(2, 4, 2, 200, 16, 8)


def dense_mask(variant: str, shape: Shape) -> torch.Tensor:
    """Return what is visible, ``(batch, length, length)``."""
    mask = VARIANTS[variant].make(shape, CPU).mask
    index = torch.arange(shape.length)
    batch = torch.arange(shape.batch)[:, None, None]
    seen = True if mask is None else mask(batch, torch.tensor(0), index[:, None], index)
    return torch.as_tensor(seen).expand(shape.batch, shape.length, shape.length)


# ---- cases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 100, 129, 2500])
@pytest.mark.parametrize("variant", VARIANTS)
def test_visible_scores_are_those_of_the_mask(variant: str, length: int) -> None:
    shape = Shape(2, 4, 4, length, 64, 64)
    assert VARIANTS[variant].visible(shape) == int(dense_mask(variant, shape).sum())


def test_documents_fill_each_batch_entry_and_have_the_lengths_that_peers_are_told() -> None:
    shape = Shape(2, 1, 1, 5000, 64, 64)
    lengths = VARIANTS["documents"].make(shape, CPU).documents
    assert lengths is not None
    assert [sum(each) for each in lengths] == [shape.length] * shape.batch
    assert lengths[0] != lengths[1]
    for batch, each in enumerate(lengths):
        ends = torch.tensor(each).cumsum(0)
        mask = dense_mask("documents", shape)[batch]
        first_seen = mask.to(torch.int8).argmax(1)
        assert first_seen.unique().tolist() == [0, *ends[:-1].tolist()]


def test_flops_count_two_products_of_visible_scores() -> None:
    shape = Shape(4, 16, 2, 8192, 192, 128)
    visible = VARIANTS["causal"].visible(shape)
    assert shape.flops(visible) == 2 * (192 + 128) * 16 * 4 * (8192 * 8193 // 2)
    assert cases.cases()["full-2k"].tflop * 1e12 == 2 * 256 * 16 * 16 * 2048**2


def test_every_case_can_be_made_and_each_row_of_the_table_asks_for_something() -> None:
    every = cases.cases()
    assert len(every) == len(cases.table()) + len(cases.paper())
    for case in every.values():
        assert set(case.peers) < set(PROVIDERS)
        assert case.shape.heads % case.shape.kv_heads == 0
        if case.group == "table":
            assert case.must is not None and case.aim is not None
            assert case.must < case.aim
        else:
            assert case.shape.batch * case.shape.length == cases.PAPER_TOKENS
            assert case.shape.heads * case.shape.value_dim == cases.PAPER_HIDDEN
    assert {case.variant for case in cases.table()} == set(VARIANTS)


def test_patterns_and_groups_select_jobs() -> None:
    assert [j.name for j in jobs.selected(["causal", "window-*"])] == [
        "causal", "window-1024", "window-128", "window-4096",
    ]  # fmt: skip
    assert [j.name for j in jobs.selected(["table"])] == [c.name for c in cases.table()]
    assert len(jobs.selected(["paper-d128-mha-*"])) == 12
    with pytest.raises(SystemExit, match="nothing"):
        jobs.selected(["causal", "nothing"])


# ---- providers and correctness -------------------------------------------------------------------


def problem_of(variant: str, shape: Shape = SMALL) -> Problem:
    return Problem.of(Case(variant, "table", variant, shape, 1.0, 2.0), CPU)


def ours_on_cpu(problem: Problem) -> Prepared:
    q, k, v, mods = problem.q, problem.k, problem.v, problem.mods
    return Prepared(lambda: flexfa4.attention(q, k, v, score_mod=mods.score, block_mask=mods.mask))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_reference_agrees_with_the_cpu_backend(variant: str) -> None:
    problem = problem_of(variant)
    said = verdict(ours_on_cpu(problem).call(), expected(problem))
    assert said.right


@pytest.mark.parametrize("variant", ["causal", "t5-table"])
def test_an_output_with_a_wrong_row_in_any_slice_is_wrong(variant: str) -> None:
    problem = problem_of(variant)
    right = expected(problem)
    out = ours_on_cpu(problem).call()
    for where in slices(problem):
        for by in (1.0, math.nan):
            broken = out.clone()
            broken[where.batch, where.head, where.rows[7], 3] += by
            assert not verdict(broken, right).right


def test_another_variant_is_wrong() -> None:
    right = expected(problem_of("causal"))
    assert not verdict(ours_on_cpu(problem_of("softcap-30")).call() * 1.5, right).right
    assert not verdict(ours_on_cpu(problem_of("full")).call(), right).right


# ---- rounds --------------------------------------------------------------------------------------


class CountingClock:
    """Calls, and says that each call took what it returns."""

    def __init__(self) -> None:
        self.log: list[tuple[float, int]] = []

    def milliseconds(self, call: Callable[[], Any], times: int) -> float:
        took = float(call())
        self.log.append((took, times))
        return took


def test_calls_alternate_and_each_fills_its_block() -> None:
    clock = CountingClock()
    calls = {"short": lambda: 1.0, "long": lambda: 7.0, "longest": lambda: 100.0}
    found = timing.interleaved(calls, clock, timing.Rounds(4, 14.0))
    assert found == {"short": [1.0] * 4, "long": [7.0] * 4, "longest": [100.0] * 4}
    rounds = clock.log[2 * len(calls) :]
    repeats = {1.0: 14, 7.0: 2, 100.0: 1}
    assert [times for _, times in rounds] == [repeats[took] for took, _ in rounds]
    starts = [took for took, _ in rounds[:: len(calls)]]
    assert starts == [1.0, 7.0, 100.0, 1.0]
    for i in range(0, len(rounds), len(calls)):
        assert {took for took, _ in rounds[i : i + len(calls)]} == set(repeats)


def test_a_call_that_takes_very_long_is_made_in_the_first_rounds_only() -> None:
    clock = CountingClock()
    calls = {"short": lambda: 1.0, "endless": lambda: 4000.0}
    found = timing.interleaved(calls, clock, timing.Rounds(5, 14.0, slow_ms=300.0, slow_count=2))
    assert found == {"short": [1.0] * 5, "endless": [4000.0] * 2}
    assert sum(times for took, times in clock.log if took == 4000.0) == 3
    assert timing.ratios(found["endless"], found["short"]) == [4000.0] * 2


def test_a_summary_is_the_median_and_the_middle_half() -> None:
    assert timing.summary([4.0]) == timing.Summary(4.0, 0.0)
    assert timing.summary([1.0, 2.0, 3.0, 4.0, 100.0]) == timing.Summary(3.0, 2 / 3)
    assert timing.ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]


class StillCeiling:
    def tflops(self, clock: timing.Clock) -> float:
        return 700.0


def test_a_provider_that_fails_or_is_wrong_is_reported_and_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(problem: Problem) -> Prepared:
        raise ValueError("no such\nkernel")

    fakes = {
        OURS: ours_on_cpu,
        "flash-attn-4": failing,
        "Flex FLASH": lambda p: Prepared(lambda: (p.v * 3).repeat_interleave(2, dim=1)),
        "Flex Triton": lambda p: Prepared(lambda: (ours_on_cpu(p).call(),), lambda out: out[0]),
        "cuDNN": lambda p: None,
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(speed.PROVIDERS, name, fake)

    class Clock:
        def milliseconds(self, call: Callable[[], Any], times: int) -> float:
            call()
            return 2.0

    bench = speed.Bench(CPU, Clock(), timing.Rounds(3, 1.0), StillCeiling())
    row = speed.measured(Case("causal", "table", "causal", SMALL, 0.97, 1.05), bench)
    found = row["providers"]
    assert set(found) == set(PROVIDERS) - {"cuDNN"}
    assert found["flash-attn-4"] == {"failed": "ValueError: no such kernel"}
    assert found["Flex FLASH"]["failed"].startswith("wrong: off by")
    assert [name for name, each in found.items() if "ms" in each] == [OURS, "Flex Triton"]
    assert found[OURS]["ms"] == [2.0] * 3
    assert json.loads(json.dumps(row)) == row
    said = report.comparison(row)
    assert (said.peer, said.ratio.median, report.met(row, said)) == ("Flex Triton", 1.0, "must")


# ---- variable lengths ----------------------------------------------------------------------------


def packed(job: str, monkeypatch: pytest.MonkeyPatch) -> varlen.Packed:
    """Return the sequences of a job, small."""
    monkeypatch.setattr(varlen, "LENGTHS", {"few": [70, 3, 40]})
    for name, number in (("HEADS", 2), ("KV_HEADS", 1), ("DIM", 16)):
        monkeypatch.setattr(varlen, name, number)
    return varlen.Packed.of(job, CPU)


@pytest.mark.parametrize("job", ["few-full", "few-causal"])
def test_what_is_compared_computes_the_same_and_what_is_wrong_is_told(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = packed(job, monkeypatch)
    monkeypatch.setattr(varlen, "BACKEND", "cpu")
    for provider in (varlen.ours, varlen.known):
        out = provider(given)()
        assert varlen.off(given, out) is None
        out[72] += 1
        assert varlen.off(given, out) == pytest.approx(1, abs=0.1)


def test_the_lengths_of_every_job_are_about_as_many_tokens() -> None:
    for name, lengths in varlen.LENGTHS.items():
        assert min(lengths) > 0 and abs(sum(lengths) / varlen.TOKENS - 1) < 0.05, name
    assert {job.rpartition("-")[0] for job in varlen.JOBS} == set(varlen.LENGTHS)


# ---- orders of work ------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True])
def test_the_natural_order_goes_through_heads_one_by_one(descending: bool) -> None:
    work = Work(tiles=5, heads=3, batch=2)
    given = Sections.of(work, pairs=4, descending=descending)
    found = Order(PLAIN, Sections.from_numbers(order.natural(given.numbers())))
    assert [found.item(n) for n in range(work.items)] == [
        Item(tile, head, batch) for batch in range(2) for head in range(3) for tile in range(5)
    ]


# ---- first calls ---------------------------------------------------------------------------------


def test_the_scripts_of_first_calls_are_python_and_every_provider_has_one() -> None:
    assert set(first_calls.SCRIPTS) == set(PROVIDERS)
    for script in first_calls.SCRIPTS.values():
        compile(first_calls._BEGIN + script + first_calls._END, "script", "exec")


def test_a_process_that_fails_or_takes_too_long_says_so() -> None:
    run = first_calls.in_a_process
    assert run("print('[]'); print('{\"a\": 1}')", {}, 20.0) == {"a": 1}
    assert run("raise ValueError('broken')", {}, 20.0) == {"failed": "ValueError: broken"}
    assert run("while True: pass", {}, 0.2) == {"failed": "over 0 s"}


# ---- reports -------------------------------------------------------------------------------------


def speed_row(case: Case, times: dict[str, list[float] | str]) -> dict[str, Any]:
    return {
        "job": case.name,
        "run": 0,
        "case": case.name,
        "group": case.group,
        "shape": case.shape.__dict__,
        "tflop": case.tflop,
        "must": case.must,
        "aim": case.aim,
        "ceiling_tflops": [770.0, 760.0],
        "providers": {
            name: {"failed": given} if isinstance(given, str) else {"ms": given}
            for name, given in times.items()
        },
    }


def results() -> report.Results:
    causal, window = (cases.cases()[name] for name in ("causal", "window-128"))
    paper = [case for case in cases.paper() if case.name.startswith("paper-d64-mha-causal")]
    fast, slow, slower = [2.0, 2.0, 2.2], [2.2, 2.2, 2.42], [3.0, 3.0, 3.0]
    rows = [
        speed_row(causal, {OURS: fast, "flash-attn-4": slow, "cuDNN": slower}),
        speed_row(window, {OURS: slow, "flash-attn-4": fast, "Flex FLASH": "no kernel"}),
        *(speed_row(case, {OURS: fast, "cuDNN": slow}) for case in paper),
        {"job": "varlen-equal-full", "group": "varlen", "run": 0, "lengths": "equal-full",
         "sequences": 32, "tokens": 65536, "tflop": 1.1, "providers": {
             OURS: {"ms": fast}, "flash-attn-4": {"ms": slow}, "known lengths": {"failed": "no"},
             "the table alone": {"ms": [0.004, 0.004, 0.0044]}}},
        {"job": "order-mha-8k", "group": "order", "run": 0, "order": "mha-8k",
         "shape": SMALL.__dict__, "ms": {"longest first": fast, "natural": slow}},
        {"job": "order-gqa-8k", "group": "order", "run": 0, "order": "gqa-8k",
         "shape": SMALL.__dict__,
         "ms": {"longest first": fast, "natural": fast, "a block for each": slow}},
        {"job": "first-call-flexfa4", "group": "first-call", "run": 0, "provider": OURS,
         "empty": {"import_s": 0.1, "first_s": 3.0, "another_s": 2.0, "backward_s": 2.6},
         "disk": {"failed": "lost"}},
        {"job": "host-causal", "group": "host", "run": 0, "variant": "causal", "limit_us": 40.0,
         "providers": {OURS: {"us": 33.3}, "SDPA": {"us": 20.5}}},
        {"job": "masks-window", "group": "masks", "run": 0, "mask": "window", "limit_ms": 10.0,
         OURS: {"first_ms": 50.0, "ms": 12.5}, "create_block_mask": {"first_ms": 9.0, "ms": 3.5}},
        {"job": "alibi", "group": "table", "run": 0, "failed": "OutOfMemoryError: 80 GiB"},
    ]  # fmt: skip
    card = {"name": "NVIDIA H200", "driver": "580.1", "packages": {"torch": "2.11.0"}}
    run = {"date": "2026-01-31", "card": card, "ceiling_tflops": [770.0, 690.0]}
    return {"runs": [run], "rows": rows}


def shown(found: report.Results) -> str:
    written = io.StringIO()
    report.show(found, Console(file=written, width=240))
    return written.getvalue()


def line_of(text: str, *words: str) -> list[str]:
    """Return the cells of the one line of a table that holds all of some words."""
    (line,) = [x for x in text.splitlines() if "│" in x and all(w in x for w in words)]
    return [cell.strip() for cell in line.split("│")[1:-1]]


def test_the_report_compares_with_the_best_peer_round_by_round() -> None:
    text = shown(results())
    causal = line_of(text, " causal ", "B4 H16 S8192 d128")
    assert causal[-6:] == ["flash-attn-4", "1.100 ±0.0%", "0.97", "1.05", "aim", "770/760"]
    window = line_of(text, "window-128")
    assert "fails" in window
    assert window[-6:-1] == ["flash-attn-4", "0.909 ±0.0%", "1.05", "1.15", "no"]
    assert "window-128, Flex FLASH: no kernel" in text
    assert "alibi: OutOfMemoryError: 80 GiB" in text
    assert "2026-01-31, NVIDIA H200, driver 580.1, torch 2.11.0" in text
    assert "770 and 690 TFLOPS" in text


def test_the_report_shows_every_other_measurement_and_whether_it_is_within_its_limit() -> None:
    text = shown(results())
    (_, _, _, _, gain, alone, whole) = line_of(text, "mha-8k")
    assert gain.startswith("+10.0%") and (alone, whole) == ("", "")
    *_, alone, whole = line_of(text, "gqa-8k")
    assert alone == "2.200" and whole.startswith("+10.0%")
    varlen = line_of(text, "equal-full")
    assert varlen[:3] == ["equal-full", "32", "65536"]
    assert varlen[5:] == ["1.100 ±0.000", "fails", "4.0", "0.2%"]
    assert "varlen-equal-full, known lengths: no" in text
    first = line_of(text, "new variant: yes, backward no; disk: no, backward no")
    assert first[1:8] == ["3.00", "0.10", "2.00", "2.60", "fails", "fails", "fails"]
    assert "first-call-flexfa4, disk: lost" in text
    assert line_of(text, "33.3")[-1] == "yes"
    assert line_of(text, "12.50", "window")[-1] == "no"


def test_merged_results_keep_the_later_row_of_a_job_and_each_row_its_run() -> None:
    early, late = results(), results()
    early["rows"] = early["rows"][:2]
    late["rows"] = late["rows"][1:]
    late["runs"][0]["date"] = "2026-02-01"
    both = report.merged([copy.deepcopy(early), late])
    found = {row["job"]: both["runs"][row["run"]]["date"] for row in both["rows"]}
    assert found["causal"] == "2026-01-31"
    assert {date for job, date in found.items() if job != "causal"} == {"2026-02-01"}
    assert len(found) == len(both["rows"]) == len(results()["rows"])


def test_the_pictures_have_a_bar_for_each_time_and_a_line_for_each_provider() -> None:
    found = results()
    bars = pictures.table_figure(report.of_group(found, "table"))
    assert sum(len(axes.patches) for axes in bars.axes) == 5
    lines = pictures.paper_figure(report.of_group(found, "paper"))
    (panel,) = [axes for axes in lines.axes if axes.get_visible()]
    assert len(panel.containers) == 2


# ---- a run ---------------------------------------------------------------------------------------


def run_of(
    monkeypatch: pytest.MonkeyPatch, chosen: list[jobs.Job], *words: str
) -> tuple[report.Results, list[str]]:
    """Run `h200.measured` on jobs that need no GPU; also return the names of those that ran."""
    ran: list[str] = []
    now = [0.0]

    def logged(job: jobs.Job) -> jobs.Job:
        def run(bench: speed.Bench, seconds: float) -> dict[str, Any]:
            ran.append(job.name)
            now[0] += job.seconds
            return job.run(bench, seconds)

        return dataclasses.replace(job, run=run)

    bench = speed.Bench(CPU, CountingClock(), timing.Rounds(), StillCeiling())
    monkeypatch.setattr(h200, "made_bench", lambda quick: bench)
    monkeypatch.setattr(h200, "selected", lambda patterns: [logged(job) for job in chosen])
    monkeypatch.setattr(h200, "card", dict)
    monkeypatch.setattr(h200, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return h200.measured(h200.parser().parse_args(words)), ran


def fake_job(name: str, seconds: float) -> jobs.Job:
    return jobs.Job(name, "host", lambda bench, left: {"left": left}, seconds)


def test_a_run_stops_before_its_limit_and_another_goes_on_with_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [fake_job("long", 60.0), fake_job("longer", 50.0), fake_job("short", 40.0)]
    words = ("--out", str(tmp_path / "new" / "r.json"), "--limit", "100")
    found, ran = run_of(monkeypatch, chosen, *words)
    assert ran == ["long", "short"]
    assert [row["left"] for row in found["rows"]] == [100.0, 40.0]
    assert "not reached: longer\n" in capsys.readouterr().err
    assert json.loads((tmp_path / "new" / "r.json").read_text()) == found
    found, ran = run_of(monkeypatch, chosen, *words, "--resume")
    assert ran == ["longer"]
    assert [(row["job"], row["run"]) for row in found["rows"]] == [
        ("long", 0), ("short", 0), ("longer", 1),
    ]  # fmt: skip
    assert found["runs"][1]["ceiling_tflops"] == [700.0, 700.0]


def test_kernels_are_compiled_ahead_where_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[list[str], int]] = []

    def compile_ahead(
        chosen: list[jobs.Job], workers: int, folder: Path, seconds: float
    ) -> list[str]:
        asked.append(([job.name for job in chosen], workers))
        return ["short, Flex FLASH: no kernel"]

    monkeypatch.setattr(h200, "compile_ahead", compile_ahead)
    found, _ = run_of(monkeypatch, [fake_job("short", 1.0)], "--ahead", "3")
    assert asked == [(["short"], 3)] and found["runs"][0]["ahead"] == 3
    assert "not compiled ahead: short, Flex FLASH: no kernel\n" in capsys.readouterr().err
    long = dataclasses.replace(fake_job("long", 20.0), group="step")
    assert run_of(monkeypatch, [long], "--ahead", "3", "--limit", "9")[1] == ["long"]
    assert len(asked) == 2
    assert run_of(monkeypatch, [long], "--limit", "9")[1] == [] and len(asked) == 2


def test_a_job_that_fails_stops_no_other_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(bench: speed.Bench, seconds: float) -> dict[str, Any]:
        raise MemoryError("80 GiB")

    chosen = [jobs.Job("large", "table", fails), fake_job("small", 1.0)]
    words = ("--out", str(tmp_path / "r.json"))
    found, _ = run_of(monkeypatch, chosen, *words)
    assert found["rows"][0]["failed"] == "MemoryError: 80 GiB"
    assert found["rows"][1]["job"] == "small"
    found, ran = run_of(monkeypatch, [fake_job("large", 1.0), chosen[1]], *words, "--resume")
    assert ran == ["large"]
    assert [row["job"] for row in found["rows"]] == ["small", "large"]


def test_the_command_line_joins_shows_and_draws_without_a_gpu(tmp_path: Path) -> None:
    kept = tmp_path / "a.json"
    kept.write_text(json.dumps(results()))
    done = subprocess.run(
        [sys.executable, "benchmarks/h200.py", "--merge", str(kept),
         "--out", str(tmp_path / "all.json"), "--plot", str(tmp_path / "pictures")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1.100" in done.stdout
    assert json.loads((tmp_path / "all.json").read_text())["rows"] == results()["rows"]
    drawn = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert drawn == ["h200_paper.png", "h200_table.png"]
