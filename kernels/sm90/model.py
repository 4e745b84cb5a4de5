"""How much work a tile of keys is for the Hopper forward kernel, and so how long it takes.

The work follows from the plan: products from its shape, instructions from the softmax, the mod and
the mask.  What becomes of it is `flexfa4.kernels.forward.model`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from flexfa4.kernels.emit.cost import (
    Fragment,
    Instructions,
    cost_of_mask,
    cost_of_score,
    emulation,
    loads_in_a_row,
)
from flexfa4.kernels.emit.places import Columns
from flexfa4.kernels.forward import model as forward
from flexfa4.kernels.forward.model import Fitted, Gpu, TileTime, TileTimes, Visited
from flexfa4.kernels.sm90.forward.plan import WARPGROUP_ROWS, ForwardPlan
from flexfa4.primitives.roofline import Work, overlapped

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


FITTED: Final = Fitted(overlap=2.70, item=2340.0, load=510.0, gigahertz=1.460)
"""To `benchmarks/results/h200.json`: one H200, 2026-11-30; `benchmarks/h200_model.py` does it."""

H200: Final = Gpu("an H200", MULTIPROCESSORS, RATES, FITTED)

SOFTMAX: Final = Instructions(fma=2, alu=1.5, mufu=1)
"""For each score: its maximum; its exponent and exponential; the sum; half of a conversion of two
probabilities to bf16."""

LIMITS: Final = Instructions(alu=2)
"""For each score of a partial tile that a limit of its row cuts: a comparison and a selection."""

AROUND: Final = 100
"""Instructions of each thread for a tile that are not for its scores: barriers, products, exchange
between the threads of a row, corrections.  Roughly: they matter little."""


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
    emulated = plan.tiling.emulated
    total = SOFTMAX + emulation(emulated.degree).times(emulated.value)
    total += cost_of_score(plan.score, plan.score_captures, fragment, plan.fast)
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


def tile_times(plan: ForwardPlan, fitted: Fitted = FITTED) -> TileTimes:
    """Return how long the tiles of a plan take."""
    full, masked = (tile_time(plan, masked=masked, fitted=fitted) for masked in (False, True))
    return TileTimes(full, masked)


def seconds(plan: ForwardPlan, items: Iterable[Visited], fitted: Fitted = FITTED) -> float:
    """Return how long a launch takes.

    Args:
        plan: of the kernel.
        items: what they visit, in the order of work.
        fitted: constants of the model.
    """
    return forward.seconds(tile_times(plan, fitted), items, replace(H200, fitted=fitted))


def cycles_per_score(plan: ForwardPlan) -> float:
    """Return the cycles that a block takes for each score of a long row of full tiles."""
    scores, keys = plan.tiling.rows * plan.tiling.keys, plan.tiling.keys
    return forward.cycles_per_score(tile_time(plan, masked=False), scores, keys, H200)


def describe_time(plan: ForwardPlan) -> tuple[str, str]:
    """Return a row about the time of a tile, for reports."""
    flops = 2 * plan.tiling.rows * plan.tiling.keys * sum(plan.head_dims)
    instructions = per_score(plan, masked=False).all
    return forward.described(tile_times(plan), flops, instructions, H200)
