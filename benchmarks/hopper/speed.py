"""The time of a case by every provider, checked before it is timed.

A provider that fails, or whose output is wrong, is recorded as such and not timed.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from hopper.cases import Case
from hopper.correctness import Expected, expected, verdict
from hopper.providers import OURS, PROVIDERS, Prepared, Problem
from hopper.timing import Call, Ceiling, Clock, Rounds, interleaved, synchronize


@dataclass(frozen=True, eq=False)
class Bench:
    """With what cases are measured.

    Attributes:
        device: where.
        clock: what measures.
        rounds: how much.
        ceiling: measured before and after each case.
        only: the one provider that is tried; None for all.
    """

    device: torch.device
    clock: Clock
    rounds: Rounds
    ceiling: Ceiling
    only: str | None = None

    def tries(self, provider: str) -> bool:
        """Return whether a provider is tried."""
        return self.only in (None, provider)


def measured(case: Case, bench: Bench) -> dict[str, Any]:
    """Return the row of a case."""
    torch._dynamo.reset()  # what was compiled for other cases counts towards a limit
    problem = Problem.of(case, bench.device)
    right = expected(problem)
    calls: dict[str, Call] = {}
    found: dict[str, dict[str, Any]] = {}
    for name in filter(bench.tries, (OURS, *case.peers)):
        row, prepared = tried(name, problem, right)
        if row:
            found[name] = row
        if prepared is not None:
            calls[name] = prepared.call
    before = bench.ceiling.tflops(bench.clock)
    for name, times in interleaved(calls, bench.clock, bench.rounds).items():
        found[name]["ms"] = times
    return {
        "case": case.name,
        "group": case.group,
        "variant": case.variant,
        "shape": asdict(case.shape),
        "visible": case.visible,
        "tflop": case.tflop,
        "must": case.must,
        "aim": case.aim,
        "ceiling_tflops": [before, bench.ceiling.tflops(bench.clock)],
        "providers": found,
    }


def tried(
    name: str, problem: Problem, right: list[Expected]
) -> tuple[dict[str, Any], Prepared | None]:
    """Return what is to be said of a provider's first call, and what to time, if anything.

    `first_s` is that call's time with all that it compiles, in a process that is warm but for that.
    """
    try:
        prepared = PROVIDERS[name](problem)
        if prepared is None:
            return {}, None
        start = time.perf_counter()
        result = prepared.call()
        synchronize(problem.q.device)
        seconds = time.perf_counter() - start
        said = verdict(prepared.view(result), right)
    except Exception as error:  # of whatever kind: peers are not ours
        return {"failed": in_a_line(error)}, None
    row = {"first_s": seconds, "error": said.error}
    if not said.right:
        return {**row, "failed": f"wrong: off by {said.error:.2g}"}, None
    return row, prepared


def in_a_line(error: BaseException, most: int = 300) -> str:
    """Return what an error says, on one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= most else text[: most - 3] + "..."
