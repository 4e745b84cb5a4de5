"""Our plans of the variants that the H200 benchmark has, for tensors without memory."""

from __future__ import annotations

import functools
from typing import Any

import torch
from hopper.variants import VARIANTS, Shape

import flexfa4
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.architectures import named
from flexfa4.kernels.forward.function import planned
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import Inputs, Request


@functools.lru_cache(maxsize=64)
def plan_of(variant: str, sizes: tuple[int, int, int, int, int, int], arch: str) -> Any:
    """Return the plan of a variant.

    Args:
        variant: a key of `VARIANTS`.
        sizes: batch, heads, key heads, length, and head dims of q and v.
        arch: what is compiled for.
    """
    batch, heads, kv_heads, length, dim, dim_v = sizes
    mods = VARIANTS[variant].make(Shape(*sizes), torch.device("cpu"))
    one = torch.empty(1, dtype=torch.bfloat16)
    shapes = ((heads, dim), (kv_heads, dim), (kv_heads, dim_v))
    q, k, v = (one.expand(batch, h, length, d) for h, d in shapes)
    blocks = None
    if mods.mask is not None:
        made = flexfa4.create_block_mask(
            mods.mask, batch=batch if mods.mask_by_batch else 1, q_len=length, kv_len=length
        )
        blocks = made.blocks_on(torch.device("cpu"))
    score = None if mods.score is None else resolve(mods.score, "score")
    request = Request(score, blocks, dim**-0.5, frozenset(), False)
    call = planned(named(arch), request, Inputs(q, k, v, None), False, arch)
    assert call is not None and not isinstance(call, Refusal)
    return call.plan
