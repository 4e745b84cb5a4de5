"""The forward kernel: ``out = softmax(mod(scale q k^T)) v`` and its ``lse``, tile by tile.

::

    call         from the tensors of a call to its plan, and to the values of a launch
    plan         all that the code depends on, and the order of the kernel's parameters
    storage      what lies where in shared memory
    compiled     the compiled kernel of a plan, from memory, disk or the compiler

    kernel       the block: set-up, and which warps do what
    scores       where mod and mask are spliced in
    load         producer warp: TMA loads of Q, K and V
    consume      consumer warpgroups: products and softmax
    epilogue     consumer warpgroups: normalised output and lse to global memory

A block works on `rows` queries of a head, 64 for each consumer warpgroup, and meets tiles of keys
one after the other.  Products of a warpgroup overlap with its own softmax (the scores of the next
tile are computed while the present one is exponentiated) and with the softmax of the others
(`primitives.turns`); see FlashAttention-3 (arXiv 2407.08608) for both.
"""
