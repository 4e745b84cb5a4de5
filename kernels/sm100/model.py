"""How much work a tile of keys is for the Blackwell forward kernel, and so how long it takes.

Products, copies and exponentials follow from the plan as in FlashAttention-4's section on bounds
(arXiv 2603.05451, table 1; a test holds them).  Beside them instructions are counted: those of the
softmax from machine code (`benchmarks/sm100_static.py` shows them for each release), those of mods
and masks from their graphs.  fp32 arithmetic works on pairs, so two operations take one issue slot.

There was no Blackwell GPU to fit anything to: `FITTED` says where each number is from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from flexfa4.kernels.emit import cost
from flexfa4.kernels.emit.cost import (
    Fragment,
    Instructions,
    cost_of_mask,
    cost_of_score,
    loads_in_a_row,
)
from flexfa4.kernels.emit.places import Columns
from flexfa4.kernels.forward.model import (
    LONG,
    Fitted,
    Gpu,
    TileTime,
    TileTimes,
    cycles_per_score,
    described,
)
from flexfa4.kernels.sm100.forward.plan import ForwardPlan, Tiling
from flexfa4.kernels.sm100.forward.storage import ROWS
from flexfa4.kernels.sm100.forward.tmem import HALVES
from flexfa4.primitives.roofline import Cycles, Work, overlapped

RATES: Final = Work(
    tensor=8192,
    mufu=16,
    fma=128,
    alu=64,
    issue=128,
    load=32,
    shared=128,
    l2=2 * 5120 / 148,
    columns=512,
)
"""What a multiprocessor of a B200 does in a cycle.  Tensor cores, exponentials and shared memory:
FlashAttention-4, section 3.1.  Instructions: CUDA C++ Programming Guide, "Throughput of native
arithmetic instructions", compute capability 10.0.  L2: what NVIDIA states for the A100, of each of
two dies; tensor memory: a column of 128 lanes.  For these two there are no figures, and they bound
nothing that is compiled here."""

FITTED: Final = Fitted(overlap=2.90, item=4800.0, load=490.0, gigahertz=1.63)
"""Overlap and loads: as on the H200.  An item: from how FlashAttention-4's speed grows with the
length (1540 TFLOPS at 1k, 1882 at 16k: flash-attention's pull request 2605).  Clock: from its best
(1613 TFLOPS, its abstract)."""

GPUS: Final = {
    "sm_100a": Gpu("a B200", 148, RATES, FITTED),
    "sm_103a": Gpu("a B300", 148, replace(RATES, mufu=32), FITTED),
}
"""By what kernels are compiled for.  A B300 has twice the exponentials."""

_NOTHING: Final = Instructions()

SOFTMAX: Final = Instructions(fma=2, paired=2, alu=1, mufu=1)
"""For each score: half of a maximum of three; its exponent and exponential; the sum; half of a
conversion of two probabilities."""

MAXIMUM: Final = Instructions(alu=0.5)
"""Of the softmax, what finding a row's maximum takes."""

FIND_MAXIMA: Final = ("sm_103a",)
"""What reads scores together with their maximum (``tcgen05.ld.red``), if nothing changes them."""

AROUND: Final = 47
"""Instructions of each thread for a tile that are not for its scores: barriers, copies from and to
tensor memory, the row's maximum and factor."""

LIMITS: Final = Instructions(alu=1.4)
"""For each score of a partial tile that limits of its row cut: a selection, by bits of which 32
come from a shift."""

CORRECTED: Final = Instructions(fma=1, paired=1)
"""For each element of an output that is rescaled, beside its way through registers."""


def emulation(degree: int) -> Instructions:
    """Return what an emulated exponential takes in place of one of the hardware.

    That is what single numbers take, but for additions and products, which are of pairs.
    """
    single = cost.emulation(degree)
    return replace(single, paired=single.fma)


@dataclass(frozen=True)
class Mod:
    """What a score mod asks for beside the softmax.

    Attributes:
        score: instructions for each score.
        reads: how many reads of a score wait for one another.
    """

    score: Instructions = _NOTHING
    reads: int = 0


_PLAIN: Final = Mod()


@dataclass(frozen=True)
class Tile:
    """What the time of a tile follows from.

    Attributes:
        name: what is compiled for.
        tiling: how work is cut.
        head_dims: of q and k, and of v.
        mod: the score mod.
        tau: see `VariantPlan`.
    """

    name: str
    tiling: Tiling
    head_dims: tuple[int, int]
    mod: Mod = _PLAIN
    tau: float = 8.0

    @property
    def gpu(self) -> Gpu:
        """The card that times are for."""
        return GPUS[self.name]

    def per_score(self, mask: Instructions = _NOTHING) -> Instructions:
        """Return the instructions for each score, those on pairs as two."""
        emulated = self.tiling.emulated
        total = SOFTMAX + emulation(emulated.degree).times(emulated.value) + self.mod.score + mask
        if self.name in FIND_MAXIMA and self.mod.score == mask == _NOTHING:
            total += MAXIMUM.times(-1)
        return total

    def work(self, mask: Instructions = _NOTHING) -> Work:
        """Return what a tile of keys asks of a multiprocessor: both halves of its queries.

        Args:
            mask: instructions of the mask for each score; none where it is not applied.
        """
        rows, keys, (head_dim, head_dim_v) = HALVES * ROWS, self.tiling.keys, self.head_dims
        scores, own = rows * keys, self.per_score(mask)
        keys_bytes = 2 * keys * (head_dim + head_dim_v) / self.tiling.blocks
        elements = rows * head_dim_v * rescaled(self.tau)
        return Work(
            tensor=2 * scores * (head_dim + head_dim_v),
            mufu=scores * own.mufu,
            fma=scores * own.fma + elements * CORRECTED.fma,
            alu=scores * own.alu,
            issue=scores * own.all + rows * AROUND + elements * CORRECTED.all,
            load=scores * own.load,
            shared=HALVES * (2 * ROWS * head_dim + keys_bytes),
            l2=keys_bytes,
            columns=scores * (4 + 2) + elements * (4 + 4),
        )

    def time(self, mask: Instructions = _NOTHING) -> TileTime:
        """Return how long the tile takes a block, see `work`."""
        fitted = self.gpu.fitted
        cycles = self.work(mask).over(self.gpu.rates)
        half: Cycles = {name: busy / HALVES for name, busy in cycles.items()}
        softmax = overlapped({**half, "tensor": 0.0}, fitted.overlap)
        # a half's scores, its softmax and the product with V follow each other: they share columns
        alone = half["tensor"] + softmax
        waits = fitted.load * self.mod.reads
        return TileTime(cycles, overlapped(cycles, fitted.overlap), alone, waits)

    def cost(self) -> float:
        """Return the cycles for each score of a long row of full tiles."""
        keys = self.tiling.keys
        return cycles_per_score(self.time(), HALVES * ROWS * keys, keys, self.gpu)


def tile_of(plan: ForwardPlan, name: str) -> Tile:
    """Return what the time of a plan's tiles follows from.

    Args:
        plan: of the kernel.
        name: what is compiled for.
    """
    fragment = fragment_of(plan)
    score = cost_of_score(plan.score, plan.score_captures, fragment, plan.fast)
    mod = Mod(score, loads_in_a_row(plan.score))
    return Tile(name, plan.tiling, plan.head_dims, mod, plan.tau)


def tile_times(plan: ForwardPlan, name: str) -> TileTimes:
    """Return how long the tiles of a plan take, see `tile_of`."""
    tile, mask = tile_of(plan, name), LIMITS
    if plan.mask is not None:
        mask = cost_of_mask(plan.mask, plan.mask_captures, fragment_of(plan))
    return TileTimes(tile.time(), tile.time(mask))


def fragment_of(plan: ForwardPlan) -> Fragment:
    """Return the scores of a tile that a thread holds: a row of a half."""
    columns = tuple(range(plan.tiling.keys))
    inputs = frozenset({"q", "h"}) if plan.group > 1 else frozenset({"q"})
    return Fragment(Columns(columns, 4), (0,), inputs, pairs=True)


def rescaled(tau: float) -> float:
    """Return how many of a row's tiles make a warp rescale its output.

    Where any growth of a maximum counts, the one of tile j is the largest so far with a chance of 1
    in j, and 32 rows of a warp go together.  Scores of usual spread grow by less than any `tau`
    that is used, once a tile has been seen.
    """
    if tau > 0:
        return 0.0
    tiles = range(2, LONG // 128 + 1)
    return sum(1 - (1 - 1 / j) ** 32 for j in tiles) / len(tiles)


def describe_time(plan: ForwardPlan, name: str) -> tuple[str, str]:
    """Return a row about the time of a tile, for reports; see `tile_of`."""
    tile = tile_of(plan, name)
    instructions = tile.per_score().all + AROUND / plan.tiling.keys
    return described(tile_times(plan, name), tile.work().tensor, instructions, tile.gpu)
