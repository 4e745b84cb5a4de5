"""How long the Hopper forward kernel takes: cycles of a tile by resource, and time of a launch.

The work of a tile of keys follows from the plan: products from its shape, instructions from the
softmax, the mod and the mask.  What resources make of it together is `primitives.roofline`'s; a
launch is the sum over its tiles and items, taken up in the order of work (`makespan`).  Four
numbers are fitted to measurements (`Fitted`); the rest is counted, or the hardware's.

The model compares variants and tilings.  It knows no temperature: time is cycles at one clock,
though a card that has more of its units busy runs slower.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from flexfa4.frontend.masks.grid import FULL, PARTIAL
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.emit.cost import (
    Fragment,
    Instructions,
    cost_of_mask,
    cost_of_score,
    loads_in_a_row,
)
from flexfa4.kernels.emit.places import Columns
from flexfa4.kernels.sm90.forward.call import PlannedCall, pairs_of, work_of
from flexfa4.kernels.sm90.forward.plan import WARPGROUP_ROWS, ForwardPlan
from flexfa4.primitives.makespan import makespan
from flexfa4.primitives.roofline import NAMES, Cycles, Work, bounds_of, overlapped

MULTIPROCESSORS: Final = 132
"""Of an H200, and an H100 SXM."""

RATES: Final = Work(
    tensor=4096,
    mufu=16,
    fma=128,
    alu=64,
    issue=128,
    load=32,
    shared=128,
    l2=5120 / MULTIPROCESSORS,
)
"""What a multiprocessor does in a cycle.  Tensor cores: dense bf16, 989 TFLOPS of the data sheet at
1.83 GHz.  Instructions: CUDA C++ Programming Guide, "Throughput of native arithmetic instructions",
compute capability 9.0.  L2: what NVIDIA states for the A100; there is no figure for Hopper."""


@dataclass(frozen=True)
class Fitted:
    """What is not counted but fitted to measurements; `benchmarks/h200_model.py` does it.

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


FITTED: Final = Fitted(overlap=2.90, item=2220.0, load=490.0, gigahertz=1.403)
"""To `benchmarks/results/h200.json`: one H200, 2026-11-30."""

SOFTMAX: Final = Instructions(fma=2, alu=1.5, mufu=1)
"""For each score: its maximum; its exponent and exponential; the sum; half of a conversion of two
probabilities to bf16."""

LIMITS: Final = Instructions(alu=2)
"""For each score of a partial tile that a limit of its row cuts: a comparison and a selection."""

AROUND: Final = 100
"""Instructions of each thread for a tile that are not for its scores: barriers, products, exchange
between the threads of a row, corrections.  Roughly: they matter little."""


# ---- a tile --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileTime:
    """How long a tile of keys takes a block.

    Attributes:
        cycles: that each resource is busy.
        together: cycles that the resources take together.
        alone: cycles that a warpgroup would take without any other: its scores, and then its
            softmax. No order of warpgroups hides more than that.
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


def tile_time(plan: ForwardPlan, *, masked: bool, fitted: Fitted = FITTED) -> TileTime:
    """Return how long a tile of keys takes.

    Args:
        plan: of the kernel.
        masked: the mask is applied.
        fitted: constants of the model.
    """
    tiling, (head_dim, head_dim_v) = plan.tiling, plan.head_dims
    scores = tiling.rows * tiling.keys
    own = per_score(plan, masked=masked)
    keys_bytes, values_bytes = 2 * tiling.keys * head_dim, 2 * tiling.keys * head_dim_v
    queries_bytes = 2 * WARPGROUP_ROWS * head_dim
    work = Work(
        tensor=2 * scores * (head_dim + head_dim_v),
        mufu=scores * own.mufu,
        fma=scores * own.fma,
        alu=scores * own.alu,
        issue=scores * own.all + 128 * tiling.warpgroups * AROUND,
        load=scores * own.load,
        shared=tiling.warpgroups * (queries_bytes + keys_bytes + values_bytes),
        l2=keys_bytes + values_bytes,
    )
    cycles = work.over(RATES)
    waits = fitted.load * loads_in_a_row(plan.score)
    products = cycles["tensor"] * head_dim / (head_dim + head_dim_v)
    executed = sum(cycles[name] for name in ("mufu", "fma", "alu", "load"))
    alone = (products + executed) / tiling.warpgroups
    return TileTime(cycles, overlapped(cycles, fitted.overlap), alone, waits)


def per_score(plan: ForwardPlan, *, masked: bool) -> Instructions:
    """Return the instructions for each score of a tile."""
    fragment = fragment_of(plan)
    total = SOFTMAX + cost_of_score(plan.score, plan.score_captures, fragment, plan.fast)
    if not masked:
        return total
    if plan.mask is None:
        return total + LIMITS
    return total + cost_of_mask(plan.mask, plan.mask_captures, fragment)


def fragment_of(plan: ForwardPlan) -> Fragment:
    """Return the scores of a tile that a thread holds: of a WGMMA's accumulator."""
    columns = tuple(i // 2 * 8 + i % 2 for i in range(plan.tiling.keys // 4))
    if plan.group > 1:
        return Fragment(Columns(columns, 2), (None, None), frozenset({"q", "h"}))
    return Fragment(Columns(columns, 2), (0, 8))


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
    together = pairs_of(plan, sizes)
    return [
        orders[class_][place]
        for start in range(0, len(of), together)
        for place in range(work.tiles)
        for class_ in of[start : start + together]
    ]


def seconds(plan: ForwardPlan, items: Iterable[Visited], fitted: Fitted = FITTED) -> float:
    """Return how long a launch takes.

    Args:
        plan: of the kernel.
        items: what they visit, in the order of work.
        fitted: constants of the model.
    """
    partial = tile_time(plan, masked=True, fitted=fitted).total
    full = tile_time(plan, masked=False, fitted=fitted).total
    work = (item.partial * partial + item.full * full for item in items)
    return makespan(work, MULTIPROCESSORS, fitted.item) / fitted.gigahertz / 1e9


def cycles_per_score(plan: ForwardPlan, fitted: Fitted = FITTED) -> float:
    """Return the cycles that a block takes for each score of a long row of full tiles."""
    tiles = LONG / plan.tiling.keys
    total = fitted.item + tiles * tile_time(plan, masked=False, fitted=fitted).total
    return total / (tiles * plan.tiling.rows * plan.tiling.keys)


LONG: Final = 4096
"""Keys of a long row."""


# ---- in words ------------------------------------------------------------------------------------


def described(plan: ForwardPlan) -> list[tuple[str, str]]:
    """Return rows about the time of a tile, for reports."""
    time, masked = tile_time(plan, masked=False), tile_time(plan, masked=True)
    busy = sorted(time.cycles.items(), key=lambda entry: -entry[1])
    shown = ", ".join(f"{NAMES[name]} {cycles:.0f}" for name, cycles in busy if cycles >= 1)
    waits = f", {time.waits:.0f} of them waiting for loads" if time.waits else ""
    instructions = per_score(plan, masked=False)
    flops = 2 * plan.tiling.rows * plan.tiling.keys * sum(plan.head_dims)
    tflops = flops * MULTIPROCESSORS * FITTED.gigahertz / time.total / 1e3
    return [
        (
            "model",
            f"{time.total:.0f} cycles a tile{waits}, {masked.total:.0f} if it is masked;"
            f" bound: {time.bound}\n{shown}\n"
            f"{instructions.all:.1f} instructions for each score;"
            f" about {tflops:.0f} TFLOPS of full tiles on an H200",
        ),
    ]
