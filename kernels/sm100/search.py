"""The search for tilings: every one that fits, ranked by the performance model.

Variants fall into classes by what their score mod costs (`CLASSES`), and the best tiling of each
class, for head dims that are usual, is kept in a table (`tilings`), which
`benchmarks/sm100_search.py` writes.  Calls with other head dims are ranked when they are planned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from flexfa4.kernels.emit.cost import Instructions
from flexfa4.kernels.sm100.forward.plan import Registers, Tiling
from flexfa4.kernels.sm100.forward.storage import DEPTH, SHARED_MEMORY, plan_storage
from flexfa4.kernels.sm100.forward.storage import stages_that_fit as most_stages
from flexfa4.kernels.sm100.forward.tmem import plan_tensor_memory
from flexfa4.kernels.sm100.model import Mod, Tile
from flexfa4.primitives.exponentials import EmulatedFraction

_PLAIN: Final = Mod()

KEYS: Final = (128, 96, 64, 32)
"""Keys of tiles, the best first: tensor memory is read in vectors of 32 columns."""

MOST_STAGES: Final = 12
"""Parts of K and V that are loaded ahead: more would only make the first ones wait."""

STEPS: Final = 16
"""The share of emulated exponentials is a multiple of one in so many."""

MOST_EMULATED: Final = 8
"""Of `STEPS`.  Every exponential that is emulated holds registers for longer."""

TAUS: Final = (8.0, 0.0)
"""See `VariantPlan`."""

BLOCKS: Final = (1, 2)
"""Blocks that compute a product together: two of them only where every tile of keys is visited."""

ALIKE: Final = 1.03
"""What the model cannot tell apart: about as far as its ratios are off for the H200."""

ALIKE_IF_NARROW: Final = 1.06
"""Likewise for plain variants with head dims of 64, where it is off by so much for the H200."""


@dataclass(frozen=True)
class VariantClass:
    """Variants that are cut alike.

    Attributes:
        name: in words.
        mod: what a usual one of them costs.
        holds: whether a mod that costs so much is one of them; the first class counts.
    """

    name: str
    mod: Mod
    holds: Callable[[Mod], bool]


CLASSES: Final = (
    VariantClass("plain", Mod(), lambda mod: mod.score.all < 0.25),
    VariantClass(
        "several functions",
        Mod(Instructions(fma=4, paired=4, mufu=3)),
        lambda mod: mod.score.mufu > 1.5,
    ),
    VariantClass(
        "a function",
        Mod(Instructions(fma=2, paired=2, mufu=1)),
        lambda mod: mod.score.mufu > 0.5,
    ),
    VariantClass(
        "integers", Mod(Instructions(fma=1, paired=1, alu=6)), lambda mod: mod.score.alu >= 3
    ),
    VariantClass("arithmetic", Mod(Instructions(fma=1, paired=1)), lambda mod: True),
)
"""By what the score mod costs: special functions first, since they are what is scarce."""


@dataclass(frozen=True)
class Choice:
    """A row of the table.

    Attributes:
        name: what is compiled for.
        head_dims: of q and k, and of v.
        variant: name of the class.
        tiling: the best one.
        tau: see `VariantPlan`.
        cycles: that a tile takes.
        bound: what bounds it.
    """

    name: str
    head_dims: tuple[int, int]
    variant: str
    tiling: Tiling
    tau: float
    cycles: int
    bound: str

    @classmethod
    def of(
        cls,
        about: tuple[str, tuple[int, int], str],
        keys: int,
        stages: int,
        registers: tuple[int, int, int],
        emulated: int,
        time: tuple[int, str],
    ) -> Choice:
        """Return a row as the table has it.

        Args:
            about: name, head dims, and the name of the class.
            keys: of a tile.
            stages: parts of K and V.
            registers: of softmax, correction, and the others.
            emulated: of `STEPS` exponentials.
            time: cycles, and what bounds them.
        """
        fraction = EmulatedFraction(emulated, STEPS)
        tiling = Tiling(keys, stages, Registers(*registers), fraction)
        return cls(*about, tiling, TAUS[0], *time)


def class_of(mod: Mod) -> VariantClass:
    """Return the class of variants that a mod belongs to."""
    return next(known for known in CLASSES if known.holds(mod))


def feasible(head_dims: tuple[int, int], mod: Mod = _PLAIN, blocks: int = 1) -> Iterator[Tiling]:
    """Yield the tilings that fit tensor memory and shared memory, most keys first.

    Of values each block has a part of the columns, which are as wide as a swizzle at least.
    """
    if head_dims[1] % (DEPTH * blocks):
        return
    for keys in KEYS:
        stages = stages_of(keys, head_dims, blocks)
        if stages is not None and plan_tensor_memory(keys, head_dims[1]).fits:
            yield Tiling(keys, stages, registers_of(keys, mod), blocks=blocks)


def stages_of(keys: int, head_dims: tuple[int, int], blocks: int = 1) -> int | None:
    """Return how many parts of K and V are in the ring; None where a tile of each does not fit."""
    stages = min(MOST_STAGES, most_stages(keys, head_dims, blocks))
    storage = plan_storage(keys, head_dims, stages, blocks=blocks)
    enough = stages >= storage.k_parts + storage.v_parts
    return stages if enough and storage.bytes <= SHARED_MEMORY else None


def registers_of(keys: int, mod: Mod = _PLAIN) -> Registers:
    """Return how the registers of a multiprocessor are split between the roles: as the one wants
    that has least to spare.

    A thread of softmax holds its row's scores, some of the probabilities that replace them, and
    what a mod computes with; the correction moves columns of the output in groups; the others find
    tiles by closed forms that read tables.  With these numbers, and the keys that `usual_tiling`
    gives to mods that compute much, no variant spills
    (`tests/compile/test_sm100_forward.py`).
    """
    softmax = keys + keys // 4 + 24

    def spare(split: Registers) -> int:
        return min(split.softmax - softmax, split.correction - 72, split.others - 56)

    return max(SPLITS, key=spare)


SPLITS: Final = (
    Registers(184, 80, 64), Registers(192, 72, 56), Registers(176, 96, 64), Registers(152, 144, 64),
)  # fmt: skip
"""Splits of 512 registers for each lane: two warpgroups of softmax, one of correction, the rest."""


def candidates(head_dims: tuple[int, int], mod: Mod) -> Iterator[tuple[Tiling, float]]:
    """Yield every tiling that is ranked, with a tau; the simpler ones first."""
    for blocks in BLOCKS:
        for step in range(MOST_EMULATED + 1):
            for tiling in feasible(head_dims, mod, blocks):
                fraction = EmulatedFraction(step, STEPS)
                for tau in TAUS:
                    yield replace(tiling, emulated=fraction), tau


def ranked(name: str, head_dims: tuple[int, int], mod: Mod) -> list[tuple[float, Tiling, float]]:
    """Return cycles for each score, tiling and tau of all candidates, the best first."""
    found = [
        (Tile(name, tiling, head_dims, mod, tau).cost(), tiling, tau)
        for tiling, tau in candidates(head_dims, mod)
    ]
    return sorted(found, key=lambda entry: entry[0])


@functools.lru_cache(maxsize=256)
def best(name: str, head_dims: tuple[int, int], variant: str) -> Choice:
    """Return the first candidate of one block that the model cannot tell from the best one.

    Args:
        name: what is compiled for.
        head_dims: for which there are tilings.
        variant: name of a class.
    """
    mod = _mod(variant)
    costs = {
        (tiling, tau): Tile(name, tiling, head_dims, mod, tau).cost()
        for tiling, tau in candidates(head_dims, mod)
        if tiling.blocks == 1
    }
    narrow = head_dims == (64, 64) and mod == _PLAIN
    alike = ALIKE_IF_NARROW if narrow else ALIKE
    least = min(costs.values())
    tiling, tau = next(found for found, cost in costs.items() if cost <= alike * least)
    time = Tile(name, tiling, head_dims, mod, tau).time()
    return Choice(name, head_dims, variant, tiling, tau, round(time.total), time.bound)


@functools.lru_cache(maxsize=256)
def with_pairs(one: Choice) -> tuple[Choice, float] | None:
    """Return a choice with two blocks for a product, and what share of its time that takes.

    None if two blocks cannot compute together.  By the model, so a share of more than
    ``1 / ALIKE`` is no reason to take them.
    """
    mod = _mod(one.variant)
    usual = next(feasible(one.head_dims, mod, blocks=2), None)
    if usual is None:
        return None
    tiling = replace(usual, emulated=one.tiling.emulated, registers=one.tiling.registers)
    pair, single = (
        Tile(one.name, found, one.head_dims, mod, one.tau) for found in (tiling, one.tiling)
    )
    time = pair.time()
    found = replace(one, tiling=tiling, cycles=round(time.total), bound=time.bound)
    return found, pair.cost() / single.cost()


def _mod(variant: str) -> Mod:
    return next(known.mod for known in CLASSES if known.name == variant)
