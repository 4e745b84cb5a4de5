"""How long a backward pass takes with turns and without, by simulation, from a call's tensors."""

from __future__ import annotations

import torch

import flexfa4
from flexfa4.kernels.backward.architecture import BackwardKernels
from flexfa4.kernels.backward.call import Wishes, plan_backward
from flexfa4.kernels.backward.waiting import Launches, simulated
from flexfa4.kernels.request import Inputs, Request


def tensors(
    batch: int, heads: tuple[int, int], length: int, dims: tuple[int, int] = (128, 128)
) -> Inputs:
    """Return q, k and v of one number each, for heads of queries and of keys."""
    one = torch.empty(1, dtype=torch.bfloat16)
    q = one.expand(batch, heads[0], length, dims[0])
    k, v = (one.expand(batch, heads[1], length, dim) for dim in dims)
    return Inputs(q, k, v, None)


def launches(
    kernels: BackwardKernels,
    inputs: Inputs,
    mask: flexfa4.BlockMask | None,
    multiprocessors: int | None = None,
) -> Launches:
    """Return how long launches take on a GPU, by default on that of the architecture."""
    blocks = None if mask is None else mask.blocks_on(inputs.q.device)
    request = Request(None, blocks, 1.0, frozenset(), False)
    in_turns, free = (
        plan_backward(kernels, inputs, request, Wishes(frozenset(), False, deterministic))
        for deterministic in (True, False)
    )
    assert in_turns is not None and free is not None
    return simulated(in_turns, free, inputs, multiprocessors or kernels.multiprocessors, blocks)
