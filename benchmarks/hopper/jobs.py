"""Everything that can be measured, by name: what ``--cases`` selects from."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hopper import backward, first_calls, host_time, order, speed, step, varlen
from hopper.backward import BackwardCase
from hopper.cases import Case, cases
from hopper.speed import Bench

EVERYTHING: Final = (
    "table", "paper", "backward", "step", "varlen", "order", "first-call", "host", "masks",
)  # fmt: skip
"""The groups, in the order in which they are run."""
DEFAULT: Final = ("table", "backward", "step", "varlen", "order", "first-call", "host", "masks")


@dataclass(frozen=True)
class Job:
    """Something that is measured.

    Attributes:
        name: unique.
        group: of `EVERYTHING`.
        run: from the bench and the seconds that are left to a row.
        seconds: it may take, compiling by every provider included.
    """

    name: str
    group: str
    run: Callable[[Bench, float], dict[str, Any]]
    seconds: float = 40.0


def jobs() -> dict[str, Job]:
    """Return all jobs by name."""
    found = [Job(c.name, c.group, _case(c)) for c in cases().values()]
    found += [Job(c.case.name, "backward", _backward(c), 60.0) for c in backward.cases().values()]
    found += [Job(f"step-{name}", "step", _step(name), 50.0) for name in step.STEPS]
    found += [Job(f"varlen-{name}", "varlen", _varlen(name)) for name in varlen.JOBS]
    found += [Job(f"order-{name}", "order", _order(name)) for name in order.SHAPES]
    found += [Job(_slug(name), "first-call", _first(name), 80.0) for name in first_calls.SCRIPTS]
    found += [Job(f"host-{name}", "host", _repeated(name)) for name in host_time.REPEATED]
    found += [Job(f"host-gradients-{n}", "host", _repeated(n, True)) for n in host_time.REPEATED]
    found += [Job(f"masks-{name}", "masks", _masks(name)) for name in host_time.MAKERS]
    found.sort(key=lambda job: EVERYTHING.index(job.group))
    return {job.name: job for job in found}


def selected(patterns: list[str]) -> list[Job]:
    """Return the jobs whose name or group is one of some patterns of the shell.

    Raises:
        SystemExit: a pattern selects nothing.
    """
    every = jobs().values()
    for pattern in patterns:
        if not any(_matches(job, pattern) for job in every):
            raise SystemExit(f"{pattern!r} is no job and no group; --list shows them")
    return [job for job in every if any(_matches(job, pattern) for pattern in patterns)]


def _matches(job: Job, pattern: str) -> bool:
    return pattern == job.group or fnmatch.fnmatchcase(job.name, pattern)


def _slug(provider: str) -> str:
    return "first-call-" + provider.lower().replace(" ", "-")


def _case(case: Case) -> Callable[[Bench, float], dict[str, Any]]:
    return lambda bench, seconds: speed.measured(case, bench)


def _varlen(name: str) -> Callable[[Bench, float], dict[str, Any]]:
    return lambda bench, seconds: varlen.measured(name, bench)


def _backward(case: BackwardCase) -> Callable[[Bench, float], dict[str, Any]]:
    return lambda bench, seconds: backward.measured(case, bench)


def _step(variant: str) -> Callable[[Bench, float], dict[str, Any]]:
    return lambda bench, seconds: step.measured(variant, bench)


def _order(name: str) -> Callable[[Bench, float], dict[str, Any]]:
    return lambda bench, seconds: order.measured(name, bench)


def _first(provider: str) -> Callable[[Bench, float], dict[str, Any]]:
    return lambda bench, seconds: first_calls.measured(provider, seconds)


def _repeated(variant: str, gradients: bool = False) -> Callable[[Bench, float], dict[str, Any]]:
    return lambda bench, seconds: host_time.repeated(variant, bench.device, gradients=gradients)


def _masks(name: str) -> Callable[[Bench, float], dict[str, Any]]:
    return lambda bench, seconds: host_time.masks(name, bench.device)
