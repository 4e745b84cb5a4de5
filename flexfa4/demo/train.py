"""Train the demo's model with several attentions, each in a process of its own, and measure them.

The processes take their steps in turn, one at a time: none slows another down, and whatever else
the machine does in the meantime slows all of them alike, so that their speeds can be compared.  A
process of its own makes the peak of resident memory that of one run alone.  What is reported as
memory is the growth of that peak from just before the first step (imports, model and data are in
place) to the end; it counts everything a step allocates, gradients and optimiser state included.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import torch

from flexfa4.demo.corpus import Sequences, load
from flexfa4.demo.model import Dense, Shape, Sparse, Transformer
from flexfa4.errors import DemoProcessError, FlexFA4Error

LEARNING_RATE = 3e-3
SEED = 0


@dataclass(frozen=True)
class Job:
    """One training run; runs that differ in the attention only see the same weights and batches.

    Attributes:
        attention: ``"flexfa4"`` or ``"dense"``.
        steps: optimiser steps.
        batch: sequences in a step.
        length: positions in a sequence.
        shape: sizes of the model.
        double: compute in fp64 instead of fp32, from the same initial weights.
    """

    attention: str
    steps: int
    batch: int
    length: int
    shape: Shape
    double: bool = False


@dataclass
class Run:
    """What a training run gave.

    Attributes:
        losses: mean cross entropy of each step, nats.
        seconds: wall time of each step, making the mask included.
        skipped: share of blocks skipped in each step; empty for the dense side.
        peak_memory: bytes, see the module's docstring; None where the system does not tell.
    """

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    skipped: list[float] = field(default_factory=list)
    peak_memory: int | None = None

    def tokens_per_second(self, job: Job) -> float:
        """Return the median speed over the steps, the first left out where there are others."""
        times = sorted(self.seconds[1:] or self.seconds)
        return job.batch * job.length / times[len(times) // 2]


def train(job: Job, after_step: Callable[[], None]) -> Run:
    """Train in this process."""
    data = load(job.steps * job.batch, job.length)
    torch.manual_seed(SEED)
    model = Transformer(job.shape)
    if job.double:
        model.double()
    attention = Sparse(job.shape) if job.attention == "flexfa4" else Dense(job.shape)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    run = Run()
    before = peak_resident_memory()
    for step in range(job.steps):
        start = time.perf_counter()
        batch = _batch(data, step, job.batch)
        attention.prepare(batch.documents)
        loss = model.loss(batch.tokens, batch.targets, attention)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        run.losses.append(loss.item())
        run.seconds.append(time.perf_counter() - start)
        if isinstance(attention, Sparse):
            run.skipped.append(attention.skipped())
        after_step()
    after = peak_resident_memory()
    if before is not None and after is not None:
        run.peak_memory = after - before
    return run


def _batch(data: Sequences, step: int, size: int) -> Sequences:
    rows = slice(step * size, (step + 1) * size)
    return Sequences(data.tokens[rows], data.targets[rows], data.documents[rows])


def train_in_turn(jobs: Sequence[Job], after_step: Callable[[int], None]) -> list[Run]:
    """Train each job in a new process; step by step, every job takes its turn.

    Args:
        jobs: runs of the same number of steps.
        after_step: called here after each step, with the index of the job that took it.

    Raises:
        FlexFA4Error: what a training raised there.
        DemoProcessError: a process ended without a result.
    """
    sides: list[_Side] = []
    try:
        sides += map(_Side, jobs)
        for _ in range(jobs[0].steps):
            for index, side in enumerate(sides):
                side.turn()
                after_step(index)
        return [side.result() for side in sides]
    finally:
        for side in sides:
            side.end()


class _Side:
    """The process of one job: it takes a step, or gives its result, when it is its turn."""

    def __init__(self, job: Job) -> None:
        self.job = job
        context = multiprocessing.get_context("spawn")  # fork would copy this process's memory
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_child, args=(job, theirs), daemon=True)
        self.process.start()
        theirs.close()  # so that the end of the child ends recv() too

    def turn(self) -> Run | None:
        """Let the process go on; return what it sends: None after a step, the Run at the end."""
        try:
            self.connection.send(None)
            message = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            raise DemoProcessError(side=self.job.attention, code=self.process.exitcode) from None
        if isinstance(message, FlexFA4Error):
            raise message
        assert message is None or isinstance(message, Run)
        return message

    def result(self) -> Run:
        """Return the Run, after the last step."""
        run = self.turn()
        assert run is not None
        return run

    def end(self) -> None:
        """End the process, wherever it is."""
        self.connection.close()
        self.process.terminate()
        self.process.join()


def _child(job: Job, connection: Connection) -> None:
    """Wait for each turn; send None after each step, then the Run or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends its children

    def after_step() -> None:
        connection.send(None)
        connection.recv()

    try:
        connection.recv()
        connection.send(train(job, after_step))
    except FlexFA4Error as error:
        connection.send(error)
    except (EOFError, OSError):  # the parent has ended
        return


def peak_resident_memory() -> int | None:
    """Return the largest resident memory of this process so far, in bytes; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # KiB on Linux
