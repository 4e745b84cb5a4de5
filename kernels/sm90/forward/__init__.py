"""The forward kernel: ``out = softmax(mod(scale q k^T)) v`` and its ``lse``, tile by tile.

::

    storage      what lies where in shared memory
    parameters   what a launch passes to the kernel, while it is traced
    kernel       the block: set-up, and which warps do what
    load         producer warp: TMA loads of Q, K and V
    consume      consumer warpgroups: products and softmax
    epilogue     consumer warpgroups: normalised output and lse to global memory

A block works on `rows` queries of a head, 64 for each consumer warpgroup, and meets tiles of keys
one after the other.  Products of a warpgroup overlap with its own softmax (the scores of the next
tile are computed while the present one is exponentiated) and with the softmax of the others
(`primitives.turns`); see FlashAttention-3 (arXiv 2407.08608) for both.
"""
