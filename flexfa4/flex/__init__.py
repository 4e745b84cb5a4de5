"""FlexAttention's interface: a program that uses torch's ports by changing one import.

    from flexfa4.flex import create_block_mask, flex_attention

Names, parameters, their order and their defaults are those of `torch.nn.attention.flex_attention`;
docs/from_flexattention.md lists what differs.  Everything is a form of `flexfa4.attention` and
`flexfa4.create_block_mask`; beside them only `max_scores` are computed here.

::

    attention        flex_attention; compiled has what Python itself must do where Dynamo traces it
    creation         create_block_mask and create_mask
    block_mask       BlockMask, as lists of blocks with a mask function
    block_lists      lists of blocks <-> a table of kinds; errors in lists
    block_table      the blocks of a BlockMask, written as lists or not
    found_blocks     the blocks of a flexfa4.BlockMask, for lists of any block size
    slicing          what an index of a BlockMask picks
    block_picture    a BlockMask as text
    shown            block masks, ours and torch's, as flexfa4.plot_mask and explain look at them
    masks            mask functions: and_masks, or_masks, noop_mask
    listed_mask      the mask functions that lists, and parts of a BlockMask, stand for
    native_mask      BlockMask -> flexfa4.BlockMask
    torch_masks      torch's BlockMask -> this one
    row_maxima       max_scores, by a second pass over the scores
    kernel_options   what torch's options for its kernels mean here
    sizes            lengths and block sizes, and their checks
    errors           the mistakes that only this interface knows
"""

from flexfa4.flex.attention import AuxOutput, AuxRequest, flex_attention
from flexfa4.flex.block_mask import BlockMask
from flexfa4.flex.creation import create_block_mask, create_mask
from flexfa4.flex.kernel_options import FlexKernelOptions, explain_kernel_options
from flexfa4.flex.masks import and_masks, noop_mask, or_masks

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "explain_kernel_options",
    "flex_attention",
    "noop_mask",
    "or_masks",
]
