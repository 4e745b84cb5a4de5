"""Times of calls that alternate, so that a card that drifts disturbs all of them alike.

In a round each call gets its turn, in an order that rotates from round to round, and runs often
enough to fill a block of time between two CUDA events.  A call that takes very long has its turn in
the first rounds only: it would take the time of all others, and one sees as much.  The result is
all blocks' times: medians, and ratios of times of the same round, are taken from them by `summary`.

No cache is emptied between calls: the inputs of the cases are larger than the L2 cache.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

Call = Callable[[], Any]


class Clock(Protocol):
    """What measures."""

    def milliseconds(self, call: Call, times: int) -> float:
        """Return the mean time of a call, made some times in a row."""
        ...


@dataclass(frozen=True)
class DeviceClock:
    """Measures on the current CUDA stream by events."""

    def milliseconds(self, call: Call, times: int) -> float:
        """Return the mean time of a call, made some times in a row."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_AHEAD_CYCLES)
        begin.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / times


def synchronize(device: torch.device) -> None:
    """Wait until a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# The device waits for about 0.2 ms first, so that a block begins with launches already queued.
_AHEAD_CYCLES: Final = 400_000


@dataclass(frozen=True)
class Rounds:
    """How much is measured.

    Attributes:
        count: rounds.
        block_ms: time that each call fills in a round.
        slow_ms: a call that takes longer is made in the first rounds only.
        slow_count: these rounds.
    """

    count: int = 9
    block_ms: float = 15.0
    slow_ms: float = 300.0
    slow_count: int = 2


QUICK: Final = Rounds(3, 8.0)
_MOST_CALLS: Final = 100


def interleaved(calls: Mapping[str, Call], clock: Clock, rounds: Rounds) -> dict[str, list[float]]:
    """Return the mean milliseconds of each call in each of its rounds.

    Args:
        calls: by name; each has been made once.
        clock: what measures.
        rounds: how much.
    """
    times, counts = {}, {}
    for name, call in calls.items():
        once = clock.milliseconds(call, 1)
        slow = once > rounds.slow_ms
        if not slow:
            once = max(clock.milliseconds(call, 2), 1e-3)
        times[name] = max(1, min(_MOST_CALLS, round(rounds.block_ms / once)))
        counts[name] = min(rounds.count, rounds.slow_count) if slow else rounds.count
    found: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds.count):
        turn = number % max(1, len(names))
        for name in names[turn:] + names[:turn]:
            if number < counts[name]:
                found[name].append(clock.milliseconds(calls[name], times[name]))
    return found


@dataclass(frozen=True)
class Summary:
    """The median of some numbers, and how far apart the middle half of them is, relative to it."""

    median: float
    spread: float


def summary(numbers: list[float]) -> Summary:
    """Return the summary of at least one number."""
    median = statistics.median(numbers)
    if len(numbers) < 2:
        return Summary(median, 0.0)
    low, _, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return Summary(median, (high - low) / median)


def ratios(theirs: list[float], mine: list[float]) -> list[float]:
    """Return how many times as long as ours theirs took, in each round that both have."""
    return [t / m for t, m in zip(theirs, mine, strict=False)]


class Ceiling:
    """A large matrix product, by which one sees what the card gives at the moment."""

    SIZE: Final = 8192

    def __init__(self, device: torch.device) -> None:
        shape = (self.SIZE, self.SIZE)
        draw = torch.Generator(device).manual_seed(0)
        given: dict[str, Any] = {"device": device, "dtype": torch.bfloat16, "generator": draw}
        self._a, self._b = torch.randn(shape, **given), torch.randn(shape, **given)
        self._out = torch.empty_like(self._a)

    def tflops(self, clock: Clock, rounds: int = 3) -> float:
        """Return the median of some rounds, in 10^12 operations per second."""
        times = [clock.milliseconds(self._product, 5) for _ in range(rounds + 1)][1:]
        return float(2 * self.SIZE**3 / statistics.median(times) / 1e9)

    def _product(self) -> torch.Tensor:
        return torch.mm(self._a, self._b, out=self._out)
