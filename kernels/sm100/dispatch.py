"""How the numbers of work items reach blocks, and whether another way would be faster by the model.

The forward kernel's blocks stay, and fetch the next number from a counter when they are free; pairs
of blocks, whose items are alike, take every n-th (`primitives.dispatch`).  Blackwell has a third
way, *cluster launch control*: a block is launched for each item, and one that is free asks the
hardware to cancel the next block that has not begun, whose number it takes.  Both the counter and
launch control give whoever is free the next number, in the same order, so launches last equally
long (`makespan`) but for what asking takes.  That is what is compared here.

What this module deliberately does not know: what the hardware takes to cancel a block.  It is taken
to be nothing, so that launch control is never undervalued.
"""

from __future__ import annotations

from typing import Final

from flexfa4.kernels.forward.architecture import Row
from flexfa4.kernels.sm100.forward.plan import ForwardPlan
from flexfa4.kernels.sm100.model import Tile, tile_of
from flexfa4.kernels.sm100.search import ALIKE


def exposed_fetch(tile: Tile) -> float:
    """Return the cycles that blocks wait for a number from the counter, for items of one tile.

    The warp that loads asks when it has issued the loads of an item, which its block then has to
    work on: one tile of keys, or more.  The counter answers as soon as a read does.
    """
    return max(0.0, tile.gpu.fitted.load - tile.time().total)


def share_of_launch_control(tile: Tile) -> float:
    """Return what share of the time with a counter a launch takes with launch control, at least.

    That is for items of one tile; longer ones hide more of a fetch and are asked for more rarely.
    """
    least = tile.gpu.fitted.item + tile.time().total
    return least / (least + exposed_fetch(tile))


def prefers_launch_control(tile: Tile) -> bool:
    """Return whether the model finds cluster launch control clearly faster than the counter."""
    return share_of_launch_control(tile) * ALIKE < 1


def describe_dispatch(plan: ForwardPlan, name: str) -> Row:
    """Return a row about how items reach the blocks of a plan, for reports."""
    if plan.tiling.blocks > 1:
        return "items", "every n-th of n pairs of blocks, as all are alike"
    tile = tile_of(plan, name)
    share, waits = share_of_launch_control(tile), exposed_fetch(tile)
    known = "which would be worth a kernel" if prefers_launch_control(tile) else _ALIKE
    return (
        "items",
        f"fetched from a counter, {tile.gpu.fitted.load:.0f} cycles of which {waits:.0f} are not"
        f" behind a tile;\ncluster launch control would take {share:.2f} of the time by the model,"
        f" {known}",
    )


_ALIKE: Final = f"which cannot tell {ALIKE - 1:.0%}"
