"""What a plan of the Hopper forward kernel says, in words, for `flexfa4.explain` and the shell."""

from __future__ import annotations

from dataclasses import replace

from flexfa4.kernels.backward.describe import gradients_in_words
from flexfa4.kernels.forward.architecture import Row
from flexfa4.kernels.forward.describe import INPUTS, describe_variant, emulated_in_words
from flexfa4.kernels.sm90.backward.architecture import HOPPER_BACKWARD
from flexfa4.kernels.sm90.forward.parts import parts_of
from flexfa4.kernels.sm90.forward.plan import ForwardPlan
from flexfa4.kernels.sm90.forward.storage import SHARED_MEMORY
from flexfa4.kernels.sm90.forward.tilings import FORWARD, UNMASKED
from flexfa4.kernels.sm90.model import describe_time
from flexfa4.kernels.sm90.tuning import fitting, usual_tiling


def describe_plan(plan: ForwardPlan) -> list[Row]:
    """Return rows about a plan."""
    tiling, storage = plan.tiling, plan.storage
    consumers = "1 warpgroup" if tiling.warpgroups == 1 else f"{tiling.warpgroups} warpgroups"
    return [
        (
            "tile",
            f"{tiling.rows} queries by {tiling.keys} keys, {consumers} of 64 queries;"
            f" K and V {tiling.stages} tiles ahead",
        ),
        ("tiling", _tiling(plan)),
        *describe_variant(plan),
        *_parts(plan),
        *_emulated(plan),
        ("shared memory", f"{storage.bytes} bytes of {SHARED_MEMORY}"),
        describe_time(plan),
        INPUTS,
        ("gradients", gradients_in_words(HOPPER_BACKWARD, plan.head_dims, plan.score.graph)),
    ]


def _tiling(plan: ForwardPlan) -> str:
    """Return which row decided how work is cut, and what changed it."""
    head_dims, tiling = plan.head_dims, plan.tiling
    usual = usual_tiling(head_dims)
    where = "row of the table" if head_dims in FORWARD else "found by the model"
    found = f"{where}: head dimensions {head_dims[0]}, {head_dims[1]}"
    smaller = fitting(replace(plan, tiling=usual))
    if replace(tiling, emulated=smaller.emulated) != smaller:
        found += "; the tile is the user's choice"
    elif smaller != usual and smaller == UNMASKED.get(head_dims):
        found += ", without a mask"
    elif smaller != usual:
        found += "; another tile, which leaves registers to the mods"
    if tiling.emulated != usual.emulated:
        found += "; the share of emulated exponentials is the user's choice"
    return found


def _parts(plan: ForwardPlan) -> list[Row]:
    parts, columns = parts_of(plan), plan.tiling.keys // 4
    of_mods = {"score mod": parts.scores}
    if plan.mask is not None:
        of_mods["mask"] = parts.mask
    told = [f"{name} for {part}" for name, part in of_mods.items() if part < columns]
    shown = f"{', '.join(told)} of a thread's {columns} columns at once, for its registers"
    return [("evaluated", shown)] if told else []


def _emulated(plan: ForwardPlan) -> list[Row]:
    emulated = plan.tiling.emulated
    return [("exponentials", f"emulated: {emulated_in_words(emulated)}")] if emulated.value else []
