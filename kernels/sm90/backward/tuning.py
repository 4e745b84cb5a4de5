"""How the work of a block of the backward kernel is cut, for the head dims that it is for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flexfa4.kernels.emit.gradient import GradientProgram
from flexfa4.kernels.sm90.backward.storage import Tiling, plan_storage
from flexfa4.kernels.sm90.forward.storage import SHARED_MEMORY

BACKWARD: Final = {
    (64, 64): Tiling(128, 128, early=False, staged=True),
    (64, 128): Tiling(64, 128, kv_stages=1, staged=True, lagged=True),
    (96, 96): Tiling(64, 128, kv_stages=1, staged=True, lagged=True),
    (128, 128): Tiling(64, 128, kv_stages=1, staged=True, lagged=True),
    (192, 128): Tiling(
        64, 128, do_stages=1, kv_stages=1, ds_stages=1, in_registers=False, dp_parts=2, staged=True
    ),
    (256, 256): Tiling(64, 64, kv_stages=1, by_keys=False, in_registers=False),
}
"""By head dims of q and k, and of v."""

_NARROW: Final = 64


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
        tiling = replace(tiling, lagged=False)
    elif tiling.early:
        return tiling
    early = not score.keeps_probabilities
    return replace(tiling, queries=min(tiling.queries, _NARROW), early=early)


def in_turns(tiling: Tiling, head_dims: tuple[int, int]) -> Tiling:
    """Return a tiling, or one like it whose sums of dQ can be made in turns.

    A warp adds what it has itself, at its turn; so dQ takes no place in shared memory, which K and
    V get, if it suffices.
    """
    if not tiling.staged:
        return tiling
    early = tiling.early and not tiling.lagged  # there it was for the sake of the lag
    made = replace(tiling, staged=False, lagged=False, early=early)
    further = replace(made, kv_stages=2)
    return further if plan_storage(further, head_dims).bytes <= SHARED_MEMORY else made
