"""The forward kernel: ``out = softmax(mod(scale q k^T)) v`` and its ``lse``, tile by tile.

::

    plan         all that the code depends on: how work is cut, and the tensor maps
    storage      what lies where in shared memory
    tilings      how work is cut, by head dims: written by benchmarks/h200_tilings.py
    parts        for how many columns mods are evaluated together

    kernel       the block: set-up, and which warps do what
    scores       where mod and mask are spliced in
    load         producer warp: TMA loads of Q, K and V
    consume      consumer warpgroups: products and softmax
    epilogue     consumer warpgroups: normalised output and lse to global memory

What comes before a launch, and its parameters, is `kernels.forward`, for all architectures.

A block works on `rows` queries of a head, 64 for each consumer warpgroup, and meets tiles of keys
one after the other.  Products of a warpgroup overlap with its own softmax (the scores of the next
tile are computed while the present one is exponentiated) and with the softmax of the others
(`primitives.turns`); see FlashAttention-3 (arXiv 2407.08608) for both.
"""
