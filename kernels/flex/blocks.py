"""The blocks of a mask as the lists of torch's `BlockMask`, kept with the mask.

Blocks at the end that are not whole are never listed as full: FlexAttention masks what is past the
lengths in partial blocks only.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import torch

from flexfa4.frontend.masks.grid import FULL, PARTIAL
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.kernels.refusal import Refusal

BLOCK: Final = (128, 128)
"""Queries and keys of a block: a multiple of every tile that torch tries."""

MOST_BLOCKS: Final = 1 << 28
"""Blocks that lists are written for: each takes 8 bytes, and in a backward pass 16."""

Lists: TypeAlias = tuple[torch.Tensor | None, ...]
"""The eight lists in torch's order: counts and places of partial and of full blocks, by rows and by
columns; None for those by columns where no backward pass needs them."""


class _Lists(dict[tuple[torch.device, bool], Lists]):
    """The lists of a mask, by device and whether they are written by columns, too."""


def refused_blocks(blocks: MaskBlocks) -> Refusal | None:
    """Return why a mask cannot be listed; None where it can."""
    b, h, q_len, kv_len = blocks.size.b, blocks.size.h, blocks.size.q_len, blocks.size.kv_len
    count = b * h * -(-q_len // BLOCK[0]) * -(-kv_len // BLOCK[1])
    if count <= MOST_BLOCKS:
        return None
    return Refusal(
        f"a mask of {count} blocks of {BLOCK[0]} by {BLOCK[1]}, which FlexAttention lists each",
        f"at most {MOST_BLOCKS}",
        'backend="cpu", or calls of fewer queries',
    )


def lists_of(blocks: MaskBlocks, device: torch.device, by_columns: bool) -> Lists:
    """Return the lists of a mask, made on the first call.

    Args:
        blocks: the mask; no two of its lists are one tensor.
        device: where they are needed.
        by_columns: for a backward pass, too.
    """
    kept = blocks.cache(_Lists)
    found = kept.get((device, by_columns))
    if found is None:
        with torch.inference_mode(False), torch.no_grad():
            found = kept[device, by_columns] = _listed(blocks, device, by_columns)
    return found


def _listed(blocks: MaskBlocks, device: torch.device, by_columns: bool) -> Lists:
    kinds = blocks.with_block_size(BLOCK).kinds().to(device)
    full = kinds == FULL
    if blocks.size.q_len % BLOCK[0]:
        full[:, :, -1] = False
    if blocks.size.kv_len % BLOCK[1]:
        full[:, :, :, -1] = False
    partial = (kinds >= PARTIAL) & ~full
    rows = (*_ordered(partial), *_ordered(full))
    if not by_columns:
        return (*rows, None, None, None, None)
    return (*rows, *_ordered(partial.transpose(2, 3)), *_ordered(full.transpose(2, 3)))


def _ordered(dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how many blocks each line of a table has, and their places before all others."""
    counts = dense.sum(-1, dtype=torch.int32)
    places = dense.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return counts, places.to(torch.int32).contiguous()
