"""Block masks of masks that `attention` gets as functions: made once and kept.

An entry serves as long as what the mask captures can be seen to stay the same.  For a mask in
closed form it costs next to nothing to make one; what is kept is what a backend keeps with it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import torch

from flexfa4.block_mask import BlockMask, made
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import Graph
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.lru import LruCache
from flexfa4.masks.snapshot import number_key, tensor_identity
from flexfa4.masks.spec import BLOCK_SIZE, GivenSizes, Spec, capture_device, reads

# Enough for the layers of a model that alternates between a few masks.
_MOST: Final = 32
_CACHE: Final[LruCache[BlockMask]] = LruCache(_MOST)
_OF_FORMS: Final[dict[Any, tuple[Graph, MaskBlocks]]] = {}


def blocks_for(mask: Any, query: torch.Tensor, key: torch.Tensor, form: Hashable) -> MaskBlocks:
    """Return what kernels iterate for a mask that `attention` gets as a function.

    Of masks that capture no tensors it is found again by the call's form, faster than the block
    mask by what a mask reads of the sizes.

    Args:
        mask: see `block_mask_for`.
        query: ``(B, Hq, Lq, D)``.
        key: ``(B or 1, Hkv, Lk, D)``.
        form: what tells calls apart whose tensors differ.
    """
    bound = resolve(mask, "mask")
    # an entry holds its graph, so the number stays taken
    known = None if bound.tensors else (form, id(bound.graph), *map(number_key, bound.scalars))
    found = _OF_FORMS.get(known)
    if found is not None:
        return found[1]
    sizes = GivenSizes(query.shape[0], query.shape[1], query.shape[2], key.shape[2], key.shape[1])
    spec = Spec(sizes, BLOCK_SIZE)
    blocks = block_mask_of(mask, bound, spec, query.device).blocks_on(query.device)
    if known is not None:
        if len(_OF_FORMS) >= _MOST:
            _OF_FORMS.clear()
        _OF_FORMS[known] = (bound.graph, blocks)
    return blocks


def block_mask_for(mask: Any, sizes: GivenSizes, device: torch.device) -> BlockMask:
    """Return the block mask of a function given to attention; made once for each set of captures.

    Nothing is kept for a tensor whose changes torch does not count.

    Args:
        mask: a mask function, its text, or a `Mod`.
        sizes: those of the call, all of them known.
        device: the call's.
    """
    return block_mask_of(mask, resolve(mask, "mask"), Spec(sizes, BLOCK_SIZE), device)


def block_mask_of(mask: Any, bound: BoundGraph, spec: Spec, device: torch.device) -> BlockMask:
    """Return the block mask of a resolved mask, see `block_mask_for`.

    Args:
        mask: what was resolved.
        bound: its graph.
        spec: sizes, all of them known, and the size of blocks.
        device: the call's.
    """
    read, sizes = reads(bound.graph), spec.sizes
    needed = GivenSizes(
        sizes.batch if "b" in read else None,
        sizes.heads if "h" in read or "num_heads" in read else None,
        sizes.q_len,
        sizes.kv_len,
        sizes.kv_heads if "num_kv_heads" in read else None,
    )
    wanted = Spec(needed, spec.block_size)
    tensors = tuple([tensor_identity(t) for t in bound.tensors])
    key = (bound.graph, tuple(map(number_key, bound.scalars)), tensors, wanted, device)
    found = _CACHE.get(key)
    if found is not None and found.holds(bound.tensors):
        return found
    block_mask = made(mask, bound, wanted, capture_device(bound, device))
    if None not in tensors:  # the entry holds the tensors, so their ids stay taken
        _CACHE.put(key, block_mask)
    return block_mask
