"""Captured tensors without elements: kernels for GPUs refuse to read them, as the CPU does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.errors import OutOfRangeError
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.forward.empty_captures import check_that_captures_have_elements

NONE = torch.zeros(0)
NO_HEADS = torch.zeros(0, 40)
NO_KEYS = torch.zeros(2, 0)
IDS = torch.arange(40) % 2
GPUS = ("emulator", "emulator:sm_90a")
SIZES = Sizes(batch=1, heads=2, kv_heads=2, q_len=40, kv_len=40)

READS: dict[str, Any] = {
    "the only axis": lambda s, b, h, q, kv: s + NONE[q],
    "no heads": lambda s, b, h, q, kv: s + NO_HEADS[h, kv],
    "no keys": lambda s, b, h, q, kv: s * NO_KEYS[h, kv],
    "by what another one holds": lambda s, b, h, q, kv: s + NONE[IDS[kv]],
    "beside a condition": lambda s, b, h, q, kv: torch.where(q > kv, s, NONE[q]),
}


def message(backend: str, mod: Any) -> str:
    q, k, v = (torch.ones(1, 2, 40, 64).bfloat16() for _ in range(3))
    with pytest.raises(OutOfRangeError) as raised:
        flexfa4.attention(q, k, v, score_mod=mod, backend=backend)
    return str(raised.value)


@pytest.mark.parametrize("mod", READS.values(), ids=READS)
def test_kernels_say_what_the_cpu_says(mod: Any) -> None:
    assert {message(gpu, mod) for gpu in GPUS} == {message("cpu", mod)}


@pytest.mark.parametrize("backend", GPUS)
def test_packed_sequences_are_refused_alike(backend: str) -> None:
    q, k, v = (torch.ones(40, 2, 64).bfloat16() for _ in range(3))
    ends = torch.tensor([0, 15, 40], dtype=torch.int32)
    with pytest.raises(OutOfRangeError, match="`NONE` has size 0 in dimension 0"):
        flexfa4.attention_varlen(q, k, v, ends, score_mod=READS["the only axis"], backend=backend)


def check(mod: Any, mask: Any = None) -> None:
    blocks: MaskBlocks | None = None
    if mask is not None:
        made = flexfa4.create_block_mask(mask, q_len=40, kv_len=40)
        blocks = made.blocks_on(torch.device("cpu"))
    check_that_captures_have_elements(resolve(mod, "score"), blocks, SIZES)


def test_what_nobody_sees_is_read_by_nobody() -> None:
    check(READS["the only axis"], "q < 0")
    with pytest.raises(OutOfRangeError):
        check(READS["the only axis"], "q >= kv")


def test_tensors_that_have_elements_are_not_looked_at() -> None:
    short = torch.zeros(3)
    check(lambda s, b, h, q, kv: s + short[q + 30])
