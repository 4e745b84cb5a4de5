"""The blocks of masks in use are found by what the masks are made of, and only by that."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4 import create_block_mask
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.masks.registry import known
from flexfa4.masks.spec import GivenSizes, Spec

IDS = torch.arange(90) % 7
WINDOW = 5
HEAD_COUNT: Any = flexfa4.num_heads
SPEC = Spec(GivenSizes(None, None, 40, 40), (16, 16))


def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (IDS[q_idx] == IDS[kv_idx]) & (q_idx - kv_idx < WINDOW)


def test_a_mask_is_known_as_long_as_it_is_in_use_and_by_its_own_tensors() -> None:
    made = create_block_mask(mask, q_len=40, kv_len=40, block_size=16)
    bound = made._bound
    assert known(bound, SPEC) is made.blocks_on(made.device)
    same_memory = replace(bound, tensors=tuple(t.view(t.shape) for t in bound.tensors))
    assert known(same_memory, SPEC) is made.blocks_on(made.device)
    assert known(resolve(mask, "mask"), SPEC) is None  # the user's tensor, which may change
    tensors, del_ = bound.tensors, bound
    del made, bound, same_memory
    gc.collect()
    assert known(replace(del_, tensors=tensors), SPEC) is None


@pytest.mark.parametrize(
    "changed",
    [
        Spec(GivenSizes(None, None, 41, 40), (16, 16)),
        Spec(GivenSizes(None, None, 40, 41), (16, 16)),
        Spec(GivenSizes(None, None, 40, 40), (16, 32)),
    ],
)
def test_for_other_sizes_it_is_not_known(changed: Spec) -> None:
    made = create_block_mask(mask, q_len=40, kv_len=40, block_size=16)
    assert known(made._bound, changed) is None
    other = replace(made._bound, scalars=(6,))
    assert known(other, SPEC) is None


def test_counts_play_a_role_where_they_are_read() -> None:
    made = create_block_mask(mask, heads=3, q_len=40, kv_len=40, block_size=16)
    four = Spec(GivenSizes(2, 4, 40, 40), (16, 16))
    assert known(made._bound, four) is made.blocks_on(made.device)
    counting = create_block_mask(
        lambda b, h, q, kv: q * HEAD_COUNT >= kv, heads=3, q_len=40, kv_len=40, block_size=16
    )
    assert known(counting._bound, four) is None
    three = Spec(GivenSizes(2, 3, 40, 40), (16, 16))
    assert known(counting._bound, three) is counting.blocks_on(counting.device)
