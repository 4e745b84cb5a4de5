"""Compilation ahead: many processes compile at once what one process then measures.

A process makes the first call of a provider in a job, and measures nothing.  What it compiled is on
disk afterwards, where every provider keeps it in its own way, and the process that measures finds
it there: most of the time of a run is that of compilers, which use a core each.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any, Final

import torch
from hopper.first_calls import cache_variables
from hopper.jobs import Job, jobs
from hopper.providers import ATTENTIONS
from hopper.speed import Bench, in_a_line
from hopper.timing import Clock, Rounds

GROUPS: Final = ("table", "paper", "backward", "step")
"""Of jobs that try one provider after the other."""
COMPILED: Final = tuple(name for name in ATTENTIONS if name != "cuDNN")

SHARE: Final = 0.25
"""Of the time of a job that is left when its kernels are compiled: about that."""


class _Unmeasured:
    """A clock that calls nothing, and a ceiling that nobody looks for."""

    def milliseconds(self, call: Callable[[], Any], times: int) -> float:
        """Return a number."""
        return 1.0

    def tflops(self, clock: Clock) -> float:
        """Return a number."""
        return 1.0


def compile_ahead(chosen: Iterable[Job], workers: int, folder: Path, seconds: float) -> list[str]:
    """Compile what jobs need; return what was not done, with what was wrong.

    From here on this process keeps compiled kernels in the folder, as those that compile do.

    Args:
        chosen: the jobs, of which those of `GROUPS` are compiled.
        workers: processes.
        folder: for all that is compiled.
        seconds: after which what is not done is given up.
    """
    os.environ.update(cache_variables(folder))
    pairs = [(job.name, each) for job in chosen if job.group in GROUPS for each in COMPILED]
    until, failed = time.monotonic() + seconds, []
    with processes(workers) as pool:
        results = [(pair, pool.apply_async(first_call, pair)) for pair in pairs]
        for pair, result in results:
            try:
                result.get(max(0.0, until - time.monotonic()))
            except Exception as error:  # the others are compiled all the same
                failed.append(f"{', '.join(pair)}: {in_a_line(error)}")
    return failed


def processes(count: int) -> Pool:
    """Return processes, of a core each, which end with the context."""
    return multiprocessing.get_context("spawn").Pool(count, _begin)


def _begin() -> None:
    torch.set_num_threads(1)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # else it starts as many as there are cores


def first_call(job: str, provider: str) -> None:
    """Make the first call of a provider in a job."""
    device = torch.device("cuda", torch.cuda.current_device())
    jobs()[job].run(unmeasured(device, provider), 0.0)


def unmeasured(device: torch.device, provider: str) -> Bench:
    """Return a bench that lets one provider make its first call, and measures nothing."""
    nothing: Any = _Unmeasured()
    return Bench(device, nothing, Rounds(0), nothing, provider)
