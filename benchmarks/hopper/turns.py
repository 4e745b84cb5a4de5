"""What ``deterministic=True`` costs by the simulation of turns, for cases of the table.

Blocks that add to a tile of dQ in turns wait for each other; how long is simulated
(`flexfa4.kernels.backward.waiting`) from the plans of a call.  Needs no GPU.
"""

from __future__ import annotations

import functools

import torch
from hopper.variants import VARIANTS, Shape

import flexfa4
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.backward.architecture import BackwardKernels
from flexfa4.kernels.backward.call import Wishes, plan_backward
from flexfa4.kernels.backward.waiting import Launches, simulated
from flexfa4.kernels.request import Inputs, Request
from flexfa4.kernels.sm90.backward.architecture import HOPPER_BACKWARD


@functools.cache
def launches(variant: str, shape: Shape, kernels: BackwardKernels = HOPPER_BACKWARD) -> Launches:
    """Return how long the main kernel of a case takes, with turns and without."""
    cpu = torch.device("cpu")
    mods = VARIANTS[variant].make(shape, cpu)
    one = torch.empty(1, dtype=torch.bfloat16)
    sizes = (
        (shape.heads, shape.dim), (shape.kv_heads, shape.dim), (shape.kv_heads, shape.value_dim),
    )  # fmt: skip
    q, k, v = (one.expand(shape.batch, h, shape.length, d) for h, d in sizes)
    inputs, blocks, length = Inputs(q, k, v, None), None, shape.length
    if mods.mask is not None:
        batch = shape.batch if mods.mask_by_batch else 1
        made = flexfa4.create_block_mask(mods.mask, batch=batch, q_len=length, kv_len=length)
        blocks = made.blocks_on(cpu)
    score = None if mods.score is None else resolve(mods.score, "score")
    request = Request(score, blocks, shape.dim**-0.5, frozenset(), False)
    in_turns, free = (
        plan_backward(kernels, inputs, request, Wishes(frozenset(), False, deterministic))
        for deterministic in (True, False)
    )
    assert in_turns is not None and free is not None
    return simulated(in_turns, free, inputs, kernels.multiprocessors, blocks)
