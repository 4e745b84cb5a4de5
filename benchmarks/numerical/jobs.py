"""What is measured, and the processes that do it.

Jobs are run by a few processes at once: a small model leaves the GPU idle while its host thinks,
and kernels are compiled beside each other.  Nothing is timed.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import torch
from numerical.errors import LENGTHS, VARIANTS, ErrorJob
from numerical.training import REFERENCE, TINY, WAYS, Size, TrainingJob
from numerical.ways import KERNELS

Job: TypeAlias = ErrorJob | TrainingJob
Rows = list[dict[str, Any]]

REPEATED: Final = (REFERENCE, KERNELS, "deterministic")
"""Ways whose runs are done twice: do all bits come back?"""
REPEATED_STEPS: Final = 60

TINY_LENGTHS: Final = (96,)


def size_of(device: str, steps: int) -> Size:
    """Return how large training runs are: of so many steps, but for the emulator."""
    return TINY if device == "emulator" else Size(steps=steps)


def jobs(device: str, steps: int, seeds: int) -> list[Job]:
    """Return all jobs, those that matter most first.

    Args:
        device: a key of `numerical.ways.BACKENDS`; the emulator gets tiny ones.
        steps: of a training run.
        seeds: runs of each way.
    """
    size, short = size_of(device, steps), size_of(device, min(steps, REPEATED_STEPS))
    lengths = TINY_LENGTHS if device == "emulator" else LENGTHS
    found: list[Job] = [ErrorJob(name, lengths, device) for name in VARIANTS]
    trained = [TrainingJob(way, seed, size, device) for seed in range(seeds) for way in WAYS]
    again = [TrainingJob(way, 0, short, device, i) for way in REPEATED for i in range(2)]
    return [*found, *trained[: len(WAYS)], *again, *trained[len(WAYS) :]]


def run_all(chosen: Sequence[Job], workers: int, limit: float) -> tuple[Rows, Rows, list[str]]:
    """Return the rows of errors, those of training, and what was not reached or failed.

    Args:
        chosen: the jobs.
        workers: processes.
        limit: seconds after which nothing more is begun, and what runs is given up.
    """
    begun = time.time()
    errors, training, missing = Rows(), Rows(), []
    with concurrent.futures.ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), _prepare, (workers,)
    ) as pool:
        waiting = {pool.submit(_run, job, begun + limit): job for job in chosen}
        for done in concurrent.futures.as_completed(waiting):
            job = waiting[done]
            try:
                rows = done.result()
            except Exception:  # the other jobs are measured all the same
                traceback.print_exc()
                rows = []
            if not rows:
                missing.append(job.name)
            (errors if isinstance(job, ErrorJob) else training).extend(rows)
            print(f"{time.time() - begun:6.1f} s  {job.name}", file=sys.stderr, flush=True)
    return errors, training, missing


def _prepare(workers: int) -> None:
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))


def _run(job: Job, deadline: float) -> Rows:
    return [] if time.time() > deadline else list(job.run(deadline))
