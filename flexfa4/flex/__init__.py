"""FlexAttention's interface: a program that uses torch's ports by changing one import.

    from flexfa4.flex import create_block_mask, flex_attention

Names, parameters, their order and their defaults are those of `torch.nn.attention.flex_attention`;
docs/from_flexattention.md lists what differs.  Everything is a form of `flexfa4.attention` and
`flexfa4.create_block_mask`: nothing is computed here that they do not compute.
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
