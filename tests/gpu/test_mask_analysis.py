"""Masks are analysed on the GPU, when their captures live there, with the results of the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flexfa4
from flexfa4.frontend.masks.search.refine import refine
from flexfa4.frontend.masks.structure import MaskBlocks, analyse
from flexfa4.testing import Case
from tests.brute_force import equal_runs
from tests.random_masks import RandomMask, Space, random_masks
from tests.test_masks_exact import BLOCK_SIZES, MASK_CASES, combination_id, mask_of

SPACES = (Space(2, 2, 700, 900), Space(3, 2, 90, 400), Space(1, 1, 2048, 2048))


def blocks_of(mask: Any, space: Space, block_size: tuple[int, int]) -> MaskBlocks:
    made = flexfa4.create_block_mask(
        mask,
        batch=space.batch,
        heads=space.heads,
        q_len=space.q_len,
        kv_len=space.kv_len,
        block_size=block_size,
    )
    return made.blocks_on(made.device)


def check(on_cpu: MaskBlocks) -> None:
    """Compare the blocks of a mask, found on the CPU, with those found on the GPU."""
    old = on_cpu.values
    moved = {buffer: tensor.cuda() for buffer, tensor in old.tensors.items()}
    values = replace(old, tensors=moved, device=torch.device("cuda"))
    found = analyse(on_cpu.graph, values, on_cpu.size, on_cpu.block_size)
    assert torch.equal(found.classes.of.cpu(), on_cpu.classes.of)
    assert found.is_closed == on_cpu.is_closed
    split = refine(found.graph, values, found.classes, found.grid)
    assert split.start.is_cuda
    for runs in (found.runs, split):
        assert equal_runs(runs.to(torch.device("cpu")), on_cpu.runs)
    assert equal_runs(found.columns.to(torch.device("cpu")), on_cpu.columns)
    for by in ("rows", "columns"):
        assert torch.equal(found.counts(by).cpu(), on_cpu.counts(by))


@settings(max_examples=max(100, settings().max_examples))
@given(random_masks, st.sampled_from(SPACES), st.sampled_from(BLOCK_SIZES))
def test_random_masks_have_the_blocks_that_the_cpu_finds(
    mask: RandomMask, space: Space, block_size: tuple[int, int]
) -> None:
    check(blocks_of(mask.function(space), space, block_size))


@pytest.mark.parametrize("case", MASK_CASES, ids=combination_id)
def test_a_variant_has_the_blocks_that_the_cpu_finds(case: Case) -> None:
    for space in SPACES:
        check(blocks_of(mask_of(case, space).mask, space, (64, 96)))


def test_a_block_mask_of_captures_on_the_gpu_stays_there() -> None:
    documents = torch.arange(4096, device="cuda") // 300
    made = flexfa4.create_block_mask(
        lambda b, h, q_idx, kv_idx: (documents[q_idx] == documents[kv_idx]) & (q_idx >= kv_idx),
        q_len=4096,
        kv_len=4096,
    )
    index = torch.arange(4096, device="cuda")
    dense = (documents[:, None] == documents) & (index[:, None] >= index)
    assert made.device.type == "cuda" and torch.equal(made.to_dense()[0, 0], dense)
    assert made.lists("rows").partial.indices.is_cuda
    documents += 1
    with pytest.raises(flexfa4.errors.StaleBlockMaskError):
        made.check_current()
