"""Train the demo's model with one attention, in a process of its own, and measure it.

Each side runs in a fresh process, one after the other: that way neither slows the other down, and
the peak of the process's resident memory belongs to one side alone.  What is reported as memory is
the growth of that peak from just before the first step (imports, model and data are in place) to
the end; it counts everything a step allocates, gradients and optimiser state included.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable
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


def train_in_fresh_process(job: Job, after_step: Callable[[], None]) -> Run:
    """Train in a new process; `after_step` is called here after each of its steps.

    Raises:
        FlexFA4Error: what the training raised there.
        DemoProcessError: the process ended without a result.
    """
    context = multiprocessing.get_context("spawn")  # fork would copy this process's memory
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(job, sender), daemon=True)
    process.start()
    sender.close()  # so that the end of the child ends recv() too
    try:
        while (message := receiver.recv()) is None:
            after_step()
    except EOFError:
        process.join()
        raise DemoProcessError(side=job.attention, code=process.exitcode) from None
    finally:
        receiver.close()
    process.join()
    if isinstance(message, FlexFA4Error):
        raise message
    assert isinstance(message, Run)
    return message


def _child(job: Job, sender: Connection) -> None:
    """Send None after each step, then the Run or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends its children
    try:
        sender.send(train(job, lambda: sender.send(None)))
    except FlexFA4Error as error:
        sender.send(error)


def peak_resident_memory() -> int | None:
    """Return the largest resident memory of this process so far, in bytes; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # KiB on Linux
