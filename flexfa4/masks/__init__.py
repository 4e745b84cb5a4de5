"""What a block mask consists of, beside the structure of its blocks (`frontend.masks`).

::

    spec      what it is made for: sizes, block size, device, and their checks
    snapshot  what its mask captured, and whether that has changed since
    parts     what an index of it picks
    copies    what pickle and deepcopy keep of it
    registry  blocks that are known, by what their mask is made of: for ops
    cache     block masks of functions that `attention` gets: made once and kept

`BlockMask` itself is in `flexfa4.block_mask`, the name that pickles know it by.
"""
