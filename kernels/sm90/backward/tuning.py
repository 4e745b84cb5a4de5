"""How the work of a block of the backward kernel is cut, for the head dims that it is for.

What was measured is a table (`tilings`); mods, and sums in turns, change what its rows say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flexfa4.kernels.blocks.walk import Walk
from flexfa4.kernels.emit.gradient import GradientProgram
from flexfa4.kernels.sm90.backward.storage import Tiling
from flexfa4.kernels.sm90.backward.tilings import BACKWARD

_NARROW: Final = 64

_FEW_VISITORS: Final = 16
"""Tiles of keys that add to a tile of dQ, on average, up to which that is finished by the last one.
Measured: with 2 that takes 0.83 of the time, with 9 it takes 0.95, with 33 as much or up to 1.1."""


def tiling_for(head_dims: tuple[int, int], score: GradientProgram) -> Tiling | None:
    """Return how work is cut; None for head dims that there is no kernel for."""
    tiling = BACKWARD.get(head_dims)
    return None if tiling is None else roomy(tiling, score)


def roomy(tiling: Tiling, score: GradientProgram) -> Tiling:
    """Return a tiling, or one like it that has registers for the derivatives of a score mod.

    Sums for captured tensors, and the derivative by the score, take registers.  Where what is kept
    of a probability is no more the probability itself, this has to be rounded at once.
    """
    if score.shares:
        tiling = replace(tiling, queries=min(tiling.queries, _NARROW))
    if score.derivative is None:
        return tiling
    if tiling.lagged:
        tiling = replace(tiling, lagged=False, finishes=False)
    elif tiling.early:
        return tiling
    early = not score.keeps_probabilities
    return replace(tiling, queries=min(tiling.queries, _NARROW), early=early)


def fitting(tiling: Tiling, walk: Walk) -> Tiling:
    """Return a tiling, or one like it that leaves dQ to the kernel behind.

    Who is first, and who last, costs each visitor something, and saves the same for each tile.
    """
    if not tiling.finishes:
        return tiling
    visits = walk.visits
    if visits is not None:  # of as many queries as keys
        visitors = float(visits.double().mean()) * tiling.queries / tiling.keys
        if visitors <= _FEW_VISITORS:
            return tiling
    return replace(tiling, finishes=False)


def in_turns(tiling: Tiling) -> Tiling:
    """Return a tiling, or one like it whose sums of dQ can be made in turns.

    No block is told that its part of a tile is the last one: dQ is left to the kernel behind.
    """
    return replace(tiling, finishes=False)
