"""The forward kernel: ``out = softmax(mod(scale q k^T)) v`` and its ``lse``, tile by tile.

::

    plan         all that the code depends on, and the order of the kernel's parameters
    storage      what lies where in shared memory
    tmem         what lies where in tensor memory

What follows needs CuTe-DSL::

    kernel       the block: set-up, which warps do what, and where they meet
    barriers     the mbarriers of each half
    halves       which tiles an item visits, and which of its halves take part
    load         one warp: TMA loads of Q, K and V
    mma          one warp: issues the products of both halves
    softmax      two warpgroups, a half each: scores to probabilities, a row to a thread
    scores       where mod and mask are spliced in
    correction   one warpgroup: rescales outputs
    epilogue     the same one: normalised output to global memory

A block works on two halves of 128 rows, which take turns on the tensor cores: while one half's
scores are exponentiated, the products of the other run.  Nothing that a tile of keys needs passes
through shared memory but K and V: scores, probabilities and outputs stay in tensor memory.  See
FlashAttention-4 (arXiv 2603.05451).
"""
