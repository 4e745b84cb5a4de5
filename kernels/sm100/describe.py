"""What a plan of the Blackwell forward kernel says, in words, for reports."""

from __future__ import annotations

from dataclasses import replace

from flexfa4.kernels.backward.describe import gradients_in_words
from flexfa4.kernels.forward.architecture import Row
from flexfa4.kernels.forward.describe import INPUTS, describe_variant, emulated_in_words
from flexfa4.kernels.sm100.backward.architecture import BLACKWELL_BACKWARD
from flexfa4.kernels.sm100.dispatch import describe_dispatch
from flexfa4.kernels.sm100.forward.plan import ForwardPlan
from flexfa4.kernels.sm100.forward.storage import SHARED_MEMORY
from flexfa4.kernels.sm100.forward.tmem import COLUMNS
from flexfa4.kernels.sm100.model import describe_time
from flexfa4.kernels.sm100.search import ALIKE, Choice, with_pairs
from flexfa4.kernels.sm100.tuning import (
    choice_for,
    is_tabled,
    row_for,
    shares_tiles,
    usual_tiling,
)


def describe_plan(plan: ForwardPlan, name: str) -> list[Row]:
    """Return rows about a plan, compiled for what has a name."""
    tiling, storage, memory = plan.tiling, plan.storage, plan.tensor_memory
    return [
        (
            "tile",
            f"{tiling.rows} queries by {tiling.keys} keys: two halves of 128 queries in turns;"
            f" K and V {tiling.stages} parts ahead",
        ),
        ("tiling", _tiling(plan, name)),
        *describe_variant(plan),
        describe_dispatch(plan, name),
        (
            "shared memory",
            f"{storage.bytes} bytes of {SHARED_MEMORY}\n{_regions(storage.regions)}",
        ),
        (
            "tensor memory",
            f"{memory.columns} columns of {COLUMNS}\n{_regions(memory.regions)}",
        ),
        describe_time(plan, name),
        INPUTS,
        ("gradients", gradients_in_words(BLACKWELL_BACKWARD, plan.head_dims, plan.score.graph)),
    ]


def _tiling(plan: ForwardPlan, name: str) -> str:
    """Return which row decided how work is cut, and what it says."""
    row, choice, tiling = row_for(plan, name), choice_for(plan, name), plan.tiling
    where = "row of the table" if is_tabled(row) else "found by the model"
    head_dims = f"{choice.head_dims[0]}, {choice.head_dims[1]}"
    found = f"{where}: {name}, head dimensions {head_dims}, {choice.variant}"
    usual = usual_tiling(plan, name)
    if replace(tiling, emulated=usual.emulated) != usual:
        found += "; the tile is the user's choice"
    elif tiling.keys != choice.tiling.keys:
        found += f"; fewer keys than its {choice.tiling.keys}, so that the mod's registers suffice"
    if tiling.emulated != usual.emulated:
        found += "; the share of emulated exponentials is the user's choice"
    elif tiling.emulated != choice.tiling.emulated:
        found += f"; fewer exponentials emulated than its {choice.tiling.emulated.value:.1%},"
        found += " so that its registers suffice"
    split = tiling.registers
    lines = (
        found,
        f"exponentials emulated: {emulated_in_words(tiling.emulated)}; tau {plan.tau:g}",
        _blocks(plan, row, choice),
        f"registers of a thread: {split.softmax} softmax, {split.correction} correction,"
        f" {split.others} others",
    )
    return "\n".join(lines)


def _blocks(plan: ForwardPlan, row: Choice, choice: Choice) -> str:
    """Return how many blocks compute a product together, and why."""
    blocks = plan.tiling.blocks
    taken = f"a product of {blocks} block{'s' * (blocks > 1)}: "
    if blocks != choice.tiling.blocks:
        return taken + "the user's choice"
    if not shares_tiles(plan):
        return taken + "two share tiles of keys only where every query sees every key"
    pairs = with_pairs(row)
    if pairs is None:
        return taken + f"two cannot halve {plan.head_dims[1]} columns of values"
    times = f"two take {pairs[1]:.2f} of the time of one by the model"
    return taken + times + f", which cannot tell {ALIKE - 1:.0%}" * (blocks == 1)


def _regions(regions: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {start}-{end - 1}" for name, (start, end) in regions.items())
