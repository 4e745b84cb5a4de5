"""What of the step-time benchmark needs no GPU: the block, its check, rows, compilation ahead."""

from __future__ import annotations

import io
import itertools
import json
import math
import sys
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hopper import ahead, jobs, providers, report, speed, step, timing
from hopper.ahead import unmeasured
from hopper.cases import Case
from hopper.providers import ATTENTIONS, OURS, Problem
from hopper.step import NOTHING, Expected, Heads, Step
from hopper.variants import Shape
from rich.console import Console

CPU = torch.device("cpu")
SMALL = Shape(2, 2, 2, 150, 16, 16)


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "BACKEND", "cpu")
    monkeypatch.setattr(step, "SHAPE", SMALL)
    monkeypatch.setattr(step, "HIDDEN", 48)


def step_of(variant: str) -> Step:
    return Step.of(Case(variant, "step", variant, SMALL), CPU, 48)


def by(name: str, problem: Problem) -> Heads:
    made = ATTENTIONS[name](problem)
    assert made is not None
    return lambda q, k, v: made.view(made.attend(*map(made.arrange, (q, k, v))))


# ---- the block and its check ---------------------------------------------------------------------


@pytest.mark.parametrize("variant", step.STEPS)
def test_a_step_agrees_with_that_of_dense_attention(variant: str) -> None:
    given = step_of(variant)
    found = given.run(by(OURS, given.problem))
    assert len(found) == len(given.names) == 2 + 6
    assert Expected.of(given).wrong(found) is None


def test_attention_is_all_that_differs() -> None:
    given = step_of("alibi")
    plain, nothing = (given.run(attend) for attend in (step.dense(given.problem.mods), _values))
    assert all(x.shape == y.shape and not x.equal(y) for x, y in zip(plain, nothing, strict=True))
    assert step_of("alibi").run(_values)[0].equal(nothing[0])


def _values(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return v


def test_another_variant_and_no_attention_are_wrong() -> None:
    given = step_of("alibi")
    right = Expected.of(given)
    assert "off by" in str(right.wrong(given.run(_values)))
    other = step_of("documents").problem
    assert "off by" in str(right.wrong(given.run(by(OURS, other))))


def test_a_wrong_number_in_any_result_is_found_and_named() -> None:
    given = step_of("documents")
    right = Expected.of(given)
    for i, name in enumerate(given.names):
        for off in (30.0, math.nan):
            found = [result.detach().clone() for result in given.run(by(OURS, given.problem))]
            found[i].view(-1)[7] += off
            assert str(right.wrong(found)).startswith(f"{name} off by")


# ---- peers in their own layouts ------------------------------------------------------------------


def by_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> torch.Tensor:
    """Return causal attention to a window, or to all before, of ``(B, S, H, D)``."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    distance = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
    seen = (distance >= 0) & (distance <= given.get("window_size", (k.shape[2], 0))[0])
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return out.transpose(1, 2)


def by_sequences(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, cu_seqlens_q: torch.Tensor, **given: Any
) -> torch.Tensor:
    """Return causal attention in sequences that follow each other, ``(tokens, H, D)``."""
    ends = cu_seqlens_q.tolist()
    return torch.cat(
        [
            by_heads(*(x[None, start:end] for x in (q, k, v)))[0]
            for start, end in itertools.pairwise(ends)
        ]
    )


def test_flash_attention_is_given_documents_and_windows_in_its_own_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake: Any = ModuleType("flash_attn.cute")
    fake.flash_attn_func, fake.flash_attn_varlen_func = by_heads, by_sequences
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", fake)
    for variant in ("documents", "window-1024"):
        given = step_of(variant)
        attend = by("flash-attn-4", given.problem)
        assert Expected.of(given).wrong(given.run(attend)) is None
    assert ATTENTIONS["flash-attn-4"](step_of("alibi").problem) is None


# ---- rows ----------------------------------------------------------------------------------------


class StillCeiling:
    def tflops(self, clock: timing.Clock) -> float:
        return 700.0


class Clock:
    def milliseconds(self, call: Callable[[], Any], times: int) -> float:
        return 4.0


def row_of(variant: str, monkeypatch: pytest.MonkeyPatch, **bench: Any) -> dict[str, Any]:
    def failing(problem: Problem) -> Any:
        raise ValueError("no such\nkernel")

    monkeypatch.setitem(step.ATTENTIONS, "flash-attn-4", lambda problem: None)
    monkeypatch.setitem(step.ATTENTIONS, "Flex FLASH", failing)
    monkeypatch.setitem(
        step.ATTENTIONS, "Flex Triton", lambda problem: providers.Attention(_values)
    )
    rounds = timing.Rounds(3, 1.0)
    return step.measured(variant, speed.Bench(CPU, Clock(), rounds, StillCeiling(), **bench))


def test_a_row_has_the_times_of_those_whose_gradients_are_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = row_of("alibi", monkeypatch)
    found = row["providers"]
    assert found[NOTHING] == {"ms": [4.0] * 3} and found[OURS]["ms"] == [4.0] * 3
    assert found["Flex FLASH"] == {"failed": "ValueError: no such kernel"}
    assert found["Flex Triton"]["failed"].startswith("wrong: output off by")
    assert set(found) == {NOTHING, OURS, "Flex FLASH", "Flex Triton"}
    assert json.loads(json.dumps(row)) == row


def test_the_report_shows_the_share_of_attention_and_the_best_peer() -> None:
    times = {NOTHING: [6.0, 6.0], OURS: [8.0, 8.0], "flash-attn-4": [9.0, 9.0]}
    row: dict[str, Any] = {
        "job": "step-alibi", "group": "step", "run": 0, "variant": "alibi", "shape": vars(SMALL),
        "providers": {name: {"ms": ms} for name, ms in times.items()},
    }  # fmt: skip
    row["providers"]["Flex FLASH"] = {"failed": "no kernel"}
    written = io.StringIO()
    Console(file=written, width=200).print(report.step_table([row]))
    (line,) = [line for line in written.getvalue().splitlines() if "alibi" in line]
    assert [cell.strip() for cell in line.split("│")[1:-1]] == [
        "alibi", "B2 H2 S150 d16", "8.00 ±0.0%, 25%", "9.00 ±0.0%, 33%", "fails", "6.00 ±0.0%",
        "flash-attn-4", "1.125 ±0.0%",
    ]  # fmt: skip


def test_there_is_a_job_for_every_variant() -> None:
    assert [job.name for job in jobs.selected(["step"])] == [f"step-{v}" for v in step.STEPS]


# ---- compilation ahead ---------------------------------------------------------------------------


def test_ahead_a_provider_makes_its_first_call_and_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row_of("alibi", monkeypatch)  # for its stand-ins
    row = step.measured("alibi", unmeasured(CPU, OURS))
    assert set(row["providers"]) == {NOTHING, OURS}
    assert "first_s" in row["providers"][OURS] and row["providers"][OURS]["ms"] == []
    row = step.measured("alibi", unmeasured(CPU, "Flex FLASH"))
    assert set(row["providers"]) == {NOTHING, "Flex FLASH"}


def test_ahead_every_provider_of_every_job_is_called_and_what_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[tuple[str, str]] = []

    def first_call(job: str, provider: str) -> None:
        called.append((job, provider))
        if provider == "Flex Triton":
            raise ValueError("no kernel")

    kept: dict[str, str] = {}
    monkeypatch.setattr(ahead, "processes", ThreadPool)
    monkeypatch.setattr(ahead, "first_call", first_call)
    monkeypatch.setattr(ahead.os, "environ", kept)
    chosen = jobs.selected(["step-alibi", "causal", "masks"])
    failed = ahead.compile_ahead(chosen, 2, tmp_path, 60.0)
    assert sorted(failed) == [
        f"{job}, Flex Triton: ValueError: no kernel" for job in ("causal", "step-alibi")
    ]
    assert sorted(called) == sorted(
        (job, provider) for job in ("causal", "step-alibi") for provider in ahead.COMPILED
    )
    assert kept["FLEXFA4_CACHE_DIR"] == str(tmp_path / "flexfa4")
