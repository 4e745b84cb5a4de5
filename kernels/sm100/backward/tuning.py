"""How the work of a block of the Blackwell backward kernel is cut.

Any head dims are served that fit: in tensor memory the sums of dK and dV beside scores and
gradients, in shared memory a tile of each tensor.  As much is loaded ahead as there is room for.
Two blocks compute together where that takes clearly less time by the model: they read half of the
second operands, and add half of dQ each.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from flexfa4.kernels.blocks.walk import WalkPlan
from flexfa4.kernels.emit.gradient import GradientProgram
from flexfa4.kernels.sm100.backward.model import cycles_of
from flexfa4.kernels.sm100.backward.storage import (
    WITH_DERIVATIVE,
    Tiling,
    plan_storage,
    tensor_memory_of,
)
from flexfa4.kernels.sm100.forward.storage import SHARED_MEMORY

HEAD_DIM_STEP: Final = 16
"""Of products' depth, and of the columns that the roles move together."""

_ALONE: Final = (
    Tiling(do_stages=2, kv_stages=2),
    Tiling(do_stages=2),
    Tiling(),
    Tiling(dq_stages=1),
)
"""The most wanted first: two parts of dQ on their way, then two tiles of dO, then the keys of the
next item."""

_TOGETHER: Final = (
    Tiling(blocks=2, do_stages=2, kv_stages=2),
    Tiling(blocks=2, do_stages=2),
    Tiling(blocks=2, q_stages=1),
    Tiling(blocks=2, q_stages=1, dq_stages=1),
    Tiling(blocks=2, q_stages=1, dq_columns=16),
)
"""Likewise; scores have a tile of Q of their own, so one stage is enough for it."""

_PAIR_STEP: Final = 32
"""Of head dims of which two blocks have half each."""

_WORTH: Final = 0.9
"""Part of the time that two blocks may take at most: a tile of twice the keys meets more queries
that see none of some."""


def _first_that_fits(wishes: Sequence[Tiling], head_dims: tuple[int, int]) -> Tiling | None:
    for tiling in wishes:
        memory = tensor_memory_of(tiling, head_dims)
        if memory.fits and plan_storage(tiling, head_dims).bytes <= SHARED_MEMORY:
            return tiling
    return None


@functools.cache
def _alone(head_dims: tuple[int, int]) -> Tiling | None:
    if any(dim % HEAD_DIM_STEP for dim in head_dims):
        return None
    return _first_that_fits(_ALONE, head_dims)


@functools.cache
def _best(head_dims: tuple[int, int]) -> Tiling | None:
    alone, together = _alone(head_dims), None
    if not any(dim % _PAIR_STEP for dim in head_dims):
        together = _first_that_fits(_TOGETHER, head_dims)
    if alone is None or together is None:
        return alone or together
    less = cycles_of(together, head_dims).least <= _WORTH * cycles_of(alone, head_dims).least
    return together if less else alone


def tiling_for(head_dims: tuple[int, int], score: GradientProgram) -> Tiling | None:
    """Return how work is cut; None for head dims that there is no kernel for."""
    found = _best(head_dims)
    if found is None or (score.derivative is None and not score.shares):
        return found
    return replace(found, registers=WITH_DERIVATIVE)


def fitting(tiling: Tiling, head_dims: tuple[int, int], walk: WalkPlan) -> Tiling:
    """Return how work is cut for a mask: by single blocks where tiles are scattered.

    Two tiles of keys would meet the queries of both.  Scattered tiles are listed; and so are others
    where blocks take turns.
    """
    close = walk.source != "listed" or (walk.ranked and walk.interval is not None)
    if tiling.blocks == 1 or close:
        return tiling
    alone = _alone(head_dims)
    return tiling if alone is None else replace(alone, registers=tiling.registers)
