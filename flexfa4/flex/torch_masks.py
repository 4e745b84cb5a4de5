"""torch's own block masks, given where ours are.

`BlockMask.from_torch` converts one; this module knows torch's marks and keeps conversions.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from torch.nn.attention import flex_attention as torch_flex

from flexfa4.flex.block_lists import LISTS, stated_kinds
from flexfa4.flex.block_mask import BlockMask
from flexfa4.flex.listed_mask import ListedBlocks
from flexfa4.flex.masks import is_noop

_ENDLESS: Final = 1 << 30  # the block size by which torch marks a mask that masks nothing
_CONVERTED: weakref.WeakKeyDictionary[Any, BlockMask] = weakref.WeakKeyDictionary()


def is_torch_mask(block_mask: Any) -> bool:
    """Return whether this is a block mask of torch."""
    return isinstance(block_mask, torch_flex.BlockMask)


def converted(block_mask: Any) -> BlockMask | None:
    """Return a block mask of torch as ours, made once for as long as it has the same attributes.

    None stands for torch's mark of a mask that masks nothing.
    """
    if tuple(block_mask.BLOCK_SIZE) == (_ENDLESS, _ENDLESS):
        return None
    found = _CONVERTED.get(block_mask)
    if found is None or not _same_attributes(found, block_mask):
        found = _CONVERTED[block_mask] = BlockMask.from_torch(block_mask)
    return found


def torch_in_graph(block_mask: Any) -> Any:
    """Return the mask of a block mask of torch where Dynamo traces; its lists are not checked."""
    if block_mask.BLOCK_SIZE[0] == _ENDLESS and block_mask.BLOCK_SIZE[1] == _ENDLESS:
        return None
    mask_mod = None if is_noop(block_mask.mask_mod) else block_mask.mask_mod
    return ListedBlocks(stated_kinds(block_mask), block_mask.BLOCK_SIZE, mask_mod)


def _same_attributes(ours: BlockMask, theirs: Any) -> bool:
    same_mask = ours.mask_mod is theirs.mask_mod or (
        is_noop(ours.mask_mod) and is_noop(theirs.mask_mod)
    )
    return (
        same_mask
        and tuple(theirs.seq_lengths) == ours.seq_lengths
        and tuple(theirs.BLOCK_SIZE) == ours.BLOCK_SIZE
        and all(getattr(ours, name) is getattr(theirs, name) for name in LISTS)
    )
