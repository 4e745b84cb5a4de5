"""How long a forward kernel takes: cycles of a tile by resource, and the time of a launch.

An architecture's model says how much work a tile of keys is (`kernels.<architecture>.model`); what
resources make of it together is `primitives.roofline`'s.  A launch is the sum over its tiles and
items, taken up in the order of work (`makespan`).  Few numbers are fitted to measurements
(`Fitted`); the rest is counted, or the hardware's.

The models compare variants and tilings.  They know no temperature: time is cycles at one clock,
though a card that has more of its units busy runs slower.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from flexfa4.frontend.masks.grid import FULL, PARTIAL
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.forward.call import PlannedCall, pairs_of, work_of
from flexfa4.primitives.makespan import makespan
from flexfa4.primitives.roofline import NAMES, Cycles, Work, bounds_of


@dataclass(frozen=True)
class Fitted:
    """What is not counted but fitted to measurements.

    Attributes:
        overlap: exponent of `roofline.overlapped`.
        item: cycles that an item takes beside its tiles: its first scores and its epilogue, as far
            as they are not hidden.
        load: cycles that a tile waits for a read of its mod, as often as one waits for another.
        gigahertz: clock.
    """

    overlap: float
    item: float
    load: float
    gigahertz: float


@dataclass(frozen=True)
class Gpu:
    """A card that times are for.

    Attributes:
        name: in words.
        multiprocessors: of it.
        rates: what a multiprocessor does in a cycle.
        fitted: what was fitted to measurements on it.
    """

    name: str
    multiprocessors: int
    rates: Work
    fitted: Fitted


# ---- a tile --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileTime:
    """How long a tile of keys takes a block.

    Attributes:
        cycles: that each resource is busy.
        together: cycles that the resources take together.
        alone: cycles of the chain that no order of warpgroups hides: the scores of one of them, its
            softmax, and what has to wait for it.
        waits: cycles of waiting for what the mod reads.
    """

    cycles: Cycles
    together: float
    alone: float
    waits: float

    @property
    def total(self) -> float:
        """Cycles that the tile takes."""
        return max(self.together, self.alone) + self.waits

    @property
    def bound(self) -> str:
        """What bounds it, in words."""
        if self.alone > self.together:
            return "a warpgroup's own chain"
        return " and ".join(NAMES[name] for name in bounds_of(self.cycles))


@dataclass(frozen=True)
class TileTimes:
    """How long the tiles of a plan take, by whether the mask is applied."""

    full: TileTime
    masked: TileTime


# ---- a launch ------------------------------------------------------------------------------------


class Visited(NamedTuple):
    """How many tiles of keys an item visits that need the mask, and that do not."""

    partial: int
    full: int


def items_of(call: PlannedCall, blocks: MaskBlocks | None, sizes: Sizes) -> list[Visited]:
    """Return what the items of a call visit, in the order of work.

    Args:
        call: its plan.
        blocks: its mask.
        sizes: of its tensors.
    """
    plan = call.plan
    work, shape = work_of(plan, sizes), plan.walk.shape
    if blocks is None:
        full, rest = divmod(sizes.kv_len, shape.keys)
        lines, of = [[Visited(int(rest > 0), full)] * work.tiles], [0] * (work.heads * work.batch)
    else:
        runs = blocks.with_block_size((shape.queries, shape.keys)).runs
        partial, full_ = (runs.counts(kind).tolist() for kind in (PARTIAL, FULL))
        lines = [
            [Visited(*both) for both in zip(*line, strict=True)]
            for line in zip(partial, full_, strict=True)
        ]
        classes = blocks.classes.of
        classes = classes[:, :: shape.group] if classes.shape[1] > 1 else classes
        of = classes.expand(work.batch, work.heads).flatten().tolist()
    orders = [sorted(line, key=sum, reverse=True) for line in lines]
    together = pairs_of(call, sizes)
    return [
        orders[class_][place]
        for start in range(0, len(of), together)
        for place in range(work.tiles)
        for class_ in of[start : start + together]
    ]


def seconds(times: TileTimes, items: Iterable[Visited], gpu: Gpu) -> float:
    """Return how long a launch takes.

    Args:
        times: of the tiles of its plan.
        items: what they visit, in the order of work.
        gpu: that it runs on.
    """
    partial, full, fitted = times.masked.total, times.full.total, gpu.fitted
    work = (item.partial * partial + item.full * full for item in items)
    return makespan(work, gpu.multiprocessors, fitted.item) / fitted.gigahertz / 1e9


def cycles_per_score(time: TileTime, scores: int, keys: int, gpu: Gpu) -> float:
    """Return the cycles that a block takes for each score of a long row of tiles.

    Args:
        time: of a tile.
        scores: of a tile.
        keys: of a tile.
        gpu: that it runs on.
    """
    tiles = LONG / keys
    return (gpu.fitted.item + tiles * time.total) / (tiles * scores)


LONG: Final = 4096
"""Keys of a long row."""


# ---- in words ------------------------------------------------------------------------------------


def described(times: TileTimes, flops: float, instructions: float, gpu: Gpu) -> tuple[str, str]:
    """Return a row about the time of a tile, for reports.

    Args:
        times: of the tiles of a plan.
        flops: of a tile's products.
        instructions: for each score of a full tile.
        gpu: that it runs on.
    """
    time = times.full
    busy = sorted(time.cycles.items(), key=lambda entry: -entry[1])
    shown = ", ".join(f"{NAMES[name]} {cycles:.0f}" for name, cycles in busy if cycles >= 1)
    waits = f", {time.waits:.0f} of them waiting for loads" if time.waits else ""
    tflops = flops * gpu.multiprocessors * gpu.fitted.gigahertz / time.total / 1e3
    return (
        "model",
        f"{time.total:.0f} cycles a tile{waits}, {times.masked.total:.0f} if it is masked;"
        f" bound: {time.bound}\n{shown}\n"
        f"{instructions:.1f} instructions for each score;"
        f" about {tflops:.0f} TFLOPS of full tiles on {gpu.name}",
    )
