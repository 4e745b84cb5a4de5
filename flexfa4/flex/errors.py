"""The chapter of the error catalogue for mistakes that only FlexAttention's interface knows.

Lists of blocks, kernel options and the like exist in `flexfa4.flex` alone, and `flexfa4.errors`,
which every layer reads, knows nothing of it.  What a message says is described there; users catch
these classes as ``flexfa4.flex.errors.BlockListError`` and so on.
"""

from __future__ import annotations

from flexfa4.errors import BlockMaskMismatchError, FlexFA4Error, ShapeMismatchError


class GroupedHeadsError(ShapeMismatchError):
    """Fewer key heads than query heads where FlexAttention wants to be told."""

    found = "query has {q_heads} heads and key {kv_heads}, without enable_gqa"
    allowed = "as many key heads as query heads, or enable_gqa=True"
    instead = "enable_gqa=True"


class BlockMaskAdjustmentError(BlockMaskMismatchError):
    """A FlexAttention BlockMask cut to lengths that it does not have."""

    found = "a block mask for lengths {made} was to be adjusted to {lengths}"
    allowed = "lengths that need no more blocks than there are"
    instead = "create_block_mask(mask_mod, B, H, {lengths[0]}, {lengths[1]})"


class BlockListError(FlexFA4Error, ValueError):
    """Lists of blocks, as FlexAttention's BlockMask has them, that stand for no mask."""


class BlockListTypeError(BlockListError):
    """A list of blocks that is missing, or no integer tensor of the right rank."""

    found = "{name} is {found_value}"
    allowed = "an int32 tensor of shape ({axes})"
    instead = "{rewrite}"


class BlockListRowsError(BlockListError):
    """More or fewer rows of blocks than the lengths need."""

    found = "{name} has {rows} rows of blocks, the lengths need {needed}"
    allowed = "{needed} rows: the length divided by the block size, rounded up"
    instead = "seq_lengths=(q_len, kv_len) and BLOCK_SIZE that fit the lists"


class BlockListPairError(BlockListError):
    """Two tensors that belong together and have other shapes or devices."""

    found = "{first} has {first_value} and {second} {second_value}"
    allowed = "one {what} for lists that belong together"
    instead = "{rewrite}"


class BlockCountError(BlockListError):
    """A count of blocks that its list does not hold."""

    found = "{num} counts up to {count} blocks in lists of {width}"
    allowed = "counts from 0 to {indices}.shape[-1]"
    instead = "{num}.clamp(0, {indices}.shape[-1]), or longer lists"


class BlockOutsideError(BlockListError):
    """A listed block that the mask does not have."""

    found = "{indices} lists block {block} of {blocks}"
    allowed = "blocks from 0 to {last} among the first {num} of a row"
    instead = "seq_lengths that cover all listed blocks, or lists without that block"


class RepeatedBlockError(BlockListError):
    """A block listed twice."""

    found = "{indices} lists a block twice in one row"
    allowed = "each block at most once in a row, for its keys count once"
    instead = "lists without duplicates, or smaller counts"


class PartialAndFullError(BlockListError):
    """A block listed as partial and as full."""

    found = "a block is listed in {partial} and in {full}"
    allowed = "each block in one of them: partial ones are masked by mask_mod, full ones are not"
    instead = "{full} without it, for mask_mod to apply"


class TransposedListError(BlockListError):
    """Lists by column that are not the transpose of those by row."""

    found = "{indices} and kv_indices list different blocks"
    allowed = "the same blocks by row and by column"
    instead = "BlockMask.from_kv_blocks(...), which makes the lists by column"


class BlockIndexError(FlexFA4Error, IndexError):
    """An index of a FlexAttention BlockMask that picks nothing, or what is no mask.

    `index` says in words which, for an index may be wrong as a whole, at one axis or by its order.
    """

    found = "a BlockMask was indexed with {index}"
    allowed = "up to three of int, slice and integer tensor: batch, head, row of blocks"
    instead = "an index within block_mask.kv_num_blocks.shape; a row cut short comes last"


class KernelOptionError(FlexFA4Error, ValueError):
    """Kernel options that FlexAttention does not take."""


class UnknownKernelOptionError(KernelOptionError):
    """A kernel option that FlexAttention does not have."""

    found = "there is no kernel option {name!r}"
    allowed = "{names}; fwd_ or bwd_ may precede them"
    instead = "{rewrite}"


class KernelOptionValueError(KernelOptionError):
    """A value that a kernel option does not take."""

    found = "the kernel option {name} is {found_value}"
    allowed = "{values}"
    instead = "kernel_options without {name}, for it has no effect here"


class ExclusiveKernelOptionsError(KernelOptionError):
    """Two kernel options of which one excludes the other."""

    found = "the kernel options BACKEND and FORCE_USE_FLEX_ATTENTION are both set"
    allowed = "one of them"
    instead = 'kernel_options={{"BACKEND": "TRITON"}}'
