"""What a plan of the Blackwell forward kernel says, in words, for reports."""

from __future__ import annotations

from flexfa4.kernels.forward.architecture import Row
from flexfa4.kernels.forward.describe import INPUTS, NO_BACKWARD, describe_variant
from flexfa4.kernels.sm100.forward.plan import ForwardPlan
from flexfa4.kernels.sm100.forward.storage import SHARED_MEMORY
from flexfa4.kernels.sm100.forward.tmem import COLUMNS
from flexfa4.kernels.sm100.model import describe_time
from flexfa4.kernels.sm100.tuning import choice_for, is_tabled


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
        NO_BACKWARD,
    ]


def _tiling(plan: ForwardPlan, name: str) -> str:
    """Return which row decided how work is cut, and what it says."""
    choice, tiling = choice_for(plan, name), plan.tiling
    where = "row of the table" if is_tabled(choice) else "found by the model"
    head_dims = f"{choice.head_dims[0]}, {choice.head_dims[1]}"
    row = f"{where}: {name}, head dimensions {head_dims}, {choice.variant}"
    if tiling != choice.tiling:
        row += "; the tile is the user's choice"
    share = tiling.emulated
    emulated = (
        f"{share.value:.1%} by polynomials of degree {share.degree}" if share.value else "none"
    )
    split = tiling.registers
    return (
        f"{row}\nexponentials emulated: {emulated}; a product of {tiling.blocks} block"
        f"{'s' * (tiling.blocks > 1)}; tau {plan.tau:g}\n"
        f"registers of a thread: {split.softmax} softmax, {split.correction} correction,"
        f" {split.others} others"
    )


def _regions(regions: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {start}-{end - 1}" for name, (start, end) in regions.items())
