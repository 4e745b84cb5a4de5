"""From a `BlockMask` of this package to the `flexfa4.BlockMask` that means the same.

One is kept with each block mask.  Where FlexFA4 found the blocks itself (`creation`), it is the
one that they were found with; for a part of such a mask it is made from the part's mask function.
Both are refused when what the function captures has changed since.  Where lists were given, or
attributes assigned, it is made from lists and mask function together as an ordinary mask
(`listed_mask`), and made again when any of them or a captured value is new.

Does not compute attention, and does not know torch's block masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flexfa4 import block_mask as native_masks
from flexfa4.errors import BlockMaskCountError, StaleBlockMaskError
from flexfa4.flex.listed_mask import ListedBlocks
from flexfa4.flex.masks import callable_mask, is_noop
from flexfa4.flex.sizes import block_size_pair, native_block_size
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.masks.spec import reads
from flexfa4.torch_op.deferred import DeferredBlockMask

if TYPE_CHECKING:
    from flexfa4.flex.block_mask import BlockMask


@dataclass(frozen=True)
class Native:
    """The block mask of FlexFA4 that stands for a `BlockMask`.

    Attributes:
        mask: the block mask.
        made_for: batch and heads of the call, where it was made for one; None where the lists were
            made from it.
    """

    mask: native_masks.BlockMask
    made_for: tuple[int, int] | None = None


def native_of(block_mask: BlockMask, batch: int, heads: int) -> native_masks.BlockMask:
    """Return the block mask of FlexFA4 with the same meaning, for a call of these sizes.

    Args:
        block_mask: what it stands for; keeps it.
        batch: batch of the queries.
        heads: query heads.

    Raises:
        BlockMaskMismatchError: the block mask was made for other batches or heads.
        StaleBlockMaskError: a value that the mask function captures changed since the blocks were
            found.
    """
    if block_mask.is_listed:
        block_mask.blocks()  # forgets what was made of lists that have changed
    kept, origin = block_mask._native, block_mask._origin
    if isinstance(origin, DeferredBlockMask):
        kept = origin = None  # it was made in a graph, and serves in graphs only
    if origin is not None:
        _check_current(origin)
    if kept is not None and kept.made_for is None:
        graph = kept.mask.blocks_on(kept.mask.device).graph
        _check_counts(block_mask, (batch, heads), reads(graph))
    elif kept is None or kept.made_for != (batch, heads) or not _is_current(kept.mask):
        block_mask._native = kept = _made(block_mask, origin, (batch, heads))
    return kept.mask


def in_graph(block_mask: BlockMask) -> Any:
    """Return what stands for a block mask where Dynamo traces: one of FlexFA4, or a function."""
    kept = block_mask._native
    if kept is not None and kept.made_for is None:
        return kept.mask
    return listed(block_mask) if block_mask._origin is None else block_mask.mask_mod


def listed(block_mask: BlockMask) -> ListedBlocks:
    """Return the mask function that lists and mask function of a block mask mean together."""
    mask_mod = block_mask.mask_mod
    partial = None if is_noop(mask_mod) else callable_mask(mask_mod)
    return ListedBlocks(block_mask.block_kinds(), block_size_pair(block_mask.BLOCK_SIZE), partial)


def _made(
    block_mask: BlockMask, origin: native_masks.BlockMask | None, counts: tuple[int, int]
) -> Native:
    batch, heads = counts
    mask = listed(block_mask) if origin is None else block_mask.mask_mod
    read = reads(resolve(mask, "mask").graph)
    # lists for one batch may have a mask function that tells batches apart
    _check_counts(block_mask, counts, frozenset() if origin is None else read)
    made = native_masks.create_block_mask(
        mask,
        batch=batch if "b" in read else None,
        heads=heads if not {"h", "num_heads"}.isdisjoint(read) else None,
        q_len=block_mask.seq_lengths[0],
        kv_len=block_mask.seq_lengths[1],
        block_size=native_block_size(block_size_pair(block_mask.BLOCK_SIZE)),
    )
    return Native(made, made_for=counts)


def _check_current(origin: native_masks.BlockMask) -> None:
    """Refuse blocks that were found with other values, with the call that finds them anew."""
    try:
        origin.check_current()
    except StaleBlockMaskError as error:
        b, h, q_len, kv_len = origin.shape
        again = f"create_block_mask(mask_mod, {b}, {h}, {q_len}, {kv_len})"
        raise StaleBlockMaskError(name=error.fields["name"], rewrite=again) from None


def _is_current(mask: native_masks.BlockMask) -> bool:
    try:
        mask.check_current()
    except StaleBlockMaskError:
        return False
    return True


def _check_counts(block_mask: BlockMask, counts: tuple[int, int], read: frozenset[str]) -> None:
    """Refuse a call of other batches or heads; one stands for all if the mask reads neither."""
    rows = (("B", "b"), ("H", "h"))
    made_for = block_mask.shape[:2]
    for (name, letter), made, found in zip(rows, made_for, counts, strict=True):
        if made != found and (made != 1 or letter in read):
            raise BlockMaskCountError(
                name=name,
                made=made,
                count=found,
                reads=f"`{letter}`",
                rewrite=f"create_block_mask(mask_mod, ..., {name}={found})",
            )
