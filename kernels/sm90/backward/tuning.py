"""How the work of a block of the backward kernel is cut, for the head dims that it is for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flexfa4.kernels.emit.gradient import GradientProgram
from flexfa4.kernels.sm90.backward.storage import Tiling

BACKWARD: Final = {
    (64, 64): Tiling(128, 128, early=False),
    (64, 128): Tiling(64, 128),
    (96, 96): Tiling(64, 128),
    (128, 128): Tiling(64, 128, early=False),
    (192, 128): Tiling(64, 128, kv_stages=1, in_registers=False, dp_parts=2),
    (256, 256): Tiling(64, 64, kv_stages=1, by_keys=False, in_registers=False),
}
"""By head dims of q and k, and of v."""

_NARROW: Final = 64


def tiling_for(head_dims: tuple[int, int], score: GradientProgram) -> Tiling | None:
    """Return how work is cut; None for head dims that there is no kernel for."""
    tiling = BACKWARD.get(head_dims)
    return None if tiling is None else roomy(tiling, score)


def roomy(tiling: Tiling, score: GradientProgram) -> Tiling:
    """Return a tiling, or one like it that has registers for the derivative of a score mod.

    Where what is kept of a probability is no more the probability itself, this has to be rounded at
    once.
    """
    if score.derivative is None or tiling.early:
        return tiling
    early = not score.keeps_probabilities
    return replace(tiling, queries=min(tiling.queries, _NARROW), early=early)
